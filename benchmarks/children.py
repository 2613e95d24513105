"""Measurements in processes of their own: what they printed, or why there is nothing."""

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

__all__ = ["ANSWER", "ROOT", "NoResult", "StepServer", "child"]

ROOT = Path(__file__).parents[1]
LONGEST_REASON = 160
PAUSE = 0.03  # seconds before a turn: threads of the one before still spin for some milliseconds
ANSWER = "answer:"
"""Begins the answers of ``benchmarks.child serve``: libraries may print what they like."""


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
    try:
        done = subprocess.run(
            _command(arguments, python), cwd=ROOT, capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        raise NoResult(f"took longer than {timeout:g} s") from None
    if done.returncode:
        raise NoResult(_reason(done.returncode, done.stderr))
    return json.loads(done.stdout.splitlines()[-1])


class StepServer:
    """A system in a process of its own, which takes steps when asked.

    Memory that other systems use and give back does not change its times.

    Args:
        arguments: of ``python -m benchmarks.child serve``.
        python: the interpreter; this one if None.
        timeout: seconds after which the process is ended.
    """

    def __init__(
        self, *arguments: object, python: Path | None = None, timeout: float = 900.0
    ) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed at the end
        self._process = subprocess.Popen(
            _command(("serve", *arguments), python),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._timer = threading.Timer(timeout, self._process.kill)
        self._timer.start()

    def wait_until_ready(self) -> None:
        """Return when it has been built and warmed up.

        Raises:
            NoResult: with the reason, if that failed.
        """
        self._answer()

    def __call__(self, repeats: int) -> float:
        """Take so many steps: milliseconds of one.

        Raises:
            NoResult: with the reason, if the process failed, was killed or took too long.
        """
        assert self._process.stdin is not None
        time.sleep(PAUSE)
        with contextlib.suppress(BrokenPipeError):  # the reason is found when there is no answer
            print(repeats, file=self._process.stdin, flush=True)
        answer = self._answer()
        return float(answer)

    def end(self) -> None:
        self._timer.cancel()
        self._timer.join()  # on a busy machine it takes a moment to notice
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                return line.removeprefix(ANSWER).strip()
        code = self._process.wait()
        self._errors.seek(0)
        raise NoResult(_reason(code, self._errors.read()))


def _command(arguments: tuple[object, ...], python: Path | None) -> list[str]:
    interpreter = str(python or sys.executable)
    words = [str(argument) for argument in arguments]
    return [interpreter, "-m", "benchmarks.child", *words]


def _reason(code: int, errors: str) -> str:
    """The signal that ended a process, or the line of its exception."""
    if code < 0:
        return (
            f"ended by {signal.Signals(-code).name}, as processes are that ask for too much memory"
            " or time"
        )
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    raised = [
        line
        for line in lines
        if ": " in line and line.split(":")[0].endswith(("Error", "Exception", "Exit"))
    ]
    reason = (raised or lines or ["failed without a word"])[-1]
    return reason if len(reason) <= LONGEST_REASON else reason[: LONGEST_REASON - 1] + "…"
