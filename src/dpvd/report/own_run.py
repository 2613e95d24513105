"""A model that was trained from Python, written as ``dpvd train`` writes one."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from dpvd.errors import DpvdError
from dpvd.plan import PrivacyPlan
from dpvd.privacy import Guarantee
from dpvd.report.page import write_pages
from dpvd.runs import (
    RECORD,
    REPORT,
    RunRecord,
    charged_in,
    own_record,
    save_own_model,
    write_manifest,
)
from dpvd.training import FitResult, Recipe

__all__ = ["write_report", "write_run"]


def write_report(result: RunRecord | FitResult, folder: Path | str) -> Path:
    """Write both pages and the figures of a run into its folder; return the path of the report.

    ``report.html`` is for the holder of the data, ``statement.html`` beside it to hand out. Of a
    result of ``dpvd.fit``, model and record are written as well, by the ledger that is in the
    folder; `write_run` takes more of what there is to say.

    Guarantees: each file appears complete or not at all; the report comes last.

    Args:
        result: the record of a run, or what ``dpvd.fit`` gave back.
        folder: of the run.

    Raises:
        DpvdError: if they cannot be written, a declaration is none, or there is no ledger of one
            plan in the folder of a result.
    """
    place = Path(folder)
    if isinstance(result, RunRecord):
        return write_pages(result, place)
    if not isinstance(result, FitResult):
        raise DpvdError(
            "write_report takes a RunRecord, or the result of dpvd.fit, got"
            f" {type(result).__name__}: after a loop of your own, call write_run"
        )
    plans = [plan for plan, _ in charged_in(place).plans]
    if len(plans) != 1:
        raise DpvdError(
            f"there is no ledger of one plan in {place}: name the folder that dpvd.fit was given,"
            " or call write_run with the plan"
        )
    write_run(place, result.model, result, plans[0], name=place.name)
    return place / REPORT


def write_run(
    folder: Path | str,
    model: nn.Module,
    result: FitResult | Guarantee,
    plan: PrivacyPlan,
    *,
    name: str,
    recipe: Recipe | None = None,
    test: tuple[Tensor, Tensor] | Mapping[str, float] | None = None,
) -> RunRecord:
    """Write model, record and pages of a model that was trained from Python.

    ``dpvd show`` and ``dpvd compare`` read the folder, ``dpvd.runs.load_own_model`` the weights.

    Guarantees: nothing is written if something does not fit. A record that is there already is not
    replaced.

    Args:
        folder: of the run: new, or the one that ``dpvd.fit`` was given.
        model: any module, trained.
        result: of ``dpvd.fit``; or, after a loop of one's own, ``step.guarantee(delta)``.
        plan: under which it was trained.
        name: of the data, in words; it stands in the report and not on the page to hand out.
        recipe: how it was optimised, if there is a recipe.
        test: inputs and classes of test data, for a model that returns logits; or results that
            were computed elsewhere, by name (``{"rmse": 1.2}``). They are exact, not private.

    Raises:
        DpvdError: if model, result and plan do not belong together, or the folder cannot be
            written or holds a record.
    """
    place = Path(folder)
    if (place / RECORD).exists():
        raise DpvdError(f"{place} holds a finished run already: choose another folder")
    record = own_record(model, result, plan, name=name, recipe=recipe, test=test)
    checksum = save_own_model(model, place)
    record = replace(record, model={**record.model, "checksum": checksum})
    record.write(place)
    write_manifest(place)
    write_pages(record, place)
    return record
