"""``dpvd show``: finished runs, unfinished ones, and folders that are none."""

import json
import shutil

import pytest
import yaml

from dpvd.report import write_report
from dpvd.runs import RunRecord
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


def test_a_model_with_a_changed_record_is_refused(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    record = json.loads((folder / "record.json").read_text())
    record["dataset"]["class_names"] = list("9876543210")
    (folder / "record.json").write_text(json.dumps(record))
    (tmp_path / "x.csv").write_text("0\n")
    refused = call("predict", folder, tmp_path / "x.csv")
    assert_refused(refused, "record.json cannot be read", "manifest")


def test_the_statement_is_written_with_what_was_declared(run, tmp_path):
    page = tmp_path / "out.html"
    shown = call("show", run, "--statement", page, "--declare", "owner=Ward 7 = 8")
    assert shown.out == f"statement {page}\n"
    text = page.read_text(encoding="utf-8")
    assert "Ward 7 = 8" in text
    record = json.loads((run / "record.json").read_text())
    assert record["dataset"]["checksum"] not in text
    assert "95 % interval" not in text
    public = tmp_path / "public.html"
    call("show", run, "--statement", public, "--public-test")
    assert "95 % interval" in public.read_text(encoding="utf-8")


def test_the_registry_entry_holds_declarations_and_no_private_result(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    (folder / "declared.toml").write_text('owner = "Ward 7"\npurpose = "triage"\n')
    printed = call("show", folder, "--registry", "--declare", "purpose=research").out
    deployment = yaml.safe_load(printed)["deployment"]
    assert deployment["basic"]["data_curators"][0]["data_curator_name"] == "Ward 7"
    assert deployment["basic"]["intended_use"] == "research"
    assert deployment["administrative"]["tier"] == 3
    accuracy = json.loads((run / "record.json").read_text())["test"]["accuracy"]
    told = f"{100 * accuracy:.1f}\N{NO-BREAK SPACE}%"
    assert told not in printed
    assert told in call("show", folder, "--registry", "--public-test").out


def test_options_that_do_not_go_together_are_refused(run, tmp_path):
    page = tmp_path / "a.html"
    for arguments, words in (
        (("--registry", "--json"), "do not go together"),
        (("--registry", "--statement", page), "do not go together"),
        (("--declare", "owner=x"), "--declare goes with"),
        (("--public-test",), "--public-test goes with"),
        (("--statement", page, "--declare", "owner"), "name=value"),
        (("--statement", page, "--declare", "colour=red"), "no declaration 'colour'"),
        (("--statement", run / "report.html"), "must be a new file"),
    ):
        assert_refused(call("show", run, *arguments), words)
    assert not page.exists()


def test_an_unfinished_run_has_no_statement(unfinished, tmp_path):
    page = tmp_path / "a.html"
    assert_refused(call("show", unfinished, "--statement", page), "not finished", "5 of 15")
    assert not page.exists()


def test_an_unfinished_run_on_a_table_says_what_is_spent(unfinished):
    (unfinished / "ledger.jsonl").rename(unfinished / "ledger-moments.jsonl")
    shown = call("show", unfinished)
    assert "5 noisy sums and steps are charged so far" in shown.out
    assert f"--out {unfinished} --resume" in shown.out


def test_a_run_without_test_data_is_shown(run, tmp_path):
    record = json.loads((run / "record.json").read_text()) | {"test": {}}
    (tmp_path / "record.json").write_text(json.dumps(record))
    shown = call("show", tmp_path)
    assert shown.code == 0
    assert "not measured" in shown.out
    assert "accuracy" not in shown.out
    assert "report" not in shown.out.splitlines()[-1]


def test_it_says_whether_the_run_holds_and_why_not(run, tmp_path):
    assert "checked" in call("show", run).out
    assert " verified" in call("show", run).out
    assert "not verified" not in call("show", run).out
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    shown = " ".join(call("show", folder).out.split())
    assert "not verified: model.safetensors: is not the file" in shown


def test_the_page_says_whether_the_run_held_and_why_not(run, tmp_path):
    assert "the run was verified." in (run / "report.html").read_text()
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    (folder / "ledger.jsonl").unlink()
    page = write_report(RunRecord.read(folder), folder).read_text()
    assert "the run was not verified: ledger.jsonl" in page
    assert str(tmp_path) not in page
