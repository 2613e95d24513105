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
from dpvd.errors import DpvdError, in_unit_interval, positive
from dpvd.grads import Clipping, ClippingMode
from dpvd.plan import NoiseKind, PrivacyPlan, SamplingKind
from dpvd.privacy import AccountantName, Relation
from dpvd.runs.measure import alpha_histograms, predict_dist, quick_look, sparsity_counts, test_measures
from dpvd.runs.network import Method, NetworkSpec, Scale
from dpvd.runs.record import RunRecord
from dpvd.training import (
    INPUT_NORM,
    FitResult,
    Progress,
    Recipe,
    default_batch_size,
    default_clipping,
    default_steps,
    fit,
    ordinary_recipe,
    private_recipe,
)

__all__ = ["MODEL", "PreparedRun", "RunOptions", "execute", "prepare_run"]

MODEL = "model.safetensors"
SAMPLES = 32

# The constants of the default rule were chosen on splits of this data set's training part.
RULE_CHOSEN_ON = ("digits",)


@dataclass(frozen=True)
class RunOptions:
    """What a user may choose; None leaves the choice to the default rule."""

    delta: float
    epsilon: float | None = None
    method: Method = Method.DPVD
    seed: int = 0
    hidden: int = 1000
    batch_size: int | None = None
    epochs: float | None = None
    accountant: AccountantName = AccountantName.PLD
    relation: Relation = Relation.ADD_OR_REMOVE
    sampling: SamplingKind = SamplingKind.POISSON
    scale: Scale | None = None
    learning_rate: float | None = None
    clipping: ClippingMode | None = None
    clip_norm: float | None = None
    kl_weight: float | None = None
    seeded_noise: bool = False

    def __post_init__(self) -> None:
        in_unit_interval(delta=self.delta)
        if self.method is not Method.NONE:
            if self.epsilon is None:
                raise DpvdError(f"method {self.method} needs a privacy budget: give --epsilon, or use --method none")
            positive(epsilon=self.epsilon)
        if self.scale is not None and self.method is not Method.DPVD:
            raise DpvdError(f"a posterior scale can be chosen for method dpvd only, not for {self.method}")


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
    plan = _plan(options, dataset)
    if options.method is Method.NONE:
        recipe = ordinary_recipe()
    else:
        recipe = private_recipe(plan, features=network.features, hidden=network.hidden)
        if network.scale is Scale.LEARNED:
            recipe = replace(recipe, kl_weight=1.0, kl_warmup=0.5)
        if options.method is Method.SVI:
            recipe = replace(recipe, weight_decay=1 / len(dataset.train_x))  # a standard normal prior
    if options.learning_rate is not None:
        recipe = replace(recipe, learning_rate=options.learning_rate)
    if options.kl_weight is not None:
        recipe = replace(recipe, kl_weight=options.kl_weight)
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
        DpvdError: if the folder holds a run already (and it is not to be resumed); nothing is changed then.
    """
    if not resume and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DpvdError(f"{folder} exists already and is not empty: choose another --out, or --resume the run in it")
    model = run.network.build(run.options.seed)
    train_x, test_x = run.network.inputs(run.dataset.train_x), run.network.inputs(run.dataset.test_x)
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
    )
    probabilities, _ = predict_dist(model, test_x, samples=SAMPLES)
    record = _record(run, result, test_measures(probabilities, test_y, SAMPLES))
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, folder / (MODEL + ".partial"))
    os.replace(folder / (MODEL + ".partial"), folder / MODEL)
    record.write(folder)
    return record


def _network(options: RunOptions, dataset: Dataset) -> NetworkSpec:
    scale = Scale.NONE
    if options.method is Method.DPVD:
        scale = options.scale or Scale.PRIVACY
    features = math.prod(dataset.feature_shape)
    return NetworkSpec(features, options.hidden, dataset.classes, scale, input_norm=INPUT_NORM)


def _plan(options: RunOptions, dataset: Dataset) -> PrivacyPlan:
    examples = len(dataset.train_x)
    private = options.method is not Method.NONE
    batch_size = default_batch_size(examples, private=private) if options.batch_size is None else options.batch_size
    clipping = default_clipping()
    tuned = ("the constants of the default recipe",) if dataset.name in RULE_CHOSEN_ON else ()
    plan = PrivacyPlan(
        examples=examples,
        batch_size=batch_size,
        steps=0 if options.epochs is not None else default_steps(examples, batch_size, private=private),
        epochs=options.epochs,
        clipping=Clipping(
            clipping.mode if options.clipping is None else options.clipping,
            clipping.clip_norm if options.clip_norm is None else options.clip_norm,
        ),
        sampling=options.sampling,
        relation=options.relation,
        noise=NoiseKind.SEEDED if options.seeded_noise else NoiseKind.SYSTEM,
        seed=options.seed if options.seeded_noise else None,
        tuned=tuned,
    )
    if options.method is Method.NONE:
        return plan.calibrate(math.inf, options.delta)
    assert options.epsilon is not None  # checked at construction
    return plan.calibrate(options.epsilon, options.delta, options.accountant)


def _record(run: PreparedRun, result: FitResult, test: dict[str, Any]) -> RunRecord:
    dataset, model = run.dataset, result.model
    norm = run.network.input_norm
    scaled = "" if norm is None else f"; each example by itself scaled to L2 norm {norm:g}"
    return RunRecord(
        method=str(run.options.method),
        seed=run.options.seed,
        dataset={
            "name": dataset.name,
            "train": len(dataset.train_x),
            "test": len(dataset.test_x),
            "classes": dataset.classes,
            "checksum": dataset.checksum,
            "preprocessing": dataset.preprocessing + scaled,
        },
        model={
            "network": run.network.to_dict(),
            "layers": [f"{name}: {_describe(layer)}" for name, layer in model.named_children()],
            "parameters": run.network.parameters,
        },
        plan=run.plan.to_dict(),
        recipe=run.recipe.to_dict(),
        guarantee=result.guarantee.to_dict(),
        history=[{**entry, "epsilon": _finite(entry["epsilon"])} for entry in result.history],
        test=test,
        alpha=alpha_histograms(model) if run.network.scale in (Scale.PRIVACY, Scale.LEARNED) else {},
        sparsity=sparsity_counts(model) if run.network.scale in (Scale.PRIVACY, Scale.LEARNED) else {},
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


def _finite(epsilon: float) -> float | None:
    """JSON has no infinity: a run without privacy has no ε."""
    return epsilon if math.isfinite(epsilon) else None


def _describe(layer: nn.Module) -> str:
    name = type(layer).__name__
    return f"{name} {layer.in_features}→{layer.out_features}" if isinstance(layer, nn.Linear) else name
