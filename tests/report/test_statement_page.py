"""The page to hand out: what it holds, and above all what it does not."""

import re
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import ComposedDpEvent

from dpvd.errors import DpvdError
from dpvd.plan import PrivacyPlan
from dpvd.privacy import epsilon
from dpvd.report import render, render_statement, write_report, write_statement
from dpvd.report.checklist import checklist
from dpvd.report.declared import declared_for, parse_declared
from dpvd.report.sections import reading
from dpvd.runs import RunRecord, event_of

Record = dict[str, Any]
read = RunRecord.from_dict


def text_of(page: str) -> str:
    """What a reader sees, in one line."""
    visible = re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", visible).split())


def secrets_of(record: Record) -> dict[str, str]:
    """What must not be handed out, as a page would print it."""
    return {
        "checksum": record["dataset"]["checksum"],
        "name of the data": record["dataset"]["name"],
        "accuracy": "88.9",
        "accuracy as a number": "0.889",
        "interval": "85.2",
        "calibration": "0.031",
        "loss": "0.41",
        "number of test examples": "360",
    }


def test_the_report_holds_what_the_page_to_hand_out_does_not(record: Record, page: str) -> None:
    record["dataset"]["name"] = "ward-7-patients.csv"
    handed_out = render_statement(read(record))
    held = render(read(record))
    for what, secret in secrets_of(record).items():
        assert secret in held, what
        assert secret not in handed_out, what
    assert "<svg" not in handed_out
    assert "confusion" not in handed_out.lower()


def test_the_report_says_that_it_must_not_be_passed_on(record: Record) -> None:
    text = text_of(render(read(record)))
    assert "For the holder of the data." in text
    assert "exact results on the test data, a checksum of the data and" in text
    assert "do not pass it on" in text
    assert "statement.html" in text


def test_results_on_public_test_data_are_shown_if_asked_for(record: Record) -> None:
    shown = text_of(render_statement(read(record), with_test=True))
    assert "accuracy 88.9 %" in shown
    assert record["dataset"]["checksum"] not in shown


def test_a_secret_size_stays_secret(record: Record) -> None:
    record["dataset"]["train"] = 1391
    record["guarantee"]["delta"] = 0.01  # large: the page compares it with the size
    shown = text_of(render_statement(read(record)))
    assert "Caution" in shown
    assert "1,437" in shown
    assert "1391" not in shown.replace(",", "")


@pytest.mark.parametrize("draw", [render, render_statement])
def test_both_pages_hold_statement_reading_checklist_and_signature(
    record: Record, draw: Any
) -> None:
    text = text_of(draw(read(record), {"owner": "Ward 7 & 8"}))
    for words in (
        "(0.9996, 1e-05)-differentially private",
        "What it means for one example",
        "In one number, μ =",
        "NIST SP 800-226",
        "Composition with earlier runs",
        "Floating point",
        "commit not recorded",
        "Ward 7 &amp; 8",
        "Approved by",
        "Signature",
    ):
        assert words in text, words


def test_what_was_not_declared_is_a_line_to_write_on(record: Record) -> None:
    page = render_statement(read(record), {"purpose": "triage"})
    lines = re.findall(r"<div[^>]*><dt>([^<]*)</dt><dd>([^<]*)</dd></div>", page)
    assert dict(lines) == {
        "Holder of the data": "",
        "Purpose": "triage",
        "Approved by": "",
        "Date of release": "",
        "Name": "",
        "Place and date": "",
        "Signature": "",
    }


def test_the_reading_is_of_the_event_that_the_statement_is_for(record: Record) -> None:
    assert event_of(read(record)) is not None
    assert any("55." in sentence for sentence in reading(read(record)))
    record["guarantee"]["epsilon"] = 0.7  # not that of the plan
    assert event_of(read(record)) is None
    (only,) = reading(read(record))
    assert "ε and δ alone" in only
    assert "66.9" in only


def test_a_record_with_more_steps_than_its_plan_tells_no_event(record: Record) -> None:
    record["guarantee"]["steps"] = 41
    assert event_of(read(record)) is None


def with_releases(record: Record, **changes: Any) -> RunRecord:
    """The record of a run that made one release before its steps."""
    base = PrivacyPlan(examples=1437, batch_size=1437, steps=1, noise_multiplier=9.0)
    steps = PrivacyPlan(examples=1437, batch_size=359, steps=40, noise_multiplier=8.0)
    record["guarantee"]["steps"] = 41
    record["guarantee"]["epsilon"] = epsilon(ComposedDpEvent([base.event(), steps.event()]), 1e-5)
    found = read(record)
    releases = [
        {
            "name": "mean",
            "noise_multiplier": 9.0,
            "share": 0.02,
            "steps": 1,
            "plan": base.to_dict(),
        },
        {
            "name": "training",
            "noise_multiplier": 8.0,
            "share": 0.98,
            "steps": 40,
            "plan": steps.to_dict(),
        },
    ]
    table = {
        "kind": "classification",
        "rows_per_unit": 3,
        "encoder": {
            "schema": {
                "columns": {"age": {"source": "public"}, "weight": {"source": "data"}},
                "target": {"name": "ill", "source": "data"},
            }
        },
    }
    for name, value in ({"releases": releases, "table": table} | changes).items():
        object.__setattr__(found, name, value)
    return found


def test_a_table_run_says_how_its_budget_was_split(record: Record) -> None:
    found = with_releases(record)
    assert event_of(found) is not None
    text = text_of(render_statement(found))
    assert "How the budget was split" in text
    assert "mean 1 9 2 %" in text
    assert "training 40 8 98 %" in text
    assert "read off the data: weight, ill" in text
    assert "At most 3, chosen at random" in text
    assert "all their rows in the table, of which at most 3 take part" in text
    assert "Algorithm 1" not in text
    assert len(reading(found)) == 5


def test_columns_keep_their_names_where_the_budget_is_split(record: Record) -> None:
    """Noise is rounded as in the sentence above it, never up."""
    releases = with_releases(record).releases  # type: ignore[attr-defined]
    releases[0] |= {"name": "bounds of weight_kg", "noise_multiplier": 11.7985}
    text = text_of(render_statement(with_releases(record, releases=releases)))
    assert "bounds of weight_kg 1 11.79 2 %" in text


@pytest.mark.parametrize("draw", [render, render_statement])
def test_a_statement_with_gaps_is_not_green(record: Record, draw: Any) -> None:
    assert 'class="statement safe"' in draw(read(record))
    record["guarantee"]["not_covered"] = ["bounds of BMI"]
    page = draw(read(record))
    assert 'class="statement caution"' in page
    assert "Outside the account Bounds of BMI." in text_of(page)


def test_cells_say_what_is_there_and_what_was_not_declared(record: Record) -> None:
    record["plan"] |= {"seed": None, "tuned": None}
    record["dataset"]["classes"] = None
    text = text_of(render(read(record)))
    details = text[text.index("Privacy plan") : text.index("Checklist")]
    assert "tuned not declared" in details
    assert "not recorded" not in details


def test_facts_that_nobody_declared_are_an_open_point(record: Record) -> None:
    record["guarantee"]["undeclared"] = ["other public facts"]
    answers = {answer.item: answer.open for answer in checklist(read(record), {})}
    assert answers["What is not protected"]


def test_a_release_that_the_statement_does_not_pay_for_is_noticed(record: Record) -> None:
    found = with_releases(record)
    unpaid = found.releases[:1]  # type: ignore[attr-defined]
    assert event_of(with_releases(record, releases=unpaid)) is None


def test_a_run_without_test_data_says_so(record: Record) -> None:
    for test in ({}, {"accuracy": None, "interval": None, "calibration_error": None}):
        record["test"] = test
        record["history"] = []
        text = text_of(render(read(record)))
        assert "Trained at ε = 0.9996" in text
        assert "not measured" in text
        assert "exact results" not in text
        assert "Test accuracy" not in text


def test_a_regression_shows_its_errors(record: Record) -> None:
    record["test"] = {"rmse": 3.25, "mae": 2.5, "coverage": 0.94}
    record["history"] = []
    text = text_of(render(read(record)))
    assert "Test error 3.25 (RMSE) at ε = 0.9996" in text
    assert "root mean squared, in the unit of the target" in text
    assert "of test targets lie in their 90 % interval" in text
    assert "94.0 %" in text


def test_a_run_without_privacy_promises_nothing(record: Record) -> None:
    record["guarantee"] |= {"epsilon": "inf", "sentence": "Not differentially private: no noise."}
    text = text_of(render_statement(read(record)))
    assert text.startswith("Not differentially private")
    assert "What is promised" not in text
    assert "What it means" not in text


def test_seeds_of_reproducible_noise_are_not_handed_out(record: Record) -> None:
    record["plan"] |= {"noise": "seeded", "seed": 987654}
    assert "987,654" in render(read(record))
    handed_out = render_statement(read(record))
    assert "987654" not in handed_out.replace(",", "")
    assert "not private against whoever knows the seed" in handed_out


def test_both_pages_take_declarations_from_the_folder(record: Record, tmp_path: Path) -> None:
    (tmp_path / "declared.toml").write_text('owner = "Ward 7"\npurpose = "triage"\n')
    record |= {"history": [], "alpha": {}}
    write_report(read(record), tmp_path)
    for name in ("report.html", "statement.html"):
        assert "Ward 7" in (tmp_path / name).read_text(encoding="utf-8")
    found = declared_for(read(record), tmp_path, {"owner": "Ward 8"})
    assert found == {"owner": "Ward 8", "purpose": "triage"}


@pytest.mark.parametrize(
    ("text", "words"),
    [("owner = ", "no TOML"), ('signature = "x"', "declaration"), ("owner = 3", "must be words")],
)
def test_a_bad_file_of_declarations_is_refused_and_nothing_written(
    record: Record, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "declared.toml").write_text(text)
    with pytest.raises(DpvdError, match=words):
        write_report(read(record), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["declared.toml"]


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (["owner"], "name=value"),
        (["owner=a", "owner=b"], "twice"),
        (["colour=red"], "no declaration"),
        (["owner= "], "must be words"),
    ],
)
def test_bad_declarations_on_the_command_line_are_refused(entries: list[str], words: str) -> None:
    with pytest.raises(DpvdError, match=words):
        parse_declared(entries)


def test_a_text_is_a_path(record: Record, tmp_path: Path) -> None:
    written = write_statement(str(tmp_path / "a" / "page.html"), read(record))
    assert written.read_text(encoding="utf-8") == render_statement(read(record))
