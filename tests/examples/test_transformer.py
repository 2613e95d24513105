"""The transformer example runs, stays within its budget and learns."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "transformer.py"


@pytest.fixture(scope="module")
def output() -> str:
    """A short run: a fifth of the steps, and a budget that is worth about as much for each of
    them.
    """
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            str(EXAMPLE),
            "--epsilon",
            "8",
            "--steps",
            "20",
            "--validate",
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_guarantee_is_stated_and_within_the_budget(output):
    (epsilon,) = re.findall(r"\(([\d.]+), 1e-05\)-differentially private", output)
    assert 7.6 < float(epsilon) <= 8.0
    assert "all examples in every step for 20 steps" in output
    assert "on a held-out fifth of the training data" in output


def test_attention_and_dense_layers_are_variational(output):
    assert "converted to AdditiveMultiheadAttention: encoder.layers.0.self_attn" in output
    assert "encoder.layers.0.linear1, encoder.layers.0.linear2, head" in output


def test_it_learns(output):
    (accuracy,) = re.findall(r"held-out accuracy (0\.\d+)", output)
    assert float(accuracy) > 0.5  # a tenth would be right by chance
