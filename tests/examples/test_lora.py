"""The LoRA example runs under either scale, stays within its budget, and doubts garbage."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("peft")
pytest.importorskip("transformers")

EXAMPLE = Path(__file__).parents[2] / "examples" / "lora.py"


@pytest.fixture(scope="module", params=["privacy", "learned"])
def output(request: pytest.FixtureRequest) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--scale", request.param, "--steps", "40"],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_only_adapters_and_head_are_variational(output):
    line = output.splitlines()[0]
    assert line.count("lora_A.default") == line.count("lora_B.default") == 2
    assert "score.modules_to_save.default; left as they are: none; frozen, and left:" in line
    assert "8 Conv1D" in line


def test_the_guarantee_is_within_the_budget(output):
    (spent,) = re.findall(r"\(([\d.]+), 1e-05\)-differentially private", output)
    assert 7.9 < float(spent) <= 8.0
    assert "adding or removing one text" in output
    assert "Tuned on the data: nothing." in output


def test_it_learns_and_is_less_certain_of_garbage(output):
    (accuracy,) = re.findall(r"test accuracy ([\d.]+)", output)
    assert float(accuracy) > 0.85
    for kind in ("entropy", "spread"):
        (pair,) = re.findall(rf"{kind}: ([\d.]+) on texts, ([\d.]+) on garbage", output)
        assert float(pair[1]) > 1.2 * float(pair[0]) > 0, kind
