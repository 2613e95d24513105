"""Runs side by side: averaged where settings are equal, told apart where they are not."""

import copy
import csv
import io
from pathlib import Path
from typing import Any

import pytest

from dpvd.errors import DpvdError
from dpvd.report import svg_bytes
from dpvd.report.comparison import COLUMNS, compare, comparison_figure, read_runs, to_csv
from dpvd.runs import RunRecord

Record = dict[str, Any]


def variant(record: Record, **changes: Any) -> RunRecord:
    """The record with other values; of a mapping, those named."""
    new = copy.deepcopy(record)
    for name, value in changes.items():
        new[name] = new[name] | value if isinstance(value, dict) else value
    return RunRecord.from_dict(new)


def test_seeds_of_equal_settings_are_averaged(record: Record) -> None:
    runs = {
        f"run{seed}": variant(record, seed=seed, test={"accuracy": accuracy})
        for seed, accuracy in enumerate((0.8, 0.9, 0.85))
    }
    found = compare(runs)
    (group,) = found.groups
    assert len(group.rows) == 3
    assert group.mean("accuracy") == pytest.approx(0.85)
    assert group.spread("accuracy") == pytest.approx(0.05)
    assert found.warnings == []


@pytest.mark.parametrize(
    "change",
    [
        {"method": "dpsgd"},
        {"plan": {"steps": 41}},
        {"plan": {"noise_multiplier": 6.2}},
        {"recipe": {"learning_rate": 3.0}},
        {"guarantee": {"delta": 1e-6}},
        {"dataset": {"train": 1436}},
        {"dataset": {"name": "mnist"}},
        {"model": {"layers": ["0: Linear"]}},
    ],
)
def test_runs_that_differ_in_a_setting_are_not_averaged(record: Record, change: Any) -> None:
    found = compare({"a": variant(record), "b": variant(record, **change)})
    assert [len(group.rows) for group in found.groups] == [1, 1]
    assert all(group.spread("accuracy") is None for group in found.groups)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dataset": {"name": "mnist"}}, "2 different data sets"),
        ({"guarantee": {"relation": "replace-one"}}, "different relations"),
        ({"guarantee": {"unit": "patient"}}, "different units"),
        ({"guarantee": {"delta": 1e-6}}, "δ differs"),
    ],
)
def test_what_does_not_compare_is_said(record: Record, change: Any, words: str) -> None:
    found = compare({"a": variant(record), "b": variant(record, **change)})
    assert any(words in warning for warning in found.warnings)


def test_the_csv_holds_the_numbers_of_each_run(record: Record) -> None:
    runs = {"a": variant(record), "b": variant(record, test={"auc": 0.91}, seed=1)}
    rows = list(csv.DictReader(io.StringIO(to_csv(compare(runs).rows))))
    assert tuple(rows[0]) == COLUMNS
    assert [row["run"] for row in rows] == ["a", "b"]
    assert float(rows[0]["accuracy"]) == record["test"]["accuracy"]
    assert float(rows[0]["accuracy_low"]) == record["test"]["interval"][0]
    assert (rows[0]["auc"], rows[1]["auc"]) == ("", "0.91")


def test_a_run_without_privacy_has_no_epsilon(record: Record) -> None:
    public = variant(record, method="none", guarantee={"epsilon": "inf"})
    found = compare({"a": variant(record), "b": public})
    assert found.rows[1]["epsilon"] is None
    figure = comparison_figure(found)
    assert b"<svg" in svg_bytes(figure)
    assert "without privacy" in {line.get_label() for line in figure.axes[0].lines}


def test_a_single_epsilon_stands_within_its_figure(record: Record) -> None:
    axes = comparison_figure(compare({"a": variant(record)})).axes[0]
    low, high = axes.get_xlim()
    assert low < 0.9 < 0.9996 < 1.1 < high < 2


def test_the_figure_has_a_line_for_each_method_and_setting(record: Record) -> None:
    runs = {
        f"{method}-{epsilon}": variant(
            record,
            method=method,
            guarantee={"epsilon": epsilon},
            plan={"noise_multiplier": 6 / epsilon},
        )
        for method in ("dpvd", "dpsgd")
        for epsilon in (0.5, 1.0, 2.0)
    }
    runs["longer"] = variant(record, guarantee={"steps": 80})
    accuracy, calibration = comparison_figure(compare(runs)).axes
    assert accuracy.get_title(loc="left") == "test accuracy"
    assert calibration.get_title(loc="left") == "test calibration error"
    labels = {container.get_label() for container in accuracy.containers}
    assert labels == {"dpsgd", "dpvd, 40 steps", "dpvd, 80 steps"}
    assert list(accuracy.containers[0].lines[0].get_xdata()) == [0.5, 1.0, 2.0]


def test_runs_that_were_not_measured_are_listed_and_not_drawn(record: Record) -> None:
    record["test"] = {}
    found = compare({"a": RunRecord.from_dict(record)})
    assert found.rows[0]["accuracy"] is None
    with pytest.raises(DpvdError, match="nothing to draw"):
        comparison_figure(found)


def test_folders_are_checked(record: Record, tmp_path: Path) -> None:
    RunRecord.from_dict(record).write(tmp_path / "run")
    assert list(read_runs([tmp_path / "run"])) == [str(tmp_path / "run")]
    for folders, words in (
        ([tmp_path / "none"], "no run folder"),
        ([tmp_path], "no finished run"),
        ([tmp_path / "run", tmp_path / "run"], "twice"),
    ):
        with pytest.raises(DpvdError, match=words):
            read_runs(folders)
    with pytest.raises(DpvdError, match="no run to compare"):
        compare({})
