"""The convolutional example runs, stays within its budget and learns."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "cnn.py"
FILES = os.environ.get("DPVD_DATA_DIR")

pytestmark = pytest.mark.skipif(not FILES, reason="DPVD_DATA_DIR does not name a folder with MNIST")


@pytest.fixture(scope="module")
def output() -> str:
    short = ["--examples", "3000", "--steps", "20", "--epsilon", "8", "--data-dir", str(FILES)]
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLE, *short],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_states_a_guarantee_within_the_budget(output):
    (spent,) = re.findall(r"\(([\d.]+), 1e-05\)-differentially private", output)
    assert 7.2 < float(spent) <= 8.0
    assert "the learning rate, on MNIST itself" in output


def test_it_learns(output):
    (accuracy,) = re.findall(r"test accuracy (0\.\d+)", output)
    assert float(accuracy) > 0.4
