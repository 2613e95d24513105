"""The program as a process: what reaches which stream, exit codes, and signals in the middle of a
run.
"""

import json
import signal
import sys
import time
from pathlib import Path

import pytest

from dpvd.privacy import Ledger
from tests.cli.program import call, start, train_line

LONG = {"epochs": 40}
"""288 steps with a checkpoint after every 14 or 15: time enough to be stopped in the middle."""


def wait_for_charge(folder: Path, process) -> None:
    """Until a step has been charged; the process must not end before."""
    ledger = folder / "ledger.jsonl"
    deadline = time.monotonic() + 120
    while not ledger.exists() or b'"charged"' not in ledger.read_bytes():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_bad_input_is_one_line_on_stderr_and_exit_code_2(tmp_path):
    process = start(*train_line(tmp_path / "run", epsilon=-1, json=True))
    out, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert out == ""
    assert err == "error: --epsilon must be a finite number above 0, got -1.0\n"


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")
def test_interrupt_then_resume(tmp_path):
    folder = tmp_path / "run"
    first = start(*train_line(folder, **LONG, json=True))
    wait_for_charge(folder, first)
    first.send_signal(signal.SIGINT)
    out, err = first.communicate(timeout=120)
    assert first.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    assert "--resume" in err.splitlines()[-1]
    shown = call("show", folder, "--json")
    assert shown.code == 0, shown.err
    charged = shown.json["charged"]
    assert 0 < charged < 288
    assert not (folder / "record.json").exists()

    second = start(*train_line(folder, **LONG, json=True, resume=True))
    out, err = second.communicate(timeout=120)
    assert second.returncode == 0, err
    said = json.loads(out)  # one JSON object on stdout and nothing else
    assert out.count("\n") == 1
    assert said["steps"] == Ledger.open(folder / "ledger.jsonl").charged == 288
    assert 0.9 < said["epsilon"] <= 1
    assert "288" in said["statement"]


def test_kill_then_resume_never_takes_more_steps_than_were_left(tmp_path):
    folder = tmp_path / "run"
    process = start(*train_line(folder, **LONG, json=True))
    wait_for_charge(folder, process)
    time.sleep(0.05)  # some steps past the checkpoint: charged, and lost
    process.kill()
    process.communicate(timeout=120)
    before = (folder / "ledger.jsonl").read_bytes()
    resumed = call(*train_line(folder, **LONG, json=True, resume=True))
    assert resumed.code == 0, resumed.err
    after = (folder / "ledger.jsonl").read_bytes()
    assert after.startswith(before[: before.rindex(b"\n") + 1])  # no charge is taken back
    assert Ledger.open(folder / "ledger.jsonl").charged == resumed.json["steps"] == 288
    assert 0.9 < resumed.json["epsilon"] <= 1
