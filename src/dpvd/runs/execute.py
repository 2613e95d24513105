"""A run from its preparation to a folder: train, evaluate, record."""

import math
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dpvd import __version__
from dpvd.errors import DpvdError
from dpvd.features import FeatureExtractor, FeatureSpec
from dpvd.plan import PrivacyPlan
from dpvd.privacy import Cost, Guarantee, round_up
from dpvd.ranks import ALONE, Ranks
from dpvd.runs.charged import discard_uncharged
from dpvd.runs.draw import Draw, drawing, file_parts, settle_finished
from dpvd.runs.environment import environment, now
from dpvd.runs.manifest import finished_run
from dpvd.runs.metrics import (
    NOT_MEASURED,
    alpha_histograms,
    evaluate,
    predict_dist,
    sparsity_counts,
    test_metrics,
)
from dpvd.runs.model_file import save_model
from dpvd.runs.prediction_sets import Calibration, PredictionSets, release_sets
from dpvd.runs.prepare import PreparedRun
from dpvd.runs.record import RunRecord
from dpvd.runs.run_dir import MODEL, RECORD, create_run_dir, reopen_run_dir
from dpvd.statistics import KeptReleases
from dpvd.training import Account, FitResult, Progress, charge_release, fit, has_begun

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["execute", "train_and_evaluate"]

EVALUATIONS = 20  # on the way
SAMPLES = 32  # of the weights, at the end

OnStep = Callable[[Progress], None]
OnFeatures = Callable[[int, int], None]


def execute(
    run: PreparedRun,
    folder: Path,
    *,
    resume: bool = False,
    on_step: OnStep | None = None,
    on_features: OnFeatures | None = None,
    group: "ProcessGroup | None" = None,
) -> RunRecord:
    """Train, measure on the test data, and write model and record into the folder.

    Args:
        run: what to do.
        folder: where.
        resume: go on from what lies in the folder.
        on_step: called after every step.
        on_features: called with the number of examples of which features are made, and of all.
        group: of the processes that train together; all read the folder, the first writes there.

    Raises:
        DpvdError: if the folder holds a run already (and it is not to be resumed), or another run
            than this one (and it is), or the account of the data does not have as much left:
            nothing is changed then. If training diverged: the steps stay
            charged.
    """
    ranks = Ranks(group)
    # Before anything is written: it may not fit into memory.
    model = run.network.build(run.options.seed)
    is_finished = False
    with ranks.together():
        if ranks.is_first:
            is_finished = _open_folder(run, folder, resume)
    if ranks.largest(int(is_finished)):
        return RunRecord.read(folder)  # there is nothing to go on with
    try:
        return _carry_out(run, model, folder, resume, on_step, on_features, ranks)
    except BaseException as problem:
        is_refused = isinstance(problem, DpvdError) or run.options.account is not None
        if is_refused and not resume and ranks.is_first:
            discard_uncharged(folder)
        raise


def _open_folder(run: PreparedRun, folder: Path, resume: bool) -> bool:
    """Make the folder, or check the one that is there; returns whether its run is finished."""
    started_with = run.options.to_dict()
    # What the choices came to: defaults may change until a run is resumed.
    del started_with["recipe"]
    front = run.network.front
    started_with["network"] = str(run.network.kind)
    started_with["features"] = None if front is None else str(front.kind)
    started_with["dataset"] = run.dataset.name
    started_with["checksum"] = run.dataset.checksum
    if not resume:
        create_run_dir(folder, started_with, key=run.checksum_key)
        return False
    reopen_run_dir(folder, started_with)
    if not (folder / RECORD).exists():
        return False
    settle_finished(run.options, folder)
    finished_run(folder)
    return True


def _carry_out(
    run: PreparedRun,
    model: nn.Module,
    folder: Path,
    resume: bool,
    on_step: OnStep | None,
    on_features: OnFeatures | None,
    ranks: Ranks,
) -> RunRecord:
    """Train with all processes; reserve, test and record with the first."""
    draw: Draw | None = None
    goes_on = False
    with ExitStack() as reserved:
        with ranks.together():
            if ranks.is_first:
                cost = Cost.of(run.event())
                drawn = drawing(run.options, folder, cost, _data_parts(run))
                draw = reserved.enter_context(drawn)
                goes_on = resume and has_begun(folder)
        goes_on = bool(ranks.largest(int(goes_on)))
        examples = _examples(run, model, on_features)
        result = _train(run, model, examples, EVALUATIONS, folder, goes_on, on_step, ranks)
        with ranks.together():
            if ranks.is_first:
                sets = None
                if run.kept is not None:
                    sets = _release_sets(run, run.kept, model, folder, resume=goes_on)
                    result = replace(result, guarantee=_joint(run, run.kept, model, result, sets))
                test = _test(run, model, examples)
                checksum = save_model(model, folder / MODEL)
                _record(run, model, result, test, checksum, draw, sets).write(folder)
                finished_run(folder)
    return RunRecord.read(folder)


def _data_parts(run: PreparedRun) -> Iterable[bytes]:
    """What tells the data of a run from others: its file, or the checksum of public data."""
    if run.source is None:
        return [run.dataset.checksum.encode()]
    return file_parts(run.source)


def train_and_evaluate(
    run: PreparedRun,
    model: nn.Module | None = None,
    *,
    evaluations: int = EVALUATIONS,
    folder: Path | None = None,
    resume: bool = False,
    on_step: OnStep | None = None,
) -> FitResult:
    """Train a prepared run's network under its plan, evaluating it on the test data as it goes.

    Args:
        run: network, data, plan and recipe.
        model: the network, if it is built already; of one with features, the head is trained.
        evaluations: how many times it is evaluated, the last time at the end; see ``evaluate``.
        folder: where ledger and checkpoints are kept; nothing is written if None.
        resume: go on from what lies in the folder.
        on_step: called after every step.

    Returns:
        Model, guarantee and history; loss and accuracy are in every entry of the history.

    Raises:
        DpvdError: as ``fit``, or if the network does not fit into memory.
    """
    if model is None:
        model = run.network.build(run.options.seed)
    examples = _examples(run, model)
    return _train(run, model, examples, evaluations, folder, resume, on_step, ALONE)


@dataclass(frozen=True)
class _Examples:
    """Inputs of the part that is trained, [n, inputs], for training and for the test."""

    train_x: Tensor
    test_x: Tensor


def _examples(
    run: PreparedRun, model: nn.Module, on_features: OnFeatures | None = None
) -> _Examples:
    """Features are made once, and kept in memory alone: those of private images are private.

    Those of the last data are kept for the next run of a sweep.
    """
    network = run.network
    key = (run.dataset.checksum, network.front, run.options.prediction_sets)
    if network.front is not None and key in _last_features:
        return _last_features[key]
    _last_features.clear()
    examples = _Examples(
        network.head_inputs(model, run.dataset.train_x, on_features),
        network.head_inputs(model, run.dataset.test_x),
    )
    if network.front is not None:
        _last_features[key] = examples
    return examples


_last_features: dict[tuple[str, FeatureSpec | None, float | None], _Examples] = {}


def _train(
    run: PreparedRun,
    model: nn.Module,
    examples: _Examples,
    evaluations: int,
    folder: Path | None,
    resume: bool,
    on_step: OnStep | None,
    ranks: Ranks,
) -> FitResult:
    """The one way from a preparation to a trained model: of ``dpvd train`` and the experiments."""

    def measure(trained: nn.Module) -> dict[str, float]:
        return evaluate(trained, examples.test_x, run.dataset.test_y)

    return fit(
        run.network.trained(model),
        (examples.train_x, run.dataset.train_y),
        run.plan,
        run.recipe,
        delta=run.options.delta,
        accountant=run.options.accountant,
        evaluate=measure if len(examples.test_x) else None,
        evaluations=evaluations,
        folder=folder,
        resume=resume,
        generator=torch.Generator().manual_seed(run.options.seed),
        on_step=on_step,
        micro_batch=run.network.micro_batch,
        shared=run.network.front is not None,  # a linear layer reads its inputs only
        group=ranks.group,
    )


def _test(run: PreparedRun, model: nn.Module, examples: _Examples) -> dict[str, Any]:
    """What the trained model is worth on the test data, if there is any."""
    if not len(run.dataset.test_x):
        return dict(NOT_MEASURED)
    trained = run.network.trained(model)
    probabilities, _ = predict_dist(trained, examples.test_x, samples=SAMPLES)
    if not torch.isfinite(probabilities).all():
        raise DpvdError(
            "training diverged, the outputs are not finite: lower --learning-rate or --kl-weight"
        )
    return test_metrics(probabilities, run.dataset.test_y, SAMPLES)


def _record(
    run: PreparedRun,
    model: nn.Module,
    result: FitResult,
    test: dict[str, Any],
    checksum: str,
    draw: Draw | None,
    sets: PredictionSets | None,
) -> RunRecord:
    dataset = run.dataset
    guarantee = _with_gaps(result.guarantee, run.not_covered)
    trained = run.network.trained(model)
    has_alpha = run.network.is_pruned_by_noise
    return RunRecord(
        method=str(run.options.method),
        seed=run.options.seed,
        dataset={
            "name": dataset.name,
            "train": len(dataset.train_x),
            "test": len(dataset.test_x),
            **({} if run.kept is None else {"calibration": len(run.kept.y)}),
            "classes": dataset.classes,
            "checksum": dataset.checksum,
            "preprocessing": f"{dataset.preprocessing}; {run.network.describe_inputs()}",
            **({"class_names": list(run.class_names)} if run.class_names else {}),
        },
        model={
            "network": run.network.to_dict(),
            "layers": _layers(model, trained),
            "parameters": run.network.parameters,
            "checksum": checksum,
        },
        plan=run.plan.to_dict(),
        recipe=run.recipe.to_dict(),
        guarantee=(guarantee if draw is None else draw.stated(guarantee)).to_dict(),
        history=[_finite_values(entry) for entry in result.history],
        test=test,
        alpha=alpha_histograms(trained) if has_alpha else {},
        sparsity=sparsity_counts(trained) if has_alpha else {},
        seconds=result.seconds,
        environment=environment(),
        created=now(),
        version=__version__,
        releases=[] if run.kept is None else _releases(run, run.kept, result.guarantee.steps),
        prediction_sets={} if sets is None else sets.to_dict(),
    )


def _release_sets(
    run: PreparedRun, kept: Calibration, model: nn.Module, folder: Path, *, resume: bool
) -> PredictionSets:
    """Release what prediction sets need; a run that goes on takes what it has paid for."""
    trained = run.network.trained(model)
    keeper = KeptReleases(
        folder,
        lambda _: "prediction-sets",
        resume,
        lambda plan, name: charge_release(trained, plan, name),
    )
    inputs = run.network.head_inputs(model, kept.x)
    return release_sets(trained, inputs, kept, keeper)


def _joint(
    run: PreparedRun,
    kept: Calibration,
    model: nn.Module,
    result: FitResult,
    sets: PredictionSets,
) -> Guarantee:
    """The statement for training and the release together."""
    account = Account(run.network.trained(model), run.plan, announce=False)
    source = result.guarantee.noise_source
    joint = account.guarantee(run.options.delta, run.options.accountant, source)
    words = (
        f"one step is a release of scores for prediction sets, of {len(kept.y)} examples that no"
        f" other step was taken on; its noise lowers the coverage of the sets by"
        f" {round_up(sets.lost())} at most"
    )
    return replace(joint, seen=(*(joint.seen or ()), words))


def _releases(run: PreparedRun, kept: Calibration, steps: int) -> list[dict[str, Any]]:
    """Training and the release for prediction sets, each with what it costs of the budget."""
    assert run.options.prediction_sets is not None
    share = run.options.prediction_sets
    return [
        _release("training", run.plan, steps - 1, 1 - share),
        _release("prediction sets", kept.plan, 1, share),
    ]


def _release(name: str, plan: PrivacyPlan, steps: int, share: float) -> dict[str, Any]:
    return {
        "name": name,
        "noise_multiplier": plan.noise_multiplier,
        "steps": steps,
        "share": share,
        "plan": plan.to_dict(),
    }


def _with_gaps(guarantee: Guarantee, not_covered: tuple[str, ...]) -> Guarantee:
    return replace(guarantee, not_covered=guarantee.not_covered + not_covered)


def _finite_values(entry: dict[str, float]) -> dict[str, float | None]:
    """JSON has no infinity: a run without privacy has no ε, a step that overflowed no loss."""
    kept: dict[str, float | None] = {}
    for name, value in entry.items():
        kept[name] = value if math.isfinite(value) else None
    return kept


def _layers(model: nn.Module, trained: nn.Module) -> list[str]:
    """The trained layers, after the features if there are any."""
    lines = [f"{name}: {_describe(layer)}" for name, layer in trained.named_children()]
    if trained is not model:
        features = model.get_submodule("features")
        lines = [f"features: {_describe(features)}", *lines]
    return lines


def _describe(layer: nn.Module) -> str:
    name = type(layer).__name__
    match layer:
        case FeatureExtractor():
            return f"{layer.spec.kind} {layer.spec.inputs}→{layer.spec.outputs}, not trained"
        case nn.Linear():
            return f"{name} {layer.in_features}→{layer.out_features}"
        case nn.Conv2d():
            kernel = "×".join(str(size) for size in layer.kernel_size)
            return f"{name} {layer.in_channels}→{layer.out_channels} of {kernel}"
        case _:
            return name
