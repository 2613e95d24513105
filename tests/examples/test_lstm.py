"""The LSTM example runs, stays within its budget and learns."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "lstm.py"
FILES = os.environ.get("DPVD_DATA_DIR")


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def accuracy(output: str) -> float:
    (value,) = re.findall(r"(?:test|held-out) accuracy (0\.\d+)", output)
    return float(value)


@pytest.fixture(scope="module")
def output() -> str:
    """A short run, with a budget that is worth about as much for each of its steps."""
    return run("--dataset", "digits", "--epsilon", "8", "--steps", "40")


def test_every_layer_is_variational(output):
    assert (
        "converted to AdditiveLSTM: lstm; converted to AdditiveLinear: head; left as they are: none"
        in output
    )


def test_it_states_a_guarantee_within_the_budget(output):
    (epsilon,) = re.findall(r"\(([\d.]+), 1e-05\)-differentially private", output)
    assert 7.6 < float(epsilon) <= 8.0
    assert "all examples in every step for 40 steps" in output
    assert "on a held-out part of the training data" in output


def test_it_learns(output):
    assert "test accuracy" in output
    assert accuracy(output) > 0.6  # a tenth would be right by chance


@pytest.mark.skipif(not FILES, reason="DPVD_DATA_DIR does not name a folder with MNIST")
def test_it_learns_the_rows_of_mnist_and_scores_on_images_it_was_not_trained_on():
    output = run("--epsilon", "8", "--steps", "30", "--validate", "--data-dir", str(FILES))
    assert "Public: the number of training examples (48000)" in output
    assert "held-out accuracy" in output
    assert accuracy(output) > 0.6
