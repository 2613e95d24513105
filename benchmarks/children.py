"""Measurements in processes of their own: what they printed, or why there is nothing."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["ROOT", "NoResult", "child"]

ROOT = Path(__file__).parents[1]
LONGEST_REASON = 160


class NoResult(Exception):
    """A measurement that could not be made; the message is the reason, in one line."""


def child(*arguments: object, python: Path | None = None, timeout: float = 900.0) -> Any:
    """What ``python -m benchmarks.child ...`` measured.

    Args:
        arguments: of that command.
        python: the interpreter; this one if None.
        timeout: seconds after which it is given up.

    Raises:
        NoResult: with the reason, when the process failed, was killed or took too long.
    """
    command = [str(python or sys.executable), "-m", "benchmarks.child", *map(str, arguments)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise NoResult(f"took longer than {timeout:g} s") from None
    if done.returncode < 0:
        raise NoResult(
            f"ended by {signal.Signals(-done.returncode).name}, as processes are that ask for too much memory"
        )
    if done.returncode > 0:
        raise NoResult(_reason(done.stderr))
    return json.loads(done.stdout.splitlines()[-1])


def _reason(errors: str) -> str:
    """The line of the exception."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    raised = [line for line in lines if ": " in line and line.split(":")[0].endswith(("Error", "Exception", "Exit"))]
    reason = (raised or lines or ["failed without a word"])[-1]
    return reason if len(reason) <= LONGEST_REASON else reason[: LONGEST_REASON - 1] + "…"
