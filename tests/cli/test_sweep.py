"""``dpvd train`` with several methods, budgets and seeds: one folder each, and what all cost."""

import json

import pytest

from tests.cli.program import assert_refused, call

SMALL = ("--delta", 1e-5, "--hidden", 8, "--epochs", 1, "--batch-size", 400)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """The folder of a sweep of two methods and two seeds, and what the command printed."""
    folder = tmp_path_factory.mktemp("sweep") / "all"
    wanted = ("--method", "dpvd,dpsgd", "--epsilon", "0.5", "--seeds", 2, "--out", folder)
    return folder, call("train", "digits", *SMALL, *wanted), wanted


def test_every_run_has_a_folder_and_the_sum_is_said(swept):
    folder, shown, _ = swept
    assert shown.code == 0, shown.err
    names = {path.name for path in folder.iterdir() if path.is_dir()}
    methods = ("dpvd", "dpsgd")
    assert names == {f"{method}-epsilon-0.5-seed-{seed}" for method in methods for seed in (0, 1)}
    assert "All 4 private runs cost (" in shown.out
    alone = json.loads((folder / "dpvd-epsilon-0.5-seed-0" / "record.json").read_text())
    together = float(shown.out.split("private runs cost (")[1].split(",")[0])
    assert together > 1.5 * alone["guarantee"]["epsilon"]


def test_a_sweep_that_is_called_again_trains_nothing(swept):
    folder, _, wanted = swept
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    again = call("train", "digits", *SMALL, *wanted, "--json")
    assert again.code == 0, again.err
    assert len(again.json) == 4
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert after == before


def test_a_shell_may_name_all_that_is_in_the_folder(swept):
    folder, _, _ = swept
    assert call("compare", *sorted(folder.iterdir())).code == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (("--epsilon", "0.5,much"), "--epsilon"),
        (("--epsilon", "0.5,0.5"), "twice"),
        (("--method", "dpvd,magic", "--epsilon", "1"), "magic"),
        (("--epsilon", "0.5", "--seeds", 0), "--seeds must"),
    ],
)
def test_bad_lists_are_refused(changes, words, tmp_path):
    outcome = call("train", "digits", *SMALL, *changes, "--out", tmp_path / "new")
    assert_refused(outcome, words)
    assert not (tmp_path / "new").exists()


def test_a_sweep_needs_a_folder():
    outcome = call("train", "digits", *SMALL, "--epsilon", "0.5,1")
    assert_refused(outcome, "--out")
