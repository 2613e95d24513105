"""docs/trust.md tells of the faults that there are, and README of promises that tests hold."""

import re

from tools.trust_page import PAGE, page

from tests.docs.markdown import ROOT
from tests.docs.test_references import TESTS
from tests.faults.faults import FAULTS

README = (ROOT / "README.md").read_text(encoding="utf-8")
TRUST = PAGE.read_text(encoding="utf-8")
HEADING = "\n## Every promise of the README, and the test that holds it\n"
TEST = r"`(tests/[\w/]+\.py::[\w:]+)`"


def promises() -> list[str]:
    """The sentences of README under "What is promised", each without the name of its point."""
    section = README.partition("\n## What is promised\n")[2].partition("\n## ")[0]
    points = re.findall(r"^- \*\*.+?\*\* (.+?)(?=^- |^\n|\Z)", section, re.DOTALL | re.MULTILINE)
    text = " ".join(" ".join(points).split())
    return re.split(r"(?<=\.) ", text)


def held() -> dict[str, list[str]]:
    """By the sentence that docs/trust.md quotes, the tests that hold it."""
    section = TRUST.partition(HEADING)[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return {quote.removeprefix("| "): re.findall(TEST, tests) for quote, tests in rows[1:]}


def test_the_table_of_faults_is_that_of_the_tests() -> None:
    assert page(TRUST, FAULTS) == TRUST, "run: python -m tools.trust_page"


def test_a_fault_more_is_a_row_more() -> None:
    assert page(TRUST, FAULTS[1:]) != TRUST


def test_every_promise_of_the_readme_names_the_test_that_holds_it() -> None:
    found = held()
    assert list(found) == promises()
    assert len(found) > 15
    assert all(found.values()), "each promise needs a test"


def test_those_tests_are_looked_for() -> None:
    """That they exist is tested for all pages together."""
    assert {test for tests in held().values() for test in tests} <= set(TESTS)


def test_the_threat_model_grades_every_sharp_edge() -> None:
    edges = (ROOT / "docs" / "sharp-edges.md").read_text(encoding="utf-8")
    graded = {}
    for grade in ("Critical", "Theoretical", "Negligible"):
        section = edges.partition(f"\n## {grade}\n")[2].partition("\n## ")[0]
        graded |= dict.fromkeys(re.findall(r"^### (.+)$", section, re.MULTILINE), grade)
    model = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(.+?)\]\(sharp-edges\.md#\S+\) \| (\w+) \|", model, re.MULTILINE)
    assert dict(rows) == graded
    assert len(rows) == len(graded)
