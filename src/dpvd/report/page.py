"""The report of a run: one HTML page that needs nothing but itself, and the figures as files.

Everything here is a pure function of the run's ``RunRecord``: the same record gives the same page.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dpvd.files import write_atomically
from dpvd.privacy import round_up
from dpvd.report.figures import Illustration, illustrate, write_figures
from dpvd.report.svg import inline_svg
from dpvd.report.wording import label, noise_warning, percent, plain, promises, uncovered
from dpvd.runs import FIGURES, REPORT, RunRecord

__all__ = ["render", "write_report"]

_METHODS = {
    "dpvd": "private variational dropout (Algorithm 1)",
    "svi": "private stochastic variational inference",
    "dpsgd": "private stochastic gradient descent",
    "none": "ordinary training, without privacy",
}


def render(record: RunRecord) -> str:
    """Return the report as one self-contained HTML page.

    Guarantees: every text of the record is escaped; the page loads nothing from anywhere and runs
    no script; a run without a finite ε says "Not differentially private" at the top, and one whose
    noise can be repeated says for whom it is not private.

    Args:
        record: the run's record.

    Returns:
        HTML, starting with its doctype.
    """
    return _render(record, illustrate(record))


def write_report(record: RunRecord, folder: Path) -> Path:
    """Write page and figures into a run's folder and return the path of the page.

    Guarantees: each file appears complete or not at all; the page comes last.

    Raises:
        DpvdError: if they cannot be written.
    """
    illustrations = illustrate(record)
    page = folder / REPORT
    write_figures(illustrations, folder / FIGURES)
    write_atomically(page, _render(record, illustrations).encode("utf-8"))
    return page


def _render(record: RunRecord, illustrations: Sequence[Illustration]) -> str:
    environment = Environment(
        loader=PackageLoader("dpvd.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    drawings = [(each, inline_svg(each.svg, each.name, each.description)) for each in illustrations]
    page = environment.get_template("page.html")
    return page.render(
        title=_title(record),
        subtitle=_subtitle(record),
        private=record.is_private,
        noise_warning=noise_warning(record),
        statement=record.guarantee["sentence"],
        tiles=_tiles(record),
        promises=promises(record),
        uncovered=uncovered(record),
        drawings=drawings,
        tables=_tables(record),
        layers=[str(line) for line in record.model["layers"]],
        version=record.version,
        record=json.dumps(record.to_dict(), indent=2, ensure_ascii=False),
    )


def _title(record: RunRecord) -> str:
    start = "Test accuracy not measured"
    if record.test["accuracy"] is not None:
        start = f"{percent(record.test['accuracy'])} test accuracy"
    if not record.is_private:
        return f"{start}, without privacy"
    return f"{start} at ε = {round_up(record.guarantee['epsilon'])}"


def _subtitle(record: RunRecord) -> list[str]:
    created = record.created.replace("T", " ").replace("Z", " UTC")
    method = _METHODS.get(record.method, record.method)
    return [str(record.dataset["name"]), method, created]


def _tiles(record: RunRecord) -> list[tuple[str, str, str]]:
    """The few numbers a reader looks for first, as (name, value, note)."""
    test = record.test
    low, high = test["interval"] or (None, None)
    interval = f"95\N{NO-BREAK SPACE}% interval {percent(low)} to {percent(high)}"
    spent = "∞"
    condition = "no limit on what the model may reveal"
    if record.is_private:
        spent = round_up(record.guarantee["epsilon"])
        condition = f"at δ = {record.guarantee['delta']:g}"
    calibration = "mean gap between confidence and accuracy"
    return [
        ("Test accuracy", percent(test["accuracy"]), interval),
        ("Privacy spent, ε", spent, condition),
        ("Calibration error", percent(test["calibration_error"]), calibration),
        ("Training time", _duration(record.seconds), ""),
    ]


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
    if "accountant" in record.guarantee:
        plan["accountant"] = record.guarantee["accountant"]
    run = {
        "method": record.method,
        "seed": record.seed,
        "version": record.version,
        "created": record.created,
        **record.recipe,
    }
    test = {key: value for key, value in record.test.items() if isinstance(value, int | float)}
    model = {"parameters": record.model.get("parameters"), **record.sparsity.get("total", {})}
    named: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
        (
            "Privacy plan",
            "What ran is what was accounted: engine and accountant read this same plan.",
            plan,
        ),
        ("How it was trained", "The settings of the training run.", run),
        ("Test results", "Measured on the test examples.", test),
        ("Model", "Parameters, and weights that pruning would remove.", model),
        ("Data", "The checksum identifies the exact data.", record.dataset),
        ("Environment", "Where it ran.", record.environment),
    )
    return [(name, note, _cells(rows)) for name, note, rows in named if rows]


def _cells(rows: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(label(key), plain(value)) for key, value in rows.items()]
