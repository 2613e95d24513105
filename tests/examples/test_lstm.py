"""The LSTM example runs, stays within its budget and learns."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "lstm.py"


@pytest.fixture(scope="module")
def output() -> str:
    """A short run, with a budget that leaves little noise."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE), "--epsilon", "50", "--steps", "40"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_layer_is_variational(output):
    assert "converted to AdditiveLSTM: lstm" in output
    assert "left as they are: none" in output


def test_it_states_a_guarantee_within_the_budget(output):
    (epsilon,) = re.findall(r"\(([\d.]+), 1e-05\)-differentially private", output)
    assert 49 < float(epsilon) <= 50
    assert "all examples in every step for 40 steps" in output


def test_it_learns(output):
    (accuracy,) = re.findall(r"test accuracy (0\.\d+)", output)
    assert float(accuracy) > 0.4  # a tenth would be right by chance
