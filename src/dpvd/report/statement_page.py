"""The page to hand out: what a run promises, and nothing that nobody protected.

It holds statement, reading, settings and checklist. It holds no checksum, no name of a file or a
data set, no number of test examples, and no result on test data unless it is asked for.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpvd.files import HANDED_OUT, write_atomically
from dpvd.privacy import round_up
from dpvd.report.facts import check_declared, is_measured
from dpvd.report.sections import Rows, cells, common
from dpvd.report.templates import template
from dpvd.report.wording import method_words
from dpvd.runs import RunRecord

__all__ = ["STATEMENT", "render_statement", "write_statement"]

STATEMENT = "statement.html"
"""Name of the file in a run's folder."""

_TEST_NUMBERS = (
    "accuracy",
    "interval",
    "calibration_error",
    "loss",
    "auc",
    "rmse",
    "mae",
    "coverage",
)


def render_statement(
    record: RunRecord, declared: Mapping[str, str] | None = None, *, with_test: bool = False
) -> str:
    """Return the page to hand out, self-contained HTML.

    Guarantees: nothing on it was computed from the data without noise, beside what the statement
    itself names as public or as not covered; and beside results on test data, if they are asked
    for.

    Args:
        record: the run's record.
        declared: what people said of the release; see ``dpvd.report.facts.DECLARATIONS``.
        with_test: show results on test data: for test data that is public.

    Raises:
        DpvdError: if a declaration has an unknown name or no words.
    """
    said = check_declared(declared or {})
    return template("statement.html").render(
        **common(record, said, with_test=with_test),
        title=_title(record),
        subtitle=_subtitle(record, said),
        tables=_tables(record, with_test),
        with_test=with_test and is_measured(record),
    )


def write_statement(
    path: Path | str,
    record: RunRecord,
    declared: Mapping[str, str] | None = None,
    *,
    with_test: bool = False,
) -> Path:
    """Write the page to hand out as one file, whole or not at all, and return its path.

    Raises:
        DpvdError: as :func:`render_statement`, or if it cannot be written.
    """
    place = Path(path)
    page = render_statement(record, declared, with_test=with_test)
    write_atomically(place, page.encode("utf-8"), mode=HANDED_OUT)
    return place


def _title(record: RunRecord) -> str:
    if not record.is_private:
        return "Not differentially private"
    epsilon = round_up(record.guarantee["epsilon"])
    return f"Private at ε = {epsilon}, δ = {record.guarantee['delta']:g}"


def _subtitle(record: RunRecord, declared: Mapping[str, str]) -> list[str]:
    day = record.created.partition("T")[0]
    known = [declared.get("name"), declared.get("owner"), method_words(record), day]
    return [part for part in known if part]


def _tables(record: RunRecord, with_test: bool) -> list[tuple[str, str, Rows]]:
    """The tables of the page, as (heading, one line on it, rows); empty ones are skipped."""
    # Declarations stand in the checklist; a seed would tell the noise.
    plan = cells(record.plan, without=("tuned", "public", "seed"))
    test: dict[str, Any] = {}
    if with_test:
        test = {
            name: record.test[name] for name in _TEST_NUMBERS if record.test.get(name) is not None
        }
    named = (
        ("Privacy plan", "Of the steps. What ran is what was accounted.", plan),
        ("How it was trained", "The settings of the optimisation.", cells(record.recipe)),
        ("Test results", "Exact, on test data that was declared public.", cells(test)),
    )
    return [(name, note, rows) for name, note, rows in named if rows]
