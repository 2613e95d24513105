"""Each item of the standards has an answer, and an open one says so."""

import re

import pytest
from tests.docs.markdown import ROOT

from dpvd.report.checklist import DP_FY, ITEMS, NIST, checklist
from dpvd.report.facts import DECLARATIONS, NOT_DECLARED, statement_facts
from dpvd.runs import DRAWN, RunRecord

read = RunRecord.from_dict

EVERYTHING = dict.fromkeys(DECLARATIONS, "said by somebody")
COMPLETE = {
    "unit": "patient",
    "tuned": [],
    "public": ["the number of training examples (1437)"],
    "undeclared": [],
    "seen": ["every batch drawn by the plan's sampler"],
    "sampling": "Poisson sampling with probability 0.25",
    "noise_source": "the system's cryptographic generator",
    "noise_multiplier": 21.3,
    "steps": 40,
}


def answers(record, declared):
    return {answer.item: answer for answer in checklist(read(record), declared)}


def test_every_item_is_answered_once(record):
    found = checklist(read(record), {})
    assert [answer.item for answer in found] == [item.title for item in ITEMS]
    assert all(answer.says and answer.where for answer in found)
    assert {name for item in ITEMS for name in item.asked_by} == {DP_FY, NIST}


def test_all_that_was_said_leaves_nothing_open(record):
    record["guarantee"] |= COMPLETE
    open_items = [answer.item for answer in checklist(read(record), EVERYTHING) if answer.open]
    assert open_items == []


@pytest.mark.parametrize(
    ("item", "change"),
    [
        ("Unit of privacy", {"unit": "example"}),
        ("Formal statement for tuning", {"tuned": None}),
        ("What is not protected", {"public": []}),
    ],
)
def test_what_the_guarantee_leaves_open_is_open(record, item, change):
    record["guarantee"] |= COMPLETE | change
    assert NOT_DECLARED in answers(record, EVERYTHING)[item].says
    assert answers(record, EVERYTHING)[item].open


@pytest.mark.parametrize(
    ("item", "name"),
    [
        ("Rows per unit", "rows_per_unit"),
        ("Composition with earlier runs", "earlier_runs"),
        ("Access control", "access_control"),
        ("Setting and who is trusted", "owner"),
        ("Purpose", "purpose"),
    ],
)
def test_what_people_leave_open_is_open_until_they_say_it(record, item, name):
    assert answers(record, {})[item].open
    closed = answers(record, {name: "kept in a safe"})[item]
    assert not closed.open
    assert "kept in a safe" in closed.says


def test_nothing_tuned_is_a_declaration_and_not_the_lack_of_one(record):
    record["guarantee"]["tuned"] = []
    assert "Nothing was tuned" in statement_facts(read(record), {})["tuning"]
    del record["guarantee"]["tuned"]
    assert "not declared" in statement_facts(read(record), {})["tuning"]


@pytest.mark.parametrize(
    ("declared", "outside"),
    [({}, "not declared, and not counted."), ({"earlier_runs": "one"}, "not counted here: one.")],
    ids=["undeclared", "declared"],
)
def test_earlier_runs_are_counted_in_the_account_that_the_run_drew_from(record, declared, outside):
    words = f"{DRAWN}, whose limit for all runs together is (3, 1e-05); 1.239 of it drawn"
    record["guarantee"]["seen"] = [*COMPLETE["seen"], words]
    said = answers(record, declared)["Composition with earlier runs"].says
    assert f"The run is {words}. What else draws from it is counted there." in said
    assert said.endswith(outside)
    assert "Earlier releases" not in said
    assert "outside of that account" in said


def test_a_column_of_identifiers_does_not_declare_whose_they_are(record):
    record["table"] = {"id": "patient_id"}
    record["guarantee"]["unit"] = "value of patient_id"
    unit = answers(record, {})["Unit of privacy"]
    assert unit.says.startswith("One value of patient_id; ")
    assert unit.open
    assert "as declared" not in unit.says
    record["guarantee"]["unit"] = "patient"
    assert answers(record, {})["Unit of privacy"].says == "One patient, as declared."


def test_what_nobody_saw_is_not_said_to_be_met(record):
    record["guarantee"]["seen"] = None
    assert "nobody saw" in answers(record, {})["Whether they were met"].says


def test_a_run_without_privacy_claims_no_coverage(record):
    record["guarantee"] |= {"epsilon": "inf", "noise_multiplier": 0.0}
    found = answers(record, {})
    assert "not differentially private" in found["Which accesses to the data are covered"].says
    assert found["Type of accounting"].says == "No finite ε holds."
    assert found["Mechanism"].says == "No noise was added."


def test_a_record_that_says_little_has_an_answer_to_everything(bare):
    assert len(checklist(read(bare), {})) == len(ITEMS)


def test_the_places_named_exist(record):
    """Fields of the record, files of a run, pages of the documentation, and declarations."""
    record["guarantee"] |= COMPLETE | {"not_covered": []}
    for item in ITEMS:
        for place in item.where.split(", "):
            head, _, tail = place.partition(".")
            if place.startswith("docs/"):
                assert (ROOT / place).is_file()
            elif head == "declared":
                assert tail in DECLARATIONS
            elif place != "model.safetensors":
                assert head in record
                assert not tail or tail in record[head], place


def test_the_documentation_maps_every_item():
    page = (ROOT / "docs" / "statement.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", page, re.MULTILINE)
    mapped = {title: asked for title, asked in rows if "5.3.3" in asked or "NIST" in asked}
    assert mapped == {item.title: ", ".join(item.asked_by) for item in ITEMS}


def test_the_documentation_lists_every_declaration():
    page = (ROOT / "docs" / "statement.md").read_text(encoding="utf-8")
    for name, meaning in DECLARATIONS.items():
        assert f"| `{name}` | {meaning} |" in page
