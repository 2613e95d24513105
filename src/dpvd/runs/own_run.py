"""The record of a model that was trained from Python, under a plan, by whatever loop."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from dpvd import __version__
from dpvd.errors import DpvdError, is_finite_number, phrase
from dpvd.files import write_atomically
from dpvd.plan import PrivacyPlan
from dpvd.privacy import Guarantee
from dpvd.runs.environment import environment, now
from dpvd.runs.manifest import intact_record
from dpvd.runs.metrics import predict_dist, test_metrics
from dpvd.runs.record import RunRecord
from dpvd.runs.run_dir import MODEL
from dpvd.training import FitResult, Recipe, entries_of, remember

__all__ = ["OWN", "load_own_model", "own_record", "save_own_model"]

OWN = "own"
"""Method, and kind of network, of a run that no command of ours made."""

SAMPLES = 32  # of the weights, for the test

Test = tuple[Tensor, Tensor] | Mapping[str, float]


def own_record(
    model: nn.Module,
    result: FitResult | Guarantee,
    plan: PrivacyPlan,
    *,
    name: str,
    recipe: Recipe | None = None,
    test: Test | None = None,
) -> RunRecord:
    """Return the record of a model that was trained under a plan.

    Guarantees: the statement is the one that is given, and it is for all steps that the model's
    account knows of. A statement of a plan that nobody carried out is refused.

    Args:
        model: any module, trained.
        result: of ``dpvd.fit``; or, after a loop of one's own, ``step.guarantee(delta)``.
        plan: under which it was trained.
        name: of the data, in words; it stands in the report.
        recipe: how it was optimised, if there is a recipe.
        test: inputs and classes of test data, for a model that returns logits; or results that
            were computed elsewhere, by name.

    Raises:
        DpvdError: if these do not belong together.
    """
    fitted = result if isinstance(result, FitResult) else None
    guarantee = result.guarantee if isinstance(result, FitResult) else result
    _check(model, fitted, guarantee, plan)
    return RunRecord.from_dict(
        RunRecord(
            method=OWN,
            seed=0,
            dataset={
                "name": phrase(name, "name"),
                "train": plan.examples,
                "test": len(test[0]) if isinstance(test, tuple) else 0,
                "preprocessing": "done by the program that trained, and not seen by this one",
            },
            model={
                "network": {"kind": OWN, "class": type(model).__name__},
                "layers": _layers(model),
                "parameters": sum(parameter.numel() for parameter in model.parameters()),
            },
            plan=plan.to_dict(),
            recipe={} if recipe is None else recipe.to_dict(),
            guarantee=guarantee.to_dict(),
            history=[] if fitted is None else [_finite(entry) for entry in fitted.history],
            test=_test(model, test),
            seconds=0.0 if fitted is None else fitted.seconds,
            environment=environment(),
            created=now(),
            version=__version__,
        ).to_dict()
    )


def _check(
    model: nn.Module, fitted: FitResult | None, guarantee: Guarantee, plan: PrivacyPlan
) -> None:
    """Raise unless model, statement and plan are of the same training."""
    if fitted is not None and fitted.model is not model:
        raise DpvdError("the result is of another model: give result.model")
    if guarantee.seen is None:
        raise DpvdError(
            "this is the statement of a plan that nobody carried out: give the result of dpvd.fit,"
            " or step.guarantee(delta) after the last step"
        )
    entries = [entry for entry in entries_of(model).values() if not entry["other_data"]]
    if all(entry["plan"] != plan.to_dict() for entry in entries):
        raise DpvdError("the model was not trained under this plan: give the plan of its steps")
    charged = sum(entry["charged"] for entry in entries)
    if charged != guarantee.steps:
        raise DpvdError(
            f"{charged} steps were charged to the model, and the statement is for"
            f" {guarantee.steps}: ask for the guarantee after the last step"
        )


def _layers(model: nn.Module) -> list[str]:
    children = [f"{name}: {type(layer).__name__}" for name, layer in model.named_children()]
    return children or [type(model).__name__]


def _finite(entry: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has no infinity."""
    return {name: value if is_finite_number(value) else None for name, value in entry.items()}


def _test(model: nn.Module, test: Test | None) -> dict[str, Any]:
    if test is None:
        return {}
    if isinstance(test, Mapping):
        for name, value in test.items():
            if not is_finite_number(value) and name != "interval":
                raise DpvdError(f"test: {name} must be a finite number, got {value!r}")
        return dict(test)
    x, y = test
    probabilities, _ = predict_dist(model, x, samples=SAMPLES)
    if probabilities.dim() != 2 or not torch.isfinite(probabilities).all():
        raise DpvdError(
            "test: the model must return finite logits, one row for each example; for other models,"
            " give results by name, such as {'rmse': 1.2}"
        )
    return test_metrics(probabilities, y, SAMPLES)


def save_own_model(model: nn.Module, folder: Path) -> str:
    """Write the tensors of a model into a run's folder and return the SHA-256 of the file."""
    # Copies: the format does not hold two names of one tensor.
    state = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
    content = save({name: tensor.contiguous() for name, tensor in state.items()})
    write_atomically(folder / MODEL, content)
    return hashlib.sha256(content).hexdigest()


def load_own_model(model: nn.Module, folder: Path | str) -> RunRecord:
    """Load weights that ``dpvd.report.write_run`` wrote, and go on counting from there.

    Args:
        model: of the same class and shape; changed in place and put into eval mode.
        folder: of the run.

    Raises:
        DpvdError: if there is no such run, its files are damaged, or the weights do not fit.
    """
    place = Path(folder)
    record = intact_record(place)
    path = place / MODEL
    try:
        model.load_state_dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise DpvdError(f"the model {path} cannot be read: {error}") from error
    except RuntimeError as error:  # other names or shapes of parameters
        raise DpvdError(f"the model {path} does not fit the module that was given") from error
    remember(model, PrivacyPlan.from_dict(record.plan), record.guarantee["steps"])
    model.eval()
    return record
