"""What `tools.torture` kills: the program, whose releases and system calls are watched."""

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import dpvd.cli
import dpvd.cli.show  # commands are loaded when they are asked for: here once, for all children
import dpvd.cli.train
import dpvd.cli.verify
import dpvd.report.figures
from dpvd.statistics import bounds, categories, moments, score_counts
from dpvd.training.update import Update

__all__ = ["Run", "program"]

WATCHED = ("open", "os.rename", "os.remove", "os.mkdir", "os.truncate", "os.chmod", "os.listdir")


@dataclass(frozen=True)
class Run:
    """One run: its folder, its command line, whether it draws from an account, and its notes."""

    folder: Path
    line: tuple[str, ...]
    draws: bool = False

    @property
    def observed(self) -> Path:
        return self.folder.with_suffix(".released")

    @property
    def said(self) -> Path:
        return self.folder.with_suffix(".said")

    @property
    def account(self) -> Path | None:
        """Of the run's data, if it draws from one: a file that only this run draws from."""
        return self.folder.with_name(f"{self.folder.name}-account") if self.draws else None

    def command(self) -> list[str]:
        """The next command that a user would give: to begin, or to go on."""
        begun = (self.folder / "options.json").exists()
        account = [] if self.account is None else ["--account", str(self.account)]
        return [*self.line, *account, "--out", str(self.folder), *(["--resume"] if begun else [])]


def program(command: list[str], run: Run, instant: int | None) -> None:
    """What ``dpvd`` does, watched; it is killed at the given system call, if one is given."""
    handle = os.open(run.said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    watch_releases(os.open(run.observed, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    count = watch_calls(run, instant)
    sys.argv = ["dpvd", *command]
    try:
        dpvd.cli.main()
    finally:
        run.folder.with_suffix(".calls").write_text(str(count[0]))


def watch_releases(notes: int) -> None:
    """Note every noisy result as soon as the program has it; a step by a name of its own."""
    take_step = Update.release

    def step(self: Update, *arguments: Any) -> None:
        take_step(self, *arguments)
        os.write(notes, f"step {uuid4().hex}\n".encode())

    Update.release = step  # type: ignore[method-assign]
    for module in (bounds, categories, moments, score_counts):
        release = module.release_total

        def released(total: Any, *rest: Any, release: Any = release, **options: Any) -> float:
            std: float = release(total, *rest, **options)
            # A resumed run reads a result that is paid for: the same numbers are the same release.
            os.write(notes, f"sum {total.sum().item().hex()}\n".encode())
            return std

        module.release_total = released


def watch_calls(run: Run, instant: int | None) -> list[int]:
    """Count system calls that concern the folder, and end this process at the given one."""
    count = [0]
    place = str(run.folder)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in WATCHED or place not in f"{arguments[:2]}":
            return
        if f"{place}." in f"{arguments[:2]}":  # the notes beside it
            return
        count[0] += 1
        if count[0] == instant:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return count
