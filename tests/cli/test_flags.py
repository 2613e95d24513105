"""Errors name the flag that was typed, and leave every other word alone."""

import pytest

from dpvd.cli.flags import name_flags
from tests.cli.program import assert_refused, call, train_line

FLAGS = {"batch_size": "--batch-size", "seed": "--seed", "out_dir": "--out"}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("batch_size must be at least 1, got 0", "--batch-size must be at least 1, got 0"),
        ("seed can be chosen only here", "--seed can be chosen only here"),
        (
            "the run in x was started with seed 0, not 1",
            "the run in x was started with --seed 0, not 1",
        ),
        # No parameter of this command.
        ("epochs must be above 0, got 0", "epochs must be above 0, got 0"),
        (
            "the run in x was started with checksum a, not b",
            "the run in x was started with checksum a, not b",
        ),
        # Files that happen to have such a name.
        ("seed exists and is not empty", "seed exists and is not empty"),
        ("seed is a file", "seed is a file"),
        ("there is no run folder batch_size", "there is no run folder batch_size"),
        # Plain words.
        ("a seed must be given", "a seed must be given"),
    ],
)
def test_a_parameter_becomes_its_flag_where_the_message_is_about_it(message, expected):
    assert name_flags(message, FLAGS) == expected


def test_a_folder_with_the_name_of_an_option_keeps_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "seed").mkdir()
    (tmp_path / "seed" / "notes.txt").write_text("precious")
    assert_refused(call(*train_line("seed")), "error: seed exists and is not empty")


def test_predict_names_its_flag(tmp_path):
    outcome = call("predict", tmp_path, tmp_path / "new.csv", "--samples", 0)
    assert_refused(outcome, "error: --samples must be an integer of at least 1, got 0")
