"""A run from its preparation to a folder: train, evaluate, record."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpvd import __version__
from dpvd.errors import DpvdError
from dpvd.privacy import Guarantee
from dpvd.runs.environment import environment, now
from dpvd.runs.manifest import write_manifest
from dpvd.runs.metrics import (
    NOT_MEASURED,
    alpha_histograms,
    evaluate,
    predict_dist,
    sparsity_counts,
    test_metrics,
)
from dpvd.runs.model_file import save_model
from dpvd.runs.prepare import PreparedRun
from dpvd.runs.record import RunRecord
from dpvd.runs.run_dir import MODEL, RECORD, create_run_dir, reopen_run_dir, write_key
from dpvd.training import FitResult, Progress, fit, has_begun

__all__ = ["execute", "train_and_evaluate"]

EVALUATIONS = 20  # on the way
SAMPLES = 32  # of the weights, at the end

OnStep = Callable[[Progress], None]


def execute(
    run: PreparedRun,
    folder: Path,
    *,
    resume: bool = False,
    on_step: OnStep | None = None,
) -> RunRecord:
    """Train, measure on the test data, and write model and record into the folder.

    Raises:
        DpvdError: if the folder holds a run already (and it is not to be resumed), or another run
            than this one (and it is): nothing is changed then. If training diverged: the steps stay
            charged.
    """
    # Before anything is written: it may not fit into memory.
    model = run.network.build(run.options.seed)
    started_with = run.options.to_dict()
    started_with["dataset"] = run.dataset.name
    started_with["checksum"] = run.dataset.checksum
    if resume:
        reopen_run_dir(folder, started_with)
        if (folder / RECORD).exists():
            return RunRecord.read(folder)  # finished: there is nothing to go on with
    else:
        create_run_dir(folder, started_with)
        if run.checksum_key is not None:
            write_key(folder, run.checksum_key)
    goes_on = resume and has_begun(folder)
    result = train_and_evaluate(run, model, folder=folder, resume=goes_on, on_step=on_step)
    test = _test(run, model)
    checksum = save_model(model, folder / MODEL)
    record = _record(run, result, test, checksum)
    record.write(folder)
    write_manifest(folder)
    return record


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

    The one way from a preparation to a trained model: of ``dpvd train`` and of the experiments.

    Args:
        run: network, data, plan and recipe.
        model: the network, if it is built already.
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
    train_x = run.network.inputs(run.dataset.train_x)
    test_x = run.network.inputs(run.dataset.test_x)

    def measure(trained: nn.Module) -> dict[str, float]:
        return evaluate(trained, test_x, run.dataset.test_y)

    return fit(
        model,
        (train_x, run.dataset.train_y),
        run.plan,
        run.recipe,
        delta=run.options.delta,
        accountant=run.options.accountant,
        evaluate=measure if len(test_x) else None,
        evaluations=evaluations,
        folder=folder,
        resume=resume,
        generator=torch.Generator().manual_seed(run.options.seed),
        on_step=on_step,
        micro_batch=run.network.micro_batch,
    )


def _test(run: PreparedRun, model: nn.Module) -> dict[str, Any]:
    """What the trained model is worth on the test data, if there is any."""
    if not len(run.dataset.test_x):
        return dict(NOT_MEASURED)
    test_x = run.network.inputs(run.dataset.test_x)
    probabilities, _ = predict_dist(model, test_x, samples=SAMPLES)
    if not torch.isfinite(probabilities).all():
        raise DpvdError(
            "training diverged, the outputs are not finite: lower --learning-rate or --kl-weight"
        )
    return test_metrics(probabilities, run.dataset.test_y, SAMPLES)


def _record(run: PreparedRun, result: FitResult, test: dict[str, Any], checksum: str) -> RunRecord:
    dataset = run.dataset
    model = result.model
    has_alpha = run.network.is_pruned_by_noise
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
            **({"class_names": list(run.class_names)} if run.class_names else {}),
        },
        model={
            "network": run.network.to_dict(),
            "layers": [f"{name}: {_describe(layer)}" for name, layer in model.named_children()],
            "parameters": run.network.parameters,
            "checksum": checksum,
        },
        plan=run.plan.to_dict(),
        recipe=run.recipe.to_dict(),
        guarantee=_with_gaps(result.guarantee, run.not_covered).to_dict(),
        history=[_finite_values(entry) for entry in result.history],
        test=test,
        alpha=alpha_histograms(model) if has_alpha else {},
        sparsity=sparsity_counts(model) if has_alpha else {},
        seconds=result.seconds,
        environment=environment(),
        created=now(),
        version=__version__,
    )


def _with_gaps(guarantee: Guarantee, not_covered: tuple[str, ...]) -> Guarantee:
    return replace(guarantee, not_covered=guarantee.not_covered + not_covered)


def _finite_values(entry: dict[str, float]) -> dict[str, float | None]:
    """JSON has no infinity: a run without privacy has no ε, a step that overflowed no loss."""
    kept: dict[str, float | None] = {}
    for name, value in entry.items():
        kept[name] = value if math.isfinite(value) else None
    return kept


def _describe(layer: nn.Module) -> str:
    name = type(layer).__name__
    match layer:
        case nn.Linear():
            return f"{name} {layer.in_features}→{layer.out_features}"
        case nn.Conv2d():
            kernel = "×".join(str(size) for size in layer.kernel_size)
            return f"{name} {layer.in_channels}→{layer.out_channels} of {kernel}"
        case _:
            return name
