"""The report of a run: one HTML page that needs nothing but itself, and the figures as files.

Everything here is a pure function of the run's record, a plain mapping as read from
``record.json``: the same record gives the same page. Fields may be missing; what is missing is left
out or named as such, and a guarantee that is missing is shown as no guarantee.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from dpvd.files import write_atomically
from dpvd.privacy import round_up
from dpvd.report.gallery import Illustration, illustrate, write_illustrations
from dpvd.report.inline import inline_svg
from dpvd.report.readings import Record, check_format, finite
from dpvd.report.wording import (
    is_private,
    label,
    noise_warning,
    percent,
    plain,
    promises,
    statement,
    uncovered,
)

__all__ = ["render", "write_report"]

_METHODS = {
    "dpvd": "private variational dropout (Algorithm 1)",
    "svi": "private stochastic variational inference",
    "dpsgd": "private stochastic gradient descent",
    "none": "ordinary training, without privacy",
}


def render(record: Record) -> str:
    """Return the report as one self-contained HTML page.

    Guarantees: every text of the record is escaped; the page loads nothing from anywhere and runs
    no script; a run without a finite ε says "Not differentially private" at the top, and one whose
    noise can be repeated says for whom it is not private.

    Edge cases: any field may be missing; a record without a guarantee counts as not private.

    Args:
        record: the run's record, of format 1.

    Returns:
        HTML, starting with its doctype.

    Raises:
        DpvdError: the record is no mapping, or of a format that this version cannot read.
    """
    check_format(record)
    return _render(record, illustrate(record))


def write_report(record: Record, folder: str | Path) -> Path:
    """Write ``report.html`` and ``figures/`` into a run's folder and return the path of the page.

    Guarantees: each file appears complete or not at all (written beside its place, then moved); the
        page
    comes last.

    Raises:
        DpvdError: the record is no mapping, or of a format that this version cannot read.
    """
    check_format(record)
    illustrations = illustrate(record)
    page = Path(folder) / "report.html"
    write_illustrations(illustrations, Path(folder) / "figures")
    write_atomically(page, _render(record, illustrations).encode("utf-8"))
    return page


def _render(record: Record, illustrations: Sequence[Illustration]) -> str:
    environment = Environment(
        loader=PackageLoader("dpvd.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    drawings = [(i, inline_svg(i.svg, i.name, i.description)) for i in illustrations]
    page = environment.get_template("page.html")
    return page.render(
        title=_title(record),
        subtitle=_subtitle(record),
        private=is_private(record),
        noise_warning=noise_warning(record),
        statement=statement(record),
        tiles=_tiles(record),
        promises=promises(record),
        uncovered=uncovered(record),
        drawings=drawings,
        tables=_tables(record),
        layers=[str(line) for line in (record.get("model") or {}).get("layers") or []],
        version=record.get("version"),
        record=json.dumps(record, indent=2, ensure_ascii=False),
    )


def _title(record: Record) -> str:
    accuracy = (record.get("test") or {}).get("accuracy")
    start = f"{percent(accuracy)} test accuracy" if finite(accuracy) else "A training run"
    if is_private(record):
        return f"{start} at ε = {round_up(record['guarantee']['epsilon'])}"
    return f"{start}, without privacy"


def _subtitle(record: Record) -> list[str]:
    method = str(record.get("method") or "")
    parts = [
        (record.get("dataset") or {}).get("name"),
        _METHODS.get(method, method),
        str(record.get("created") or "").replace("T", " ").replace("Z", " UTC"),
    ]
    return [str(part) for part in parts if part]


def _tiles(record: Record) -> list[tuple[str, str, str]]:
    """The few numbers a reader looks for first, as (name, value, note)."""
    test, guarantee = record.get("test") or {}, record.get("guarantee") or {}
    tiles = []
    if finite(test.get("accuracy")):
        low, high = test.get("interval") or (None, None)
        known = finite(low) and finite(high)
        note = f"95\N{NO-BREAK SPACE}% interval {percent(low)} to {percent(high)}" if known else ""
        tiles.append(("Test accuracy", percent(test["accuracy"]), note))
    if is_private(record):
        tiles.append(
            ("Privacy spent, ε", round_up(guarantee["epsilon"]), f"at δ = {guarantee['delta']:g}")
        )
    else:
        tiles.append(("Privacy spent, ε", "∞", "no limit on what the model may reveal"))
    if finite(test.get("calibration_error")):
        tiles.append(
            (
                "Calibration error",
                percent(test["calibration_error"]),
                "mean gap of confidence and accuracy",
            )
        )
    if finite(record.get("seconds")):
        tiles.append(("Training time", _duration(record["seconds"]), ""))
    return tiles


def _duration(seconds: float) -> str:
    """Print a time span: 12.3 s, 4 min 05 s, 2 h 07 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes} min {rest:02d} s"
        if minutes < 60
        else f"{minutes // 60} h {minutes % 60:02d} min"
    )


def _tables(record: Record) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """The tables of the page, as (heading, one line on it, rows); empty ones are left out."""
    guarantee = record.get("guarantee") or {}
    test = {
        key: value
        for key, value in (record.get("test") or {}).items()
        if isinstance(value, int | float)
    }
    model = (
        {"parameters": (record.get("model") or {}).get("parameters")} if record.get("model") else {}
    )
    pruned = (record.get("sparsity") or {}).get("total") or {}
    run = {key: record[key] for key in ("method", "seed", "version", "created") if key in record}
    run.update(record.get("recipe") or {})
    plan = dict(record.get("plan") or {})
    if "accountant" in guarantee:
        plan["accountant"] = guarantee["accountant"]
    named = (
        (
            "Privacy plan",
            "What ran is what was accounted: engine and accountant read this same plan.",
            plan,
        ),
        ("How it was trained", "The settings of the training run.", run),
        ("Test results", "Measured on the test examples.", test),
        ("Model", "Parameters, and weights that pruning would remove.", {**model, **pruned}),
        ("Data", "The checksum identifies the exact data.", record.get("dataset")),
        ("Environment", "Where it ran.", record.get("environment")),
    )
    return [
        (name, note, [(label(key), plain(item)) for key, item in rows.items()])
        for name, note, rows in named
        if rows
    ]
