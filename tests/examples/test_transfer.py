"""The transfer example runs, stays within its budget and learns."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "transfer.py"


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def output() -> str:
    return run("--epsilon", "2", "--steps", "40", "--public-steps", "150")


def test_both_heads_state_a_guarantee_within_the_budget(output):
    spent = [
        float(value) for value in re.findall(r"\(([\d.]+), 1e-05\)-differentially private", output)
    ]
    assert len(spent) == 2
    assert all(1.9 < epsilon <= 2.0 for epsilon in spent)
    assert output.count("all examples in every step for 40 steps") == 2


def test_heads_learn_and_public_features_help(output):
    on_features, on_pixels = (
        float(value) for value in re.findall(r"test accuracy (0\.\d+)", output)
    )
    assert on_pixels > 0.7  # half of the labels would be right by chance
    assert on_features > on_pixels


def test_the_sum_of_both_budgets_is_not_hidden(output):
    assert "whoever publishes both has to add up their budgets" in output
