"""The file that says how many steps have been paid for: charge before release.

One JSON object per line. The first line holds the plan and its fingerprint. Whoever begins to
charge writes ``{"start": "9f2c..."}``, a number that nobody else draws; each further line is one
charge, ``{"charged": 30, "steps": 10}``: ten more steps, thirty in all. Every line ends with
``"hash"``: SHA-256 of all bytes before the line and of the line without its hash. A line that is
changed, dropped, repeated or moved breaks this chain, and two copies of a ledger that are both
charged differ from their starts on. The line of a charge may carry the noisy result that it pays
for (``kept``): the two are on disk together, or neither is.

Why a crash can over-count but never under-count: :meth:`Ledger.charge` returns only after the line,
newline included, is on disk, and the caller uses nothing of a step before it has returned. A line
without its newline is therefore a charge that never returned; nothing was released under it, and it
is ignored. A complete line whose caller died counts, although perhaps nothing was released. Damage
of any other kind cannot come from a crash, and is an error.

One process charges at a time: whoever charges first locks the file until the ledger is closed or
the process ends, by whatever means; a second one is refused.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from dpvd.errors import DpvdError, positive_int
from dpvd.files import read_within
from dpvd.privacy.chain import (
    Chain,
    canonical,
    chained,
    check_hash,
    create_file,
    damaged,
    new_chain,
    read_entry,
    write_through,
)

try:
    import fcntl
except ImportError:  # Windows: a writer is noticed by the file's size alone
    fcntl = None  # type: ignore[assignment]

__all__ = ["Ledger", "fingerprint"]

_VERSION = 2
_LARGEST = 1 << 30  # bytes; a line of a charge has 150, one that keeps noisy sums some millions
_UNCHAINED = 1  # ledgers of this version are read, and chained from the next charge on


class Ledger:
    """The charges of one run, append-only; make one with :meth:`create` or :meth:`open`.

    Guarantees: totals only grow, every total is the previous one plus its steps, every line is
    chained to all before it, and a charge is on disk before :meth:`charge` returns. A ledger that
    something else wrote to meanwhile, or that another process or object is charging, refuses to
    charge.
    """

    def __init__(self, path: Path, contents: "_Contents", torn: int) -> None:
        self._path = path
        self._plan_json = contents.plan_json
        self._charged = contents.charged
        self._kept = contents.kept
        self._chain = contents.chain
        self._heads = contents.heads
        self._starts = contents.starts
        self._end = contents.size  # bytes of complete lines
        self._size = contents.size + torn  # bytes of the file, a torn last line included
        self._started = False  # whether this object has written its start
        self._file: FileIO | None = None  # open, and locked, from the first charge on
        self._owner = 0  # the process that locked it

    @classmethod
    def create(cls, path: Path | str, plan: Mapping[str, Any]) -> "Ledger":
        """Start a ledger for this plan.

        Raises:
            DpvdError: if the file exists or cannot be written, or the plan is not plain JSON data.
        """
        path = Path(path)
        plan_json = canonical(plan)
        header = {
            "fingerprint": _digest(plan_json),
            "plan": json.loads(plan_json),
            "version": _VERSION,
        }
        line = chained(header, new_chain())
        try:
            create_file(path, line)
        except FileExistsError:
            raise DpvdError(
                f"the ledger {path} exists already; open it to resume that run, or choose another"
                " place"
            ) from None
        except OSError as problem:
            raise DpvdError(f"cannot write the ledger {path}: {problem.strerror}") from None
        return cls(path, _Contents.of(path, [line[:-1]]), 0)

    @classmethod
    def open(cls, path: Path | str, plan: Mapping[str, Any] | None = None) -> "Ledger":
        """Read a ledger, to look at it or to go on charging.

        Args:
            path: the file.
            plan: the plan that is to be resumed; None to take whatever the ledger holds.

        Raises:
            DpvdError: if the file is missing or damaged, or holds another plan than ``plan``.
        """
        path = Path(path)
        try:
            content = read_within(path, _LARGEST)
        except OSError as problem:
            raise DpvdError(f"cannot read the ledger {path}: {problem.strerror}") from None
        # What follows the last newline: nothing, or a torn line.
        *lines, torn = content.split(b"\n")
        contents = _Contents.of(path, lines)
        if plan is not None and canonical(plan) != contents.plan_json:
            raise DpvdError(
                f"the ledger {path} belongs to another plan; resume with the plan it was started"
                " with, or start a new run"
            )
        return cls(path, contents, len(torn))

    @classmethod
    def reopen(cls, path: Path | str, plan: Mapping[str, Any]) -> "Ledger":
        """Open the ledger of a run that goes on, or start it if the run had not come that far.

        Raises:
            DpvdError: as :meth:`open` and :meth:`create`.
        """
        if cls.has_begun(path):
            return cls.open(path, plan)
        Path(path).unlink(missing_ok=True)
        return cls.create(path, plan)

    @staticmethod
    def has_begun(path: Path | str) -> bool:
        """Whether anything can have been charged to a ledger at this place.

        A file without one complete line is what a crash leaves of :meth:`create`.

        Raises:
            DpvdError: if the file cannot be read.
        """
        path = Path(path)
        try:
            return path.exists() and not (
                path.is_file() and b"\n" not in read_within(path, _LARGEST)
            )
        except OSError as problem:
            raise DpvdError(f"cannot read the ledger {path}: {problem.strerror}") from None

    def charge(self, steps: int, kept: Mapping[str, Any] | None = None) -> None:
        """Put ``steps`` more steps on the account; they are on disk when this returns.

        Args:
            steps: how many.
            kept: the noisy result that they pay for, plain JSON data. It is in the line of the
                charge: after a crash there is a charge with its result, or none.

        Raises:
            DpvdError: if steps is not an integer of at least 1, the file has changed since it
                was read, or it cannot be written. Nothing may be released then.
        """
        positive_int(steps=steps)
        total = self._charged + steps
        chain = self._chain.copy()
        written = b""
        start = secrets.token_hex(16)
        if not self._started:
            written = chained({"start": start}, chain)
        entry: dict[str, Any] = {"charged": total, "steps": steps}
        written += chained(entry if kept is None else entry | {"kept": dict(kept)}, chain)
        try:
            file = self._locked_file()
            if os.fstat(file.fileno()).st_size != self._size or not self._is_in_place(file):
                raise DpvdError(
                    f"the ledger {self._path} was written to by something else; only one run may"
                    " use it"
                )
            file.truncate(self._end)
            file.seek(self._end)
            write_through(file, written)
        except OSError as problem:
            raise DpvdError(f"cannot write the ledger {self._path}: {problem.strerror}") from None
        if not self._started:
            self._started = True
            self._starts.append(start)
        self._heads += [json.loads(line)["hash"] for line in written.splitlines()]
        self._charged = total
        self._kept = kept
        self._chain = chain
        self._end = self._size = self._end + len(written)

    def close(self) -> None:
        """Let another process charge. A closed ledger locks the file again when it is charged."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def is_unused(self) -> bool:
        """Whether nothing was ever charged: on disk, too, where an interrupt may have left more."""
        return not (self._charged or Ledger.open(self._path).charged)

    def delete(self) -> None:
        """Remove a ledger that nothing was ever charged to.

        Raises:
            DpvdError: if something was.
        """
        if not self.is_unused:
            raise DpvdError(f"the ledger {self._path} holds charges: it is not deleted")
        self.close()
        self._path.unlink()

    def __del__(self) -> None:
        self.close()

    def _locked_file(self) -> FileIO:
        """The file, open for writing, with a lock that nobody else has."""
        if self._file is not None and self._owner == os.getpid():
            return self._file
        self.close()  # a forked child shares its parent's lock, and must not
        here = str(self._path.resolve())
        earlier = _charging.get(here)
        if earlier is not None:  # of this process, such as that of a notebook cell that ran before
            earlier.close()
        # It stays open: the lock lasts as long. Without a buffer, so that a failed write leaves
        # nothing that could be written later.
        file = open(self._path, "r+b", buffering=0)  # noqa: SIM115
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                raise DpvdError(
                    f"the ledger {self._path} is being charged by another process; wait for it"
                    " to end"
                ) from None
        self._file = file
        self._owner = os.getpid()
        _charging[here] = self
        return file

    def _is_in_place(self, file: FileIO) -> bool:
        """Whether the open file still is the one under the ledger's name."""
        opened = os.fstat(file.fileno())
        named = os.stat(self._path)
        return os.path.samestat(opened, named)

    @property
    def charged(self) -> int:
        """How many steps have been paid for."""
        return self._charged

    @property
    def kept(self) -> Mapping[str, Any] | None:
        """The noisy result in the last charge; None if it has none."""
        return self._kept

    @property
    def head(self) -> str | None:
        """Hash of the last line, which stands for all of them; None where nothing is chained."""
        return self._heads[-1] if self._heads else None

    @property
    def starts(self) -> tuple[str, ...]:
        """The number that each start of charging has drawn, in order."""
        return tuple(self._starts)

    def has_passed(self, head: str) -> bool:
        """Whether this hash is that of one of the ledger's lines."""
        return head in self._heads

    @property
    def plan(self) -> dict[str, Any]:
        """The plan that the ledger was started with (a copy)."""
        plan: dict[str, Any] = json.loads(self._plan_json)
        return plan

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the plan's canonical JSON (sorted keys, no spaces), in hexadecimal."""
        return _digest(self._plan_json)


# By path, the ledger of this process that holds the lock.
_charging: WeakValueDictionary[str, Ledger] = WeakValueDictionary()


def fingerprint(plan: Mapping[str, Any]) -> str:
    """Return the name of a plan in ledgers and batches: a hash of its fields.

    SHA-256 of its canonical JSON (sorted keys, no spaces), in hexadecimal.

    >>> fingerprint({"steps": 1})[:8]
    '8326a4cb'
    """
    return _digest(canonical(plan))


def _digest(plan_json: str) -> str:
    digest = hashlib.sha256(plan_json.encode())
    return digest.hexdigest()


@dataclass
class _Contents:
    """What the complete lines of a ledger say.

    Attributes:
        plan_json: the plan in its canonical form.
        charged: steps paid for.
        heads: the hashes of the chained lines.
        starts: the numbers of the starts.
        chain: of all lines.
        size: bytes of all lines.
        kept: the noisy result in the last charge, if it has one.
    """

    plan_json: str
    charged: int
    heads: list[str]
    starts: list[str]
    chain: Chain
    size: int
    kept: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, path: Path, lines: list[bytes]) -> "_Contents":
        """Read lines, given without their newlines, and check each against those before it."""
        plan_json, is_chained = _read_header(path, lines)
        contents = cls(plan_json, 0, [], [], new_chain(), 0)
        for number, line in enumerate(lines, start=1):
            entry = read_entry(_name(path), number, line)
            if is_chained or "hash" in entry:
                is_chained = True  # for the rest of the file
                check_hash(_name(path), number, entry, contents.chain)
                contents.heads.append(entry["hash"])
            if "start" in entry:
                contents.starts.append(str(entry["start"]))
            elif number > 1:
                contents.charged = _total(path, number, entry, contents.charged)
                contents.kept = _kept(path, number, entry)
            contents.chain.update(line + b"\n")
            contents.size += len(line) + 1
        return contents


def _name(path: Path) -> str:
    return f"the ledger {path}"


def _read_header(path: Path, lines: list[bytes]) -> tuple[str, bool]:
    """The plan in its canonical form, and whether all lines are chained."""
    try:
        header = json.loads(lines[0])
        version = header["version"]
        plan = header["plan"]
        fingerprint = header["fingerprint"]
    except (IndexError, KeyError, TypeError, ValueError, RecursionError):
        raise DpvdError(
            f"{path} does not begin like a ledger; if its run never started, delete it and start"
            " again"
        ) from None
    if version not in (_UNCHAINED, _VERSION):
        raise DpvdError(
            f"{path} is a ledger of version {version}; this release reads versions up to {_VERSION}"
        )
    plan_json = canonical(plan)
    if _digest(plan_json) != fingerprint:
        raise DpvdError(
            f"the plan in the ledger {path} does not match its fingerprint: the file was changed"
        )
    return plan_json, version == _VERSION


def _total(path: Path, number: int, entry: Mapping[str, Any], before: int) -> int:
    """The total of one line, which is checked against the total before it."""
    try:
        total = entry["charged"]
        steps = entry["steps"]
        positive_int(charged=total, steps=steps)
    except (KeyError, TypeError, ValueError):
        raise damaged(_name(path), number) from None
    if total != before + steps:
        raise DpvdError(
            f"line {number} of the ledger {path} says {steps} steps make {total}, but {before} were"
            " charged before; two runs may have written to it, and its account cannot be trusted"
        )
    charged: int = total
    return charged


def _kept(path: Path, number: int, entry: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The noisy result in a line, if it has one."""
    kept = entry.get("kept")
    if kept is not None and not isinstance(kept, dict):
        raise damaged(_name(path), number)
    return kept
