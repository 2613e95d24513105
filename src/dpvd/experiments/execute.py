"""Running one spec."""

import math
import platform
from collections.abc import Callable

import torch

from dpvd import __version__
from dpvd.data import Dataset
from dpvd.experiments.prepare import prepare
from dpvd.experiments.result import ExperimentResult
from dpvd.experiments.spec import Spec
from dpvd.plan import PrivacyPlan
from dpvd.privacy import AccountantName, round_up
from dpvd.runs import PreparedRun, train_and_evaluate
from dpvd.training import FitResult, Progress

__all__ = ["epsilons_of", "run_spec"]

MOST_POINTS = 400  # of a curve
WASTEFUL = 0.5  # share of the budget below which an accountant's noise is called needless


def run_spec(
    spec: Spec, dataset: Dataset, *, on_step: Callable[[Progress], None] | None = None
) -> ExperimentResult:
    """Train as a spec says, measure after every epoch, and return the record.

    Guarantees: the same spec gives the same record on the same machine, times apart.

    Args:
        spec: the experiment.
        dataset: the data set that it names.
        on_step: called after every step.

    Raises:
        DpvdError: if the settings contradict the data.
    """
    run = prepare(spec, dataset)
    result = train_and_evaluate(run, evaluations=_evaluations(run.plan), on_step=on_step)
    return _record(spec, run, result)


def epsilons_of(spec: Spec, plan: PrivacyPlan) -> dict[str, float]:
    """ε of a plan by the accountant that calibrated it, and by the tightest one.

    Edge cases: {} for an experiment without privacy.
    """
    if spec.accountant is None:
        return {}
    return {
        str(name): plan.epsilon(spec.delta, name) for name in (spec.accountant, AccountantName.PLD)
    }


def _record(spec: Spec, run: PreparedRun, result: FitResult) -> ExperimentResult:
    curve = [[point["epoch"], point["test_accuracy"]] for point in result.history]
    epsilons = epsilons_of(spec, run.plan)
    notes = _notes(spec, epsilons)
    if not math.isfinite(result.history[-1]["test_loss"]):
        notes.append("training diverged")
    return ExperimentResult(
        spec=spec,
        curve=curve,
        accuracy=curve[-1][1],
        examples=len(run.dataset.test_y),
        epsilons=epsilons,
        notes=notes,
        plan=run.plan.to_dict(),
        recipe=run.recipe.to_dict(),
        seconds=result.seconds,
        versions={
            "dpvd": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    )


def _notes(spec: Spec, epsilons: dict[str, float]) -> list[str]:
    if spec.accountant is None or spec.epsilon is None:
        return []
    notes = []
    if spec.accountant is AccountantName.ZCDP:
        notes.append(
            "zCDP is not amplified by subsampling; the noise is calibrated with its truncated form,"
            " which is"
        )
    spent = epsilons[AccountantName.PLD]
    if spent < WASTEFUL * spec.epsilon:
        notes.append(
            f"the {spec.accountant} accountant asks for more noise than needed: ε spent is"
            f" {round_up(spent)}"
        )
    return notes


def _evaluations(plan: PrivacyPlan) -> int:
    """One for each epoch; one for each step where a step is an epoch."""
    epochs = round(plan.steps * plan.batch_size / plan.examples)
    return max(1, min(epochs, plan.steps, MOST_POINTS))
