"""Parts that the page of a run and the page to hand out have in common."""

from collections.abc import Mapping, Sequence
from typing import Any

from dpvd.errors import is_finite_number
from dpvd.privacy import interpret, round_down
from dpvd.report.checklist import checklist
from dpvd.report.facts import NOT_DECLARED, releases_of, statement_facts
from dpvd.report.lay_reading import lay_reading, percent_up
from dpvd.report.wording import (
    guess_limit,
    label,
    noise_warning,
    percent,
    plain,
    promises,
    uncovered,
)
from dpvd.runs import RunRecord, event_of

__all__ = ["cells", "common", "reading"]

Rows = list[tuple[str, str]]

_SIGNED = {
    "owner": "Holder of the data",
    "purpose": "Purpose",
    "approval": "Approved by",
    "publication_date": "Date of release",
}

_LABELS = {
    "mean": "share for the mean",
    "second": "share for products of features",
    "cross": "share for products with the target",
    "calibration": "share for calibration",
    "training": "share for training",
    "constant": "constant added to rows",
    "auc": "AUC",
    "rmse": "root mean squared error",
    "mae": "mean absolute error",
    "coverage": "coverage of 90\N{NO-BREAK SPACE}% intervals",
    "brier": "Brier score",
    "cpus": "CPUs",
}
"""Names of a record that say too little as they are."""


def common(record: RunRecord, declared: Mapping[str, str], *, with_test: bool) -> dict[str, Any]:
    """Return what both pages show, by the names that their templates use."""
    facts = statement_facts(record, declared, with_test=with_test)
    unit = str(record.guarantee.get("unit") or "example")
    return {
        "private": record.is_private,
        "gaps": bool(record.guarantee.get("not_covered")),
        "noise_warning": noise_warning(record),
        "statement": record.guarantee["sentence"],
        "promises": promises(record),
        "uncovered": uncovered(record, with_test=with_test),
        "unit": unit,
        "reading": reading(record),
        "releases": _releases(record),
        "answers": checklist(record, declared, with_test=with_test),
        "signed": _signed(facts),
        "version": record.version,
    }


def reading(record: RunRecord) -> list[str]:
    """Return the guarantee in sentences for laypeople; nothing for a run without privacy.

    Guarantees: computed from everything that touched the data. Where the record does not tell all
    of it apart, ε and δ of the statement alone are read, which bound less.
    """
    if not record.is_private:
        return []
    guarantee = record.guarantee
    delta = float(guarantee["delta"])
    event = event_of(record)
    if event is None or delta == 0:
        limit = percent_up(guess_limit(float(guarantee["epsilon"]), delta))
        return [
            f"Somebody who would otherwise toss a coin on whether one"
            f" {guarantee.get('unit') or 'example'} was used is right at most {limit} of the time."
            " This follows from ε and δ alone; closer limits may hold, but were not computed."
        ]
    relation = guarantee["relation"]
    numbers = interpret(event, delta, relation=relation)
    return lay_reading(numbers, unit=str(guarantee.get("unit") or "example"), relation=relation)


def _releases(record: RunRecord) -> list[tuple[str, str, str, str]]:
    """Return the parts of the budget as (name, noisy sums, noise multiplier of each, share)."""
    rows = []
    for entry in releases_of(record):
        noise = entry.get("noise_multiplier")
        rows.append(
            (
                str(entry.get("name")),  # with a column's own name
                plain(entry.get("steps")),
                round_down(noise) if is_finite_number(noise) else plain(noise),
                percent(entry.get("share"), 0),
            )
        )
    return rows


def _signed(facts: Mapping[str, str]) -> Rows:
    """Return the lines of the signature: what was declared, or a blank to write on."""
    return [
        (title, "" if facts[name] == NOT_DECLARED else facts[name])
        for name, title in _SIGNED.items()
    ]


def cells(rows: Mapping[str, Any], without: Sequence[str] = ()) -> Rows:
    """Return names and values as a table shows them; what a run does not have is left out."""
    return [
        (_LABELS.get(key) or label(key), plain(value))
        for key, value in rows.items()
        if key not in without and value is not None
    ]
