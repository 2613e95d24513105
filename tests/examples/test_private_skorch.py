"""The skorch example runs, stays within its budget and learns."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("skorch")

EXAMPLE = Path(__file__).parents[2] / "examples" / "private_skorch.py"


def test_it_learns_within_its_budget():
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    (spent,) = re.findall(r"\(([\d.]+), 1e-05\)-differentially private", done.stdout)
    assert 2.9 < float(spent) <= 3.0
    (accuracy,) = re.findall(r"test accuracy (0\.\d+)", done.stdout)
    assert float(accuracy) > 0.5
    assert "train_loss" not in done.stdout
