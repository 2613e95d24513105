"""Folders that version 0.1.0 wrote before the code of runs was laid out anew still open.

``old_runs/finished`` ran to its end; ``old_runs/interrupted`` is the same run, stopped after four
of its eight steps. Noise, sampling and weights follow from the seed.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dpvd.data import load
from dpvd.errors import DpvdError
from dpvd.report import write_report
from dpvd.runs import RunOptions, RunRecord, TrainedRun, execute, prepare_run
from tests.cli.program import call

OLD = Path(__file__).parent / "old_runs"
OPTIONS = RunOptions(
    delta=1e-5,
    epsilon=1.0,
    hidden=4,
    epochs=1.0,
    batch_size=200,
    decay="power",
    gamma=0.5,
    seeded_noise=True,
)
CLAIMED = ("epsilon", "delta", "steps", "noise_multiplier", "relation", "accountant", "tuned")
PASSING = ("seconds", "created", "environment", "version")  # found anew by each run


def lasting(record: RunRecord) -> dict[str, object]:
    return {name: value for name, value in record.to_dict().items() if name not in PASSING}


def assert_same_result(folder: Path) -> None:
    """The folder holds the record and the weights of the old, finished run."""
    ours, old = RunRecord.read(folder), RunRecord.read(OLD / "finished")
    assert ours.plan == old.plan
    assert ours.recipe == old.recipe
    for name in CLAIMED:
        assert ours.guarantee[name] == old.guarantee[name]
    assert {**ours.model, "checksum": None} == {**old.model, "checksum": None}  # a later addition
    assert ours.dataset == old.dataset
    assert ours.epsilon == old.epsilon
    assert set(lasting(ours)) == set(lasting(old))
    assert ours.test["accuracy"] == pytest.approx(old.test["accuracy"], abs=0.003)
    weights = load_file(folder / "model.safetensors")
    expected = load_file(OLD / "finished" / "model.safetensors")
    assert set(weights) == set(expected)
    for name, value in weights.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)


def test_an_old_record_is_read_whole():
    written = json.loads((OLD / "finished" / "record.json").read_text(encoding="utf-8"))
    assert RunRecord.read(OLD / "finished").to_dict() == written


def test_an_old_model_reaches_what_its_record_says():
    run = TrainedRun(OLD / "finished")
    data = load("digits")
    probabilities, _ = run.predict_dist(data.test_x, samples=run.record.test["samples"])
    accuracy = (probabilities.argmax(1) == data.test_y).double().mean().item()
    assert accuracy == pytest.approx(run.record.test["accuracy"], abs=0.003)


def test_the_commands_take_an_old_folder(tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(OLD / "finished", folder)
    record = RunRecord.read(folder)
    shown = call("show", folder)
    assert shown.code == 0, shown.err
    assert record.guarantee["sentence"] in " ".join(shown.out.split())
    assert call("show", folder, "--json").json == record.to_dict()
    unfinished = call("show", OLD / "interrupted", "--json").json
    assert (unfinished["charged"], unfinished["steps"]) == (4, 8)


def test_an_old_record_makes_a_page(tmp_path):
    record = RunRecord.read(OLD / "finished")
    page = write_report(record, tmp_path).read_text(encoding="utf-8")
    assert "Not differentially private." not in page
    assert "Reproducible: not private against whoever knows the seed." in page


def test_the_same_options_give_the_same_run_as_before(tmp_path):
    execute(prepare_run(OPTIONS, load("digits")), tmp_path / "run")
    assert_same_result(tmp_path / "run")
    written = json.loads((tmp_path / "run" / "options.json").read_text(encoding="utf-8"))
    before = json.loads((OLD / "finished" / "options.json").read_text(encoding="utf-8"))
    assert {name: written[name] for name in before} == before


def test_an_old_interrupted_run_is_resumed_to_the_same_end(tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(OLD / "interrupted", folder)
    execute(prepare_run(OPTIONS, load("digits")), folder, resume=True)
    assert_same_result(folder)


def test_an_old_folder_is_not_resumed_with_other_options(tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(OLD / "interrupted", folder)
    other = RunOptions(**{**OPTIONS.to_dict(), "gamma": 1.0})
    with pytest.raises(DpvdError, match=r"gamma 0\.5, not 1\.0"):
        execute(prepare_run(other, load("digits")), folder, resume=True)
