"""``dpvd compare``: table, CSV, figure, and folders that are no runs."""

import csv
import json
import shutil

import pytest

from tests.cli.program import assert_refused, call


@pytest.fixture
def runs(run, tmp_path):
    """Two finished runs that differ in their seed, and one of another method."""
    folders = []
    for name, changes in {
        "a": {},
        "b": {"seed": 1},
        "c": {"method": "dpsgd"},
    }.items():
        folder = tmp_path / name
        shutil.copytree(run, folder)
        record = json.loads((folder / "record.json").read_text())
        (folder / "record.json").write_text(json.dumps(record | changes))
        folders.append(folder)
    return folders


def test_the_table_averages_over_seeds_and_no_number_is_cut_off(runs, finished):
    shown = call("compare", *runs)
    assert (shown.code, shown.err) == (0, "")
    assert "digits, add-or-remove, δ = 1e-05" in shown.out
    accuracy = finished[1].json["test_accuracy"]
    lines = {line.split()[0]: line for line in shown.out.splitlines()}
    assert f"{accuracy:.3f} ±0.000" in lines["dpvd"]
    assert f"{accuracy:.3f} [" in lines["dpsgd"]
    assert "…" not in shown.out


def test_numbers_and_figure_are_written(runs, tmp_path):
    numbers = tmp_path / "numbers.csv"
    for name, start in (("a.svg", b"<?xml"), ("a.png", b"\x89PNG")):
        figure = tmp_path / name
        shown = call("compare", *runs, "--out", numbers, "--figure", figure)
        assert shown.out.endswith(f"numbers {numbers}\nfigure {figure}\n")
        assert figure.read_bytes().startswith(start)
        with numbers.open(newline="") as file:
            assert [row["run"] for row in csv.DictReader(file)] == [str(each) for each in runs]
        numbers.unlink()


def test_json_has_a_row_for_each_run(runs):
    rows = call("compare", *runs, "--json").json
    assert [(row["method"], row["seed"]) for row in rows] == [
        ("dpvd", 0),
        ("dpvd", 1),
        ("dpsgd", 0),
    ]


def test_other_data_are_said_to_be_other_data(runs):
    record = json.loads((runs[0] / "record.json").read_text())
    record["dataset"]["name"] = "mnist"
    (runs[0] / "record.json").write_text(json.dumps(record))
    shown = call("compare", *runs)
    assert "warning: these runs are on 2 different data sets (digits, mnist)" in shown.err
    assert "mnist, add-or-remove" in shown.out


def test_what_cannot_be_compared_is_refused_and_nothing_written(runs, unfinished, tmp_path):
    numbers = tmp_path / "numbers.csv"
    for arguments, words in (
        ((tmp_path / "none",), "no run folder"),
        ((unfinished,), "no finished run"),
        ((runs[0], runs[0]), "twice"),
        ((*runs, "--figure", tmp_path / "a.pdf"), ".svg or .png"),
        ((*runs, "--figure", runs[0] / "report.html"), ".svg or .png"),
    ):
        assert_refused(call("compare", *arguments, "--out", numbers), words)
    assert not numbers.exists()
    numbers.write_text("mine")
    assert_refused(call("compare", *runs, "--out", numbers), "must be a new file")
    assert numbers.read_text() == "mine"
    assert call("compare").code == 2
