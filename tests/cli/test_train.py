"""``dpvd train``: what it prints and what it leaves in the folder."""

import html
import json

import pytest
from safetensors.torch import load_file

from dpvd.plan import PrivacyPlan
from dpvd.privacy import Ledger
from tests.cli.program import call, train_line

RELIED_ON = {"test_accuracy", "epsilon", "delta", "noise_multiplier", "steps", "run"}


def test_stdout_holds_one_json_object_and_nothing_else(finished):
    folder, outcome = finished
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("\n") == 1
    assert set(outcome.json) >= RELIED_ON
    assert outcome.json["run"] == str(folder)


def test_the_budget_is_used_and_not_passed(finished):
    said = finished[1].json
    assert 0.9 < said["epsilon"] <= 1
    assert said["delta"] == 1e-5
    assert said["noise_multiplier"] > 1
    assert said["steps"] == 15  # 2 passes over 1,437 examples by 200, rounded up


def test_epsilon_is_what_the_reported_noise_and_steps_spend(finished):
    said = finished[1].json
    plan = PrivacyPlan(1437, 200, steps=said["steps"], noise_multiplier=said["noise_multiplier"])
    assert said["epsilon"] == pytest.approx(plan.epsilon(said["delta"]), rel=1e-9)
    assert said["epsilon"] != 1  # not merely what was asked for


def test_the_model_has_learned(finished):
    assert finished[1].json["test_accuracy"] > 0.3  # one in ten by chance


def test_the_folder_holds_record_ledger_model_figures_and_report(finished):
    folder, outcome = finished
    record = json.loads((folder / "record.json").read_text())
    assert record["test"]["accuracy"] == outcome.json["test_accuracy"]
    assert Ledger.open(folder / "ledger.jsonl").charged == outcome.json["steps"]
    assert {"0.weight", "0.bias", "2.weight", "2.bias"} <= set(
        load_file(folder / "model.safetensors")
    )
    assert any((folder / "figures").iterdir())


def test_the_report_contains_the_statement(finished):
    folder, outcome = finished
    page = html.unescape((folder / "report.html").read_text())
    assert outcome.json["statement"] in page
    assert outcome.json["statement"].startswith("(0.9999, 1e-05)-differentially private")


def test_nothing_in_the_folder_is_pickled_or_half_written(run):
    files = [path for path in run.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {
        ".json",
        ".jsonl",
        ".safetensors",
        ".html",
        ".svg",
        ".png",
    }
    for path in files:
        assert path.read_bytes()[:2] not in (b"PK", b"\x80\x02", b"\x80\x04", b"\x80\x05"), path


@pytest.mark.parametrize("method", ["svi", "dpsgd"])
def test_other_private_methods_spend_the_same_budget(method, tmp_path, finished):
    outcome = call(*train_line(tmp_path / "run", method=method, json=True))
    assert outcome.code == 0, outcome.err
    assert outcome.json["method"] == method
    assert outcome.json["epsilon"] == finished[1].json["epsilon"]


def test_without_privacy_there_is_no_epsilon_and_the_statement_says_so(tmp_path):
    outcome = call(*train_line(tmp_path / "run", method="none", epsilon=None, json=True))
    assert outcome.json["epsilon"] is None
    assert outcome.json["noise_multiplier"] == 0
    assert outcome.json["statement"].startswith("Not differentially private")
    assert "Not differentially private" in (tmp_path / "run" / "report.html").read_text()


def test_accountant_relation_sampling_and_scale_reach_the_record(tmp_path):
    chosen = {
        "accountant": "moments",
        "relation": "replace-one",
        "sampling": "fixed-size",
        "scale": "learned",
    }
    outcome = call(*train_line(tmp_path / "run", **chosen, json=True))
    assert outcome.code == 0, outcome.err
    assert 0.9 < outcome.json["epsilon"] <= 1
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["guarantee"]["accountant"] == "rdp"
    assert record["plan"]["relation"] == "replace-one"
    assert record["plan"]["sampling"] == "fixed-size"
    assert record["model"]["network"]["scale"] == "learned"
    for words in ("replacing one image", "fixed-size sampling of 200 of 1437", "Renyi"):
        assert words in outcome.json["statement"]


def test_for_people_it_prints_the_statement_the_accuracy_and_where_the_report_is(tmp_path):
    folder = tmp_path / "a [red]run"  # brackets are no markup
    outcome = call(*train_line(folder, seeded_noise=True))
    statement, accuracy, report = outcome.out.splitlines()
    assert "not private against whoever knows the seed" in statement
    assert accuracy.startswith("test accuracy 0.")
    assert report.endswith(f"report {folder / 'report.html'}")
    assert "ε 0.9999 of 1" in outcome.err  # the bar's last state


def test_a_delta_of_one_over_n_warns_and_goes_on(tmp_path):
    outcome = call(*train_line(tmp_path / "run", delta=1e-3, json=True))
    assert outcome.code == 0
    assert outcome.err.startswith("warning: --delta 0.001 is not below 1/N = 0.000696")
    assert outcome.json["delta"] == 1e-3
