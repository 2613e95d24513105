"""``dpvd show``: finished runs, unfinished ones, and folders that are none."""

import json
import shutil

import pytest

from tests.cli.program import assert_refused, call


def test_a_finished_run_is_shown_in_80_columns(finished):
    folder, outcome = finished
    statement, *table, report = call("show", folder).out.splitlines()
    assert statement == outcome.json["statement"]
    assert report == f"report {folder / 'report.html'}"
    assert max(len(line.rstrip()) for line in table) <= 80
    text = "\n".join(table)
    for words in (
        f"{outcome.json['test_accuracy']:.4f}",
        "1,437 to train",
        "batch size 200",
        "dpvd, seed 0",
    ):
        assert words in text


def test_json_is_the_record(run):
    assert call("show", run, "--json").json == json.loads((run / "record.json").read_text())


def test_an_unfinished_run_tells_what_is_charged_and_how_to_go_on(unfinished):
    shown = call("show", unfinished)
    assert shown.code == 0
    assert "5 of 15 steps are charged" in shown.out
    assert f"--out {unfinished} --resume" in shown.out
    answer = call("show", unfinished, "--json").json
    assert (answer["finished"], answer["charged"], answer["steps"]) == (False, 5, 15)


def test_what_is_no_run_is_refused(tmp_path):
    assert_refused(call("show", tmp_path / "nothing"), "no run folder")
    assert_refused(call("show", tmp_path), "no finished run")
    (tmp_path / "file").write_text("x")
    assert_refused(call("show", tmp_path / "file"), "no run folder")


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: "null",
        lambda text: '{"format": 1}',
        lambda text: '{"format": 99}',
        lambda text: json.dumps(json.loads(text) | {"test": {"accuracy": 0.9}}),
        lambda text: json.dumps(json.loads(text) | {"model": 3}),
    ],
)
def test_a_damaged_record_is_refused(run, tmp_path, damage):
    record = tmp_path / "record.json"
    record.write_text(damage((run / "record.json").read_text()))
    assert_refused(call("show", tmp_path), "record")


def test_a_damaged_ledger_is_refused(unfinished):
    ledger = unfinished / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"charged": 2', '"charged": 1'))
    assert_refused(call("show", unfinished), "ledger")


def test_a_damaged_model_is_refused(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    model = folder / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-100])
    (tmp_path / "x.csv").write_text("0\n")
    assert_refused(call("predict", folder, tmp_path / "x.csv"), "model.safetensors cannot be read")
    model.unlink()
    assert_refused(call("predict", folder, tmp_path / "x.csv"), "model.safetensors cannot be read")
