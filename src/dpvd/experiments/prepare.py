"""From a spec to what the training code takes: data, network, plan and recipe."""

from dataclasses import replace

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor

from dpvd.data import Dataset
from dpvd.experiments.spec import Part, Spec, Variant
from dpvd.privacy import AccountantName
from dpvd.runs import PreparedRun, RecipeName, RunOptions, prepare_run
from dpvd.training import Decay

__all__ = ["HELD_OUT", "TUNING_WORDS", "hold_out", "prepare"]

HELD_OUT = 0.1
"""Share of the training data on which settings are chosen."""
SPLIT_SEED = 0
TUNING_WORDS = "learning rate and decay, on a tenth of the training data"


def prepare(spec: Spec, dataset: Dataset) -> PreparedRun:
    """Decide all that the run of a spec will do, by the code that decides it for ``dpvd train``.

    Guarantees:
        The noise is calibrated for the data, the batch size and the number of steps that will run.
        The test data is not looked at unless the spec is to be measured on it.

    Args:
        spec: the experiment.
        dataset: the data set that the spec names.

    Raises:
        DpvdError: if the settings contradict the data.
    """
    data = hold_out(dataset) if spec.part is Part.HELD_OUT else dataset
    options = RunOptions(
        delta=spec.delta,
        epsilon=spec.epsilon,
        method=spec.training,
        seed=spec.seed,
        hidden=spec.hidden,
        recipe=RecipeName.PAPER,
        batch_size=spec.batch_size,
        epochs=spec.epochs,
        accountant=spec.accountant or AccountantName.PLD,
        learning_rate=spec.learning_rate,
        decay=None if spec.gamma is None else Decay.POWER,
        gamma=spec.gamma,
        clipping=spec.clipping,
        clip_norm=spec.clip_norm,
        kl_weight=spec.kl_weight,
        seeded_noise=True,
    )
    if spec.variant is Variant.RECIPE:
        return prepare_run(options, data)
    return _as_in_paper(prepare_run(options, _from_zero_to_one(data)), spec)


def hold_out(dataset: Dataset) -> Dataset:
    """A data set whose test part is a tenth of the training part; the real test part is not in it.

    The split is stratified and always the same.
    """
    rows = np.arange(len(dataset.train_y))
    train, held = (
        torch.from_numpy(part)
        for part in train_test_split(
            rows, test_size=HELD_OUT, stratify=dataset.train_y, random_state=SPLIT_SEED
        )
    )
    x, y = dataset.train_x, dataset.train_y
    return replace(
        dataset, train_x=x[train], train_y=y[train], test_x=x[held], test_y=y[held], checksum=""
    )


def _as_in_paper(run: PreparedRun, spec: Spec) -> PreparedRun:
    """Take off what the default rule adds: scaled inputs, momentum, averaging, a KL warm-up."""
    assert spec.momentum is not None
    assert spec.average is not None
    return replace(
        run,
        network=replace(run.network, input_norm=None, centred=False),
        plan=replace(run.plan, tuned=(TUNING_WORDS,) if spec.variant is Variant.TUNED else ()),
        recipe=replace(run.recipe, momentum=spec.momentum, average=spec.average, kl_warmup=0.0),
    )


def _from_zero_to_one(dataset: Dataset) -> Dataset:
    """Pixels stored as bytes, over the largest byte: a bound of the format, not of the data."""
    if dataset.train_x.is_floating_point():
        return dataset
    train_x = _unit(dataset.train_x)
    test_x = _unit(dataset.test_x)
    return replace(dataset, train_x=train_x, test_x=test_x)


def _unit(pixels: Tensor) -> Tensor:
    return pixels.float() / 255
