"""Bad input to ``dpvd train``: one clear line, exit code 2, nothing lost and nothing
half-written.
"""

import os
import shutil
from pathlib import Path

import pytest

from dpvd.privacy import Ledger
from tests.cli.program import assert_refused, call, contents, train_line

BAD_OPTIONS = [
    ({"epsilon": 0}, ["--epsilon must ", "above 0"]),
    ({"epsilon": -1}, ["--epsilon must ", "-1"]),
    ({"epsilon": "nan"}, ["--epsilon must ", "nan"]),
    ({"epsilon": "inf"}, ["--epsilon must ", "inf"]),
    ({"epsilon": None}, ["--epsilon", "--method none"]),
    ({"epsilon": "much"}, ["--epsilon"]),
    ({"delta": 0}, ["--delta must ", "between 0 and 1"]),
    ({"delta": -1e-5}, ["--delta must ", "-1e-05"]),
    ({"delta": 1}, ["--delta must ", "between 0 and 1"]),
    ({"delta": "nan"}, ["--delta must ", "nan"]),
    ({"delta": 0, "method": "none"}, ["--delta must "]),
    ({"delta": 1e-300}, ["1e-300"]),
    ({"delta": None}, ["Missing option", "--delta"]),
    ({"batch_size": 1438}, ["--batch-size must ", "1437", "1438"]),
    ({"batch_size": 0}, ["--batch-size must be an integer of at least 1, got 0"]),
    ({"batch_size": -5}, ["--batch-size must ", "-5"]),
    ({"batch_size": 1.5}, ["--batch-size"]),
    ({"epochs": 0}, ["--epochs must ", "above 0"]),
    ({"epochs": -1}, ["--epochs must ", "-1"]),
    ({"epochs": "nan"}, ["--epochs must ", "nan"]),
    ({"epochs": 1e20}, ["steps", "fewer epochs"]),
    ({"epochs": 1e308}, ["--epochs must "]),
    ({"hidden": 0}, ["--hidden must ", "at least 1"]),
    ({"hidden": -3}, ["--hidden must ", "-3"]),
    ({"hidden": 10**12}, ["does not fit into memory"]),
    ({"hidden": 10**30}, ["does not fit into memory"]),
    ({"network": "cnn"}, ["cnn", "64 features", "use the mlp"]),
    ({"gamma": 0.5}, ["--gamma is ", "--decay power"]),
    ({"decay": "power", "gamma": -1}, ["--gamma must ", "at least 0"]),
    ({"learning_rate": 0}, ["--learning-rate must ", "above 0"]),
    ({"learning_rate": "inf"}, ["--learning-rate must ", "inf"]),
    ({"learning_rate": 1e300}, ["--learning-rate must ", "1e+300"]),
    ({"clip_norm": 0}, ["--clip-norm must ", "above 0"]),
    ({"clip_norm": -1}, ["--clip-norm must ", "-1"]),
    ({"clip_norm": 1e-300}, ["--clip-norm must ", "1e-300"]),
    ({"clipping": "none"}, ["--clipping none", "--method none"]),
    ({"kl_weight": -1}, ["--kl-weight must ", "-1"]),
    ({"kl_weight": "nan"}, ["--kl-weight must ", "nan"]),
    ({"seed": -1}, ["--seed must ", "-1"]),
    ({"seed": 10**30}, ["--seed must ", str(10**30)]),
    ({"seed": -1, "seeded_noise": True}, ["--seed must ", "-1"]),
    ({"method": "magic"}, ["--method", "magic", "dpsgd"]),
    ({"dataset": "letters"}, ["digits, mnist", "letters"]),
    ({"accountant": "friend"}, ["--accountant", "pld, rdp, zcdp, advanced", "friend"]),
    ({"scale": "learned", "method": "svi"}, ["--scale can ", "svi"]),
    ({"sampling": "fixed-size"}, ["fixed-size", "add-or-remove", "supports"]),
    ({"sampling": "shuffled"}, ["--sampling", "poisson"]),
    ({"frobnicate": 1}, ["No such option", "--frobnicate", "dpvd train --help"]),
]


@pytest.mark.parametrize(("changes", "words"), BAD_OPTIONS, ids=lambda value: str(value)[:40])
def test_bad_options_are_refused_before_anything_is_written(changes, words, tmp_path):
    assert_refused(call(*train_line(tmp_path / "run", **changes, json=True)), *words)
    assert not (tmp_path / "run").exists()


def test_unknown_commands_are_refused():
    assert_refused(call("tarin", "digits"), "No such command", "tarin")


def test_no_command_shows_the_help():
    outcome = call()
    assert outcome.code == 0
    for name in ("train", "budget", "predict", "show"):
        assert name in outcome.out


def test_training_that_diverges_says_so_and_leaves_no_record(tmp_path):
    outcome = call(*train_line(tmp_path / "run", method="none", learning_rate=1e30))
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.splitlines()[-1].startswith("error: training diverged")
    assert not (tmp_path / "run" / "record.json").exists()
    assert not (tmp_path / "run" / "model.safetensors").exists()


# Where a run may not go.


@pytest.mark.parametrize("name", ["notes.txt", "ledger.jsonl", ".hidden"])
def test_a_folder_with_anything_in_it_is_left_byte_for_byte(name, tmp_path):
    (tmp_path / name).write_text("precious")
    assert_refused(call(*train_line(tmp_path)), "not empty", "--resume")
    assert contents(tmp_path) == {name: b"precious"}


def test_a_finished_run_is_not_overwritten(run):
    before = contents(run)
    assert_refused(call(*train_line(run)), "not empty")
    assert contents(run) == before


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("precious")
    assert_refused(call(*train_line(tmp_path / "file")), "is a file")
    assert_refused(
        call(*train_line(tmp_path / "file" / "run")), "cannot write into", "another --out"
    )
    assert contents(tmp_path) == {"file": b"precious"}


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write anywhere"
)
def test_a_folder_without_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    assert_refused(call(*train_line(tmp_path / "run")), "cannot write into")


def test_an_empty_folder_is_taken(tmp_path):
    outcome = call(*train_line(tmp_path, epochs=0.1, json=True))
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "report.html").exists()


# Resuming.


def test_resuming_goes_on_with_the_account(unfinished):
    outcome = call(*train_line(unfinished, resume=True, json=True))
    assert outcome.code == 0, outcome.err
    assert outcome.json["steps"] == Ledger.open(unfinished / "ledger.jsonl").charged == 15
    assert 0.9 < outcome.json["epsilon"] <= 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": 2}, ["--epsilon 1.0, not 2.0"]),
        ({"epochs": 3}, ["epochs 2.0, not 3.0"]),
        ({"batch_size": None}, ["--batch-size 200, not left to the default"]),
        ({"hidden": 17}, ["hidden 16, not 17"]),
        ({"decay": "power"}, ["decay left to the default, not power"]),
        ({"seed": 1}, ["--seed 0, not 1"]),
        ({"method": "dpsgd"}, ["method dpvd, not dpsgd"]),
        ({"accountant": "rdp"}, ["accountant pld, not rdp"]),
        ({"learning_rate": 0.1}, ["--learning-rate left to the default, not 0.1"]),
        ({"seeded_noise": True}, ["--seeded-noise False, not True"]),
    ],
    ids=str,
)
def test_resuming_with_other_options_is_refused(changes, words, unfinished):
    before = contents(unfinished)
    assert_refused(call(*train_line(unfinished, **changes, resume=True)), *words)
    assert contents(unfinished) == before


@pytest.mark.parametrize("left", [0, 10, 2000])
def test_a_truncated_checkpoint_is_refused(left, unfinished):
    checkpoint = unfinished / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:left])
    before = contents(unfinished)
    assert_refused(call(*train_line(unfinished, resume=True)), "checkpoint.safetensors is damaged")
    assert contents(unfinished) == before


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("checkpoint.safetensors", ["no checkpoint"]),
        ("ledger.jsonl", ["cannot read the ledger"]),
        ("options.json", ["no run to resume"]),
    ],
)
def test_resuming_without_one_of_the_files_is_refused(name, words, unfinished):
    (unfinished / name).unlink()
    before = contents(unfinished)
    assert_refused(call(*train_line(unfinished, resume=True)), *words)
    assert contents(unfinished) == before


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_damaged_options_are_refused(text, unfinished):
    (unfinished / "options.json").write_text(text)
    assert_refused(call(*train_line(unfinished, resume=True)), "options.json")


def test_resuming_where_there_is_nothing_is_refused(tmp_path):
    assert_refused(call(*train_line(tmp_path / "run", resume=True)), "no run to resume")
    assert not (tmp_path / "run").exists()
    (tmp_path / "file").write_text("precious")
    assert_refused(call(*train_line(tmp_path / "file", resume=True)), "no run to resume")
    assert contents(tmp_path) == {"file": b"precious"}


def test_resuming_without_out_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = train_line(tmp_path, resume=True)
    assert_refused(call(*line[:2], *line[4:]), "--resume needs --out")
    assert contents(tmp_path) == {}


def test_resuming_a_finished_run_changes_neither_model_nor_account(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    outcome = call(*train_line(folder, resume=True, json=True))
    assert outcome.code == 0, outcome.err
    for name in ("model.safetensors", "ledger.jsonl"):
        assert (folder / name).read_bytes() == (run / name).read_bytes()


# Finding out more.


@pytest.mark.parametrize("place", [0, 1, 3])
def test_debug_anywhere_on_the_line_shows_the_traceback(place, tmp_path):
    line = ["show", tmp_path / "nothing", "--json"]
    outcome = call(*line[:place], "--debug", *line[place:])
    assert outcome.code == 2
    assert outcome.err.startswith("Traceback")
    assert "DpvdError: there is no run folder" in outcome.err


def test_an_unexpected_exception_keeps_its_traceback(run, monkeypatch):
    monkeypatch.setattr(Path, "is_dir", lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        call("show", run)
