"""What the statement of a run on a table says is true of that run, sentence by sentence."""

import json
import re
from pathlib import Path

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

from dpvd.errors import DpvdError
from dpvd.report import render
from dpvd.report.facts import statement_facts
from dpvd.report.wording import promises
from dpvd.runs import RunOptions, RunRecord, write_manifest
from dpvd.runs.tables import TableChoice, TrainedTable, execute_table, prepare_table

SCHEMA = """
[target]
name = "ill"
classes = ["no", "yes"]
source = "public"

[columns.age]
kind = "numeric"
bounds = [0, 100]
source = "public"
"""


def trained(folder: Path, *, id: str | None = None, method: str = "dpvd") -> RunRecord:
    """The record of a small run; each patient has two rows."""
    rows = "".join(f"p{n // 2},{n % 97},{'yes' if n % 97 > 50 else 'no'}\n" for n in range(400))
    (folder / "t.csv").write_text("patient,age,ill\n" + rows)
    (folder / "s.toml").write_text(SCHEMA)
    choice = TableChoice(
        folder / "t.csv", schema=folder / "s.toml", id=id, rows_per_unit=2 if id else None
    )
    epsilon = None if method == "none" else 1.0
    options = RunOptions(epsilon=epsilon, delta=1e-5, method=method)
    return execute_table(prepare_table(options, choice), folder / "run")


def test_noise_of_several_sizes_is_stated_as_such(tmp_path: Path) -> None:
    record = trained(tmp_path)
    multipliers = [release["noise_multiplier"] for release in record.releases]
    stated = re.search(r"noise of multiplier (.*) from", formal(record))
    assert stated is not None
    found = [float(number) for number in re.findall(r"([\d.]+) in \d+ step", stated[1])]
    assert sorted(found) == pytest.approx(sorted(set(multipliers)), rel=1e-3)


def test_epsilon_is_that_of_the_releases_in_the_record(tmp_path: Path) -> None:
    record = trained(tmp_path)
    accountant = PLDAccountant()
    for release in record.releases:
        event = dp_event.GaussianDpEvent(release["noise_multiplier"])
        accountant.compose(event, release["steps"])
    assert record.guarantee["epsilon"] == pytest.approx(accountant.get_epsilon(1e-5), abs=1e-5)


def test_one_row_was_not_declared_to_be_one_person(tmp_path: Path) -> None:
    record = trained(tmp_path)
    assert "as declared" not in statement_facts(record, {})["unit"]
    assert "k times as large" in dict(promises(record))["Who is protected"]


def test_with_an_identifier_several_rows_cost_no_more(tmp_path: Path) -> None:
    said = dict(promises(trained(tmp_path, id="patient")))["Who is protected"]
    assert "k times" not in said
    assert "all of them together" in said


def test_an_error_is_told_in_the_unit_of_the_schema(tmp_path: Path) -> None:
    record = trained(tmp_path)
    schema = record.table["encoder"]["schema"]
    schema["target"] = {"name": "days", "bounds": [0, 20], "unit": "days", "source": "public"}
    record.test.update(accuracy=None, rmse=2.5)
    assert "root mean squared, in days" in render(record)


def test_without_privacy_no_noise_is_spoken_of(tmp_path: Path) -> None:
    facts = statement_facts(trained(tmp_path, method="none"), {})
    assert facts["floating_point"] == facts["randomness"] == "No noise was added."
    for point in ("released", "post_processing", "preprocessing"):
        assert "noisy" not in facts[point]


@pytest.mark.parametrize("names", [["yes", "no"], ["no"], None])
def test_a_record_with_changed_class_names_is_refused(tmp_path: Path, names: object) -> None:
    trained(tmp_path)
    assert TrainedTable(tmp_path / "run").classes == ("no", "yes")
    path = tmp_path / "run" / "record.json"
    record = json.loads(path.read_text())
    record["table"]["classes"] = names
    path.write_text(json.dumps(record))
    write_manifest(tmp_path / "run")  # as whoever edits it on purpose would
    with pytest.raises(DpvdError, match="names the classes twice"):
        TrainedTable(tmp_path / "run")


def formal(record: RunRecord) -> str:
    return str(record.guarantee["sentence"])
