"""How tests call the program: in this process where it can be, in one of its own where that is the
point.
"""

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from dpvd.cli import main

# A shell starts background jobs with Ctrl-C ignored, and children inherit that; the tests send it
# on purpose.
TAKE_INTERRUPTS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
PROGRAM = (sys.executable, "-c", f"{TAKE_INTERRUPTS}; from dpvd.cli import main; main()")

SMALL = {"delta": 1e-5, "epsilon": 1.0, "hidden": 16, "epochs": 2.0, "batch_size": 200}
"""A run of 15 quick steps on DIGITS."""


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def call(*arguments: object) -> Outcome:
    """Run a command in this process, through the function that the ``dpvd`` script calls."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["dpvd", *map(str, arguments)]
    with patch.object(sys, "argv", argv), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
    return Outcome(code, out.getvalue(), err.getvalue())


def start(*arguments: object) -> subprocess.Popen[str]:
    """Start a command in a process of its own."""
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def train_line(folder: Path, **changes: object) -> list[object]:
    """The command line of a small run; None leaves an option out, True gives a flag."""
    line: list[object] = ["train", changes.pop("dataset", "digits"), "--out", folder]
    for name, value in (SMALL | changes).items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            line.append(flag)
        elif value is not None:
            line += [flag, value]
    return line


def assert_refused(outcome: Outcome, *words: str) -> None:
    """One clear line on stderr that contains the words, exit code 2, nothing on stdout."""
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    lines = outcome.err.splitlines()
    assert len(lines) == 1, outcome.err
    assert lines[0].startswith("error: ")
    for word in words:
        assert word in lines[0], outcome.err


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by name, byte for byte."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
