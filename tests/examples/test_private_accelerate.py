"""The Accelerate example runs, and its tracker hears nothing of training."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("accelerate")
pytest.importorskip("peft")

EXAMPLE = Path(__file__).parents[2] / "examples" / "private_accelerate.py"


def test_it_learns_within_its_budget_and_saves_its_account():
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    (spent,) = re.findall(r"\(([\d.]+), 0.0001\)-differentially private", done.stdout)
    assert 7.9 < float(spent) <= 8.0
    logged = re.findall(r"^step \d+: (.*)$", done.stdout, re.MULTILINE)
    assert [re.sub(r" [\d.]+", "", line) for line in logged] == ["epsilon, eval_accuracy"] * 4
    assert "saved: dpvd_account.json" in done.stdout
