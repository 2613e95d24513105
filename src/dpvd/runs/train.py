"""A run from options to a folder: plan, train, measure, record."""

import math
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from dpvd import __version__
from dpvd.data import Dataset
from dpvd.errors import DpvdError
from dpvd.files import replacing
from dpvd.grads import Clipping
from dpvd.plan import NoiseKind, PrivacyPlan
from dpvd.runs.architectures import NetworkKind
from dpvd.runs.folder import begin_folder, take_up_folder
from dpvd.runs.measure import (
    alpha_histograms,
    predict_dist,
    quick_look,
    sparsity_counts,
    test_measures,
)
from dpvd.runs.network import Method, NetworkSpec, Scale
from dpvd.runs.options import RunOptions
from dpvd.runs.record import RunRecord
from dpvd.training import (
    INPUT_NORM,
    FitResult,
    NetworkRule,
    Progress,
    Recipe,
    default_batch_size,
    default_clipping,
    default_steps,
    fit,
    ordinary_recipe,
    private_recipe,
)

__all__ = ["MODEL", "PreparedRun", "execute", "prepare_run"]

MODEL = "model.safetensors"
SAMPLES = 32

# The constants of the default rule were chosen on splits of the training parts of these data sets.
RULE_CHOSEN_ON = ("digits", "mnist")
HIDDEN = {NetworkKind.MLP: 1000, NetworkKind.CNN: 32}


@dataclass(frozen=True)
class PreparedRun:
    """All that a run will do, decided before anything is written or trained."""

    options: RunOptions
    dataset: Dataset
    network: NetworkSpec
    plan: PrivacyPlan
    recipe: Recipe


def prepare_run(options: RunOptions, dataset: Dataset) -> PreparedRun:
    """Fill in the default rule and calibrate the noise.

    Raises:
        DpvdError: if the options contradict each other or the data.
    """
    network = _network(options, dataset)
    plan = _plan(options, dataset, network.rule)
    recipe = (
        ordinary_recipe(network.rule)
        if options.method is Method.NONE
        else private_recipe(plan, network.rule)
    )
    if options.method is Method.SVI:
        recipe = replace(recipe, weight_decay=1 / len(dataset.train_x))  # a standard normal prior
    chosen = {
        name: getattr(options, name) for name in ("learning_rate", "decay", "gamma", "kl_weight")
    }
    recipe = replace(recipe, **{name: value for name, value in chosen.items() if value is not None})
    return PreparedRun(options, dataset, network, plan, recipe)


def execute(
    run: PreparedRun,
    folder: Path,
    *,
    resume: bool = False,
    on_step: Callable[[Progress], None] | None = None,
) -> RunRecord:
    """Train, measure on the test data, and write model and record into the folder.

    Raises:
        DpvdError: if the folder holds a run already (and it is not to be resumed), or another run
            than this one (and it is): nothing is changed then. If training diverged: the steps stay
            charged.
    """
    model = run.network.build(run.options.seed)
    started_with = run.options.to_dict() | {
        "dataset": run.dataset.name,
        "checksum": run.dataset.checksum,
    }
    (take_up_folder if resume else begin_folder)(folder, started_with)
    train_x, test_x = (
        run.network.inputs(run.dataset.train_x),
        run.network.inputs(run.dataset.test_x),
    )
    test_y = run.dataset.test_y
    result = fit(
        model,
        (train_x, run.dataset.train_y),
        run.plan,
        run.recipe,
        delta=run.options.delta,
        accountant=run.options.accountant,
        evaluate=lambda m: quick_look(m, test_x, test_y),
        folder=folder,
        resume=resume,
        generator=torch.Generator().manual_seed(run.options.seed),
        on_step=on_step,
        micro_batch=run.network.micro_batch,
    )
    probabilities, _ = predict_dist(model, test_x, samples=SAMPLES)
    if not torch.isfinite(probabilities).all():
        raise DpvdError(
            "training diverged, the outputs are not finite: lower --learning-rate or --kl-weight"
        )
    record = _record(run, result, test_measures(probabilities, test_y, SAMPLES))
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    with replacing(folder / MODEL) as partial:
        save_file(state, partial)
    record.write(folder)
    return record


def _network(options: RunOptions, dataset: Dataset) -> NetworkSpec:
    scale = Scale.NONE
    if options.method is Method.DPVD:
        scale = options.scale or Scale.PRIVACY
    features = math.prod(dataset.feature_shape)
    convolutional = options.network is NetworkKind.CNN
    return NetworkSpec(
        features,
        HIDDEN[options.network] if options.hidden is None else options.hidden,
        dataset.classes,
        scale,
        input_norm=math.sqrt(features) if convolutional else INPUT_NORM,
        centred=dataset.pixels,
        kind=options.network,
        image=dataset.feature_shape if dataset.pixels and convolutional else None,
    )


def _plan(options: RunOptions, dataset: Dataset, rule: NetworkRule) -> PrivacyPlan:
    examples = len(dataset.train_x)
    private = options.method is not Method.NONE
    batch_size = (
        default_batch_size(examples, private=private)
        if options.batch_size is None
        else options.batch_size
    )
    clipping = default_clipping()
    built_in = dataset.name in RULE_CHOSEN_ON
    plan = PrivacyPlan(
        examples=examples,
        batch_size=batch_size,
        steps=(
            0
            if options.epochs is not None
            else default_steps(examples, batch_size, rule, private=private)
        ),
        epochs=options.epochs,
        clipping=Clipping(
            clipping.mode if options.clipping is None else options.clipping,
            clipping.clip_norm if options.clip_norm is None else options.clip_norm,
        ),
        sampling=options.sampling,
        relation=options.relation,
        noise=NoiseKind.SEEDED if options.seeded_noise else NoiseKind.SYSTEM,
        seed=options.seed if options.seeded_noise else None,
        unit="image" if dataset.pixels else "example",
        tuned=("the constants of the default recipe",) if built_in else None,
        public=("the classes", "the size of the images") if built_in else None,
        initial_weights="random",
    )
    if options.method is Method.NONE:
        return plan.calibrate(math.inf, options.delta)
    assert options.epsilon is not None  # checked at construction
    return plan.calibrate(options.epsilon, options.delta, options.accountant)


def _record(run: PreparedRun, result: FitResult, test: dict[str, Any]) -> RunRecord:
    dataset, model = run.dataset, result.model
    return RunRecord(
        method=str(run.options.method),
        seed=run.options.seed,
        dataset={
            "name": dataset.name,
            "train": len(dataset.train_x),
            "test": len(dataset.test_x),
            "classes": dataset.classes,
            "checksum": dataset.checksum,
            "preprocessing": f"{dataset.preprocessing}; {run.network.describe_inputs()}",
        },
        model={
            "network": run.network.to_dict(),
            "layers": [f"{name}: {_describe(layer)}" for name, layer in model.named_children()],
            "parameters": run.network.parameters,
        },
        plan=run.plan.to_dict(),
        recipe=run.recipe.to_dict(),
        guarantee=result.guarantee.to_dict(),
        history=[
            {name: _finite(value) for name, value in entry.items()} for entry in result.history
        ],
        test=test,
        alpha=(
            alpha_histograms(model) if run.network.scale in (Scale.PRIVACY, Scale.LEARNED) else {}
        ),
        sparsity=(
            sparsity_counts(model) if run.network.scale in (Scale.PRIVACY, Scale.LEARNED) else {}
        ),
        seconds=result.seconds,
        environment={
            "python": platform.python_version(),
            "torch": torch.__version__,
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
        },
        created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        version=__version__,
    )


def _finite(value: float) -> float | None:
    """JSON has no infinity: a run without privacy has no ε, a step that overflowed no loss."""
    return value if math.isfinite(value) else None


def _describe(layer: nn.Module) -> str:
    name = type(layer).__name__
    match layer:
        case nn.Linear():
            return f"{name} {layer.in_features}→{layer.out_features}"
        case nn.Conv2d():
            return (
                f"{name} {layer.in_channels}→{layer.out_channels} of"
                f" {'×'.join(map(str, layer.kernel_size))}"
            )
        case _:
            return name
