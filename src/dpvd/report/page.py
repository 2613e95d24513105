"""The report of a run: one HTML page that needs nothing but itself, and the figures as files.

Everything here is a pure function of the run's ``RunRecord``, of what was declared beside it, and
of whether its folder held: the same record gives the same page.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from dpvd.audit import AuditResult
from dpvd.errors import is_finite_number
from dpvd.files import remove_partials, write_atomically
from dpvd.privacy import round_up
from dpvd.report.audited import illustrate_audit, measured_words
from dpvd.report.declared import declared_for
from dpvd.report.facts import NOT_DECLARED, check_declared, is_measured, table_of
from dpvd.report.figures import Illustration, illustrate, write_figures
from dpvd.report.sections import cells, common
from dpvd.report.statement_page import STATEMENT, render_statement
from dpvd.report.svg import inline_svg
from dpvd.report.templates import template
from dpvd.report.wording import method_words, percent, plain
from dpvd.runs import FIGURES, REPORT, RunRecord, read_audit, verify_run

__all__ = ["render", "write_pages"]


def render(
    record: RunRecord,
    declared: Mapping[str, str] | None = None,
    verdict: str | None = None,
    audit: AuditResult | None = None,
) -> str:
    """Return the report as one self-contained HTML page, for the holder of the data.

    Guarantees: every text of the record is escaped; the page loads nothing from anywhere and runs
    no script; a run without a finite ε says "Not differentially private" at the top, and one whose
    noise can be repeated says for whom it is not private. What must not be passed on is named.

    Args:
        record: the run's record.
        declared: what people said of the release; what the record holds of it if None.
        verdict: whether the folder of the run held, in the words of `verify_run`; None if nobody
            looked.
        audit: what an audit of the run's plan found; None if there was none.

    Returns:
        HTML, starting with its doctype.

    Raises:
        DpvdError: if a declaration has an unknown name or no words.
    """
    said = declared_for(record) if declared is None else check_declared(declared)
    return _render(record, illustrate(record), said, verdict, audit)


def write_pages(record: RunRecord, folder: Path | str) -> Path:
    """Write both pages and the figures into a run's folder and return the path of the report.

    ``report.html`` is for the holder of the data, ``statement.html`` beside it to hand out. Both
    hold what ``declared.toml`` in the folder says, and the report what an audit found.

    Guarantees: each file appears complete or not at all; the report comes last.

    Raises:
        DpvdError: if they cannot be written, a declaration is none, or the audit in the folder is
            damaged or of another plan.
    """
    place = Path(folder)
    declared = declared_for(record, place)
    illustrations = illustrate(record)
    page = place / REPORT
    verdict = _verdict(place)
    audit = read_audit(place, record)
    content = _render(record, illustrations, declared, verdict, audit).encode("utf-8")
    remove_partials(place / FIGURES)
    audited = [] if audit is None else [illustrate_audit(audit)]
    write_figures([*illustrations, *audited], place / FIGURES)
    statement = render_statement(record, declared)
    write_atomically(place / STATEMENT, statement.encode("utf-8"))
    write_atomically(page, content)
    return page


def _render(
    record: RunRecord,
    illustrations: Sequence[Illustration],
    declared: Mapping[str, str],
    verdict: str | None,
    audit: AuditResult | None,
) -> str:
    drawings = [_drawing(each) for each in illustrations]
    return template("page.html").render(
        **common(record, declared, with_test=True),
        title=_title(record),
        subtitle=_subtitle(record),
        tiles=_tiles(record),
        held=_held(record),
        verdict=verdict,
        audited=None if audit is None else _audited(record, audit),
        drawings=drawings,
        tables=_tables(record),
        layers=[str(line) for line in record.model["layers"]],
        record=json.dumps(record.to_dict(), indent=2, ensure_ascii=False),
    )


def _drawing(illustration: Illustration) -> tuple[Illustration, Markup]:
    """A figure, and what the page holds of it."""
    return illustration, inline_svg(illustration.svg, illustration.name, illustration.description)


def _audited(record: RunRecord, audit: AuditResult) -> dict[str, Any]:
    """What the page tells of an audit."""
    steps = audit.details.get("steps_per_run")
    planned = record.plan.get("steps")
    return {
        "consistent": audit.is_consistent,
        "verdict": str(audit.verdict),
        "claimed": round_up(audit.claimed_epsilon),
        "measured": measured_words(audit),
        "part": "" if steps == planned else f"the first {plain(steps)} of {plain(planned)} steps",
        "rows": cells(
            {
                "attack": audit.attack,
                "bound": audit.bound,
                "confidence": audit.confidence,
                "trials": audit.trials,
                "seconds": round(audit.seconds, 1),
            }
        ),
        "drawing": _drawing(illustrate_audit(audit)),
    }


def _verdict(folder: Path) -> str:
    """Whether the folder holds; without its own path, which tells of the machine."""
    if not folder.is_dir():
        return "not verified: there was no folder of a run"
    return verify_run(folder).verdict.replace(f"{folder}{os.sep}", "")


def _held(record: RunRecord) -> str:
    """What of the page must not be passed on."""
    parts = ["the name of the data"]
    if record.plan.get("secret_size"):
        parts.insert(0, "the exact number of examples")
    if record.dataset.get("checksum"):
        parts.insert(0, "a checksum of the data")
    if is_measured(record):
        parts.insert(0, "exact results on the test data")
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def _title(record: RunRecord) -> str:
    test = record.test
    start = "Trained"
    if is_finite_number(test.get("accuracy")):
        start = f"{percent(test['accuracy'])} test accuracy"
    elif is_finite_number(test.get("rmse")):
        start = f"Test error {test['rmse']:.4g} (RMSE)"
    if not record.is_private:
        return f"{start}, without privacy" if start != "Trained" else "Trained without privacy"
    return f"{start} at ε = {round_up(record.guarantee['epsilon'])}"


def _subtitle(record: RunRecord) -> list[str]:
    created = record.created.replace("T", " ").replace("Z", " UTC")
    return [str(record.dataset["name"]), method_words(record), created]


def _tiles(record: RunRecord) -> list[tuple[str, str, str]]:
    """The few numbers a reader looks for first, as (name, value, note)."""
    spent = "∞"
    condition = "no limit on what the model may reveal"
    if record.is_private:
        spent = round_up(record.guarantee["epsilon"])
        condition = f"at δ = {record.guarantee['delta']:g}"
    first, *others = _result_tiles(record.test, _target_unit(record))
    return [
        first,
        ("Privacy spent, ε", spent, condition),
        *others,
        ("Training time", _duration(record.seconds), ""),
    ]


def _target_unit(record: RunRecord) -> str:
    """What a regression's numbers count, as the schema says."""
    schema = (table_of(record).get("encoder") or {}).get("schema") or {}
    return str((schema.get("target") or {}).get("unit") or "the unit of the target")


def _result_tiles(test: Mapping[str, Any], unit: str) -> list[tuple[str, str, str]]:
    """What was measured on test data; one tile that says so if nothing was."""
    tiles = []
    if is_finite_number(test.get("accuracy")):
        low, high = test["interval"]
        interval = f"95\N{NO-BREAK SPACE}% interval {percent(low)} to {percent(high)}"
        tiles.append(("Test accuracy", percent(test["accuracy"]), interval))
    if is_finite_number(test.get("rmse")):
        note = f"root mean squared, in {unit}"
        tiles.append(("Test error", f"{test['rmse']:.4g}", note))
    if is_finite_number(test.get("auc")):
        note = "chance that a random positive scores above a random negative"
        tiles.append(("Test AUC", f"{test['auc']:.3f}", note))
    if is_finite_number(test.get("calibration_error")):
        note = "mean gap between confidence and accuracy"
        tiles.append(("Calibration error", percent(test["calibration_error"]), note))
    if is_finite_number(test.get("coverage")):
        note = "of test targets lie in their 90\N{NO-BREAK SPACE}% interval"
        tiles.append(("Interval coverage", percent(test["coverage"]), note))
    return tiles or [("Test result", "not measured", "there were no test data")]


def _duration(seconds: float) -> str:
    """Print a time span: 12.3 s, 4 min 05 s, 2 h 07 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _tables(record: RunRecord) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """The tables of the page, as (heading, one line on it, rows); empty ones are skipped."""
    plan = dict(record.plan)
    if plan.get("tuned", ()) is None:
        plan["tuned"] = NOT_DECLARED
    if "accountant" in record.guarantee:
        plan["accountant"] = record.guarantee["accountant"]
    recipe = record.recipe.items()
    run = {
        "method": record.method,
        "seed": record.seed,
        "version": record.version,
        "created": record.created,
        **{"learnt by" if name == "method" else name: value for name, value in recipe},
    }
    test = {key: value for key, value in record.test.items() if isinstance(value, int | float)}
    pruning = {
        key: value for key, value in record.sparsity.get("total", {}).items() if key != "name"
    }
    model = {"parameters": record.model.get("parameters"), **pruning}
    table = {key: value for key, value in table_of(record).items() if _is_short(value)}
    named: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
        (
            "Privacy plan",
            "Of the steps. What ran is what was accounted: engine and accountant read this plan.",
            plan,
        ),
        ("How it was trained", "The settings of the training run.", run),
        ("Test results", "Measured on the test examples.", test),
        ("Model", "Parameters, and weights that pruning would remove.", model),
        ("Data", "The checksum identifies the exact data: keep it to yourself.", record.dataset),
        ("Table", "What one row is.", table),
        ("Environment", "Where it ran.", record.environment),
    )
    return [(name, note, cells(rows)) for name, note, rows in named if rows]


def _is_short(value: object) -> bool:
    """Whether a value fits into a cell; a schema does not, and stands in the record."""
    return isinstance(value, str | int | float | list) and len(str(value)) <= 200
