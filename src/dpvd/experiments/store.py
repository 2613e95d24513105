"""Where results are kept: a readable file for each protocol, and a folder for what is new.

Workers write a file for each result into the folder ``pending``: many can do so at once, and none
can damage what others wrote. :meth:`ResultStore.fold` then moves them into the files that are
committed, such as ``digits-100.jsonl``. Readers see both.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dpvd.errors import DpvdError
from dpvd.experiments.result import ExperimentResult
from dpvd.experiments.spec import Spec
from dpvd.files import make_folder, write_atomically

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["ResultStore"]

PENDING = "pending"
LOCK = ".lock"


class ResultStore:
    """The results in a folder.

    Guarantees:
        A result is there whole or not at all, whenever the writer is killed. One that was written
        is found by every reader from then on, also while another process folds. Of two results of
        one spec the one that was folded first stays.

    Edge cases: files ``<hash>.json`` directly in the folder, as earlier versions wrote them, count
        as pending.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def missing(self, specs: Iterable[Spec]) -> list[Spec]:
        """Those without a result, in their order."""
        known = self._by_hash()
        return [spec for spec in specs if spec.hash not in known]

    def write(self, result: ExperimentResult) -> None:
        """Add a result, as a file of its own.

        Raises:
            DpvdError: if the folder cannot be written to.
        """
        path = self.folder / PENDING / f"{result.hash}.json"
        try:
            write_atomically(path, result.to_line().encode())
        except DpvdError as error:
            raise DpvdError(
                f"cannot write into {self.folder} ({error}): choose another --out"
            ) from error

    def read(self, spec: Spec) -> ExperimentResult:
        """The result of a spec.

        Raises:
            DpvdError: if there is none, or a file is damaged.
        """
        found = self._by_hash().get(spec.hash)
        if found is None:
            raise DpvdError(f"{self.folder} has no result of {spec.hash}: run its spec first")
        return found

    def read_all(self) -> list[ExperimentResult]:
        """Every result there is: by protocol, method, variant, ε, seed, and then hash.

        Raises:
            DpvdError: if a file is damaged.
        """
        results = self._by_hash().values()
        return sorted(results, key=_order)

    def fold(self) -> int:
        """Move pending results into the files of their protocols; return how many were pending.

        Guarantees: a crash at any moment loses nothing. A pending file is removed only after the
            file that took it in is on disk; what is in both counts once.
        """
        if not self._pending_files():
            return 0
        with _alone(self.folder):
            pending = self._pending_files()
            changed: set[str] = set()
            for path in pending:
                changed |= {result.spec.protocol for result in _read_pending(path)}
            results = self.read_all()
            for protocol in sorted(changed):
                lines = [r.to_line() for r in results if r.spec.protocol == protocol]
                path = self.folder / f"{protocol}.jsonl"
                _write_for_good(path, "".join(lines))
            for path in pending:
                path.unlink()
        return len(pending)

    def _pending_files(self) -> list[Path]:
        pending = self.folder / PENDING
        files = list(pending.glob("*.json"))
        files += self.folder.glob("*.json")  # of earlier versions
        return sorted(files)

    def _by_hash(self) -> dict[str, ExperimentResult]:
        # Pending files first: one that is folded meanwhile is in the file that is read afterwards.
        found: dict[str, ExperimentResult] = {}
        for path in self._pending_files():
            for result in _read_pending(path):
                found[result.hash] = result
        for path in sorted(self.folder.glob("*.jsonl")):
            for result in _read_lines(path):
                found[result.hash] = result
        return found


def _order(result: ExperimentResult) -> tuple[str, str, str, float, int, str]:
    spec = result.spec
    budget = 0.0 if spec.epsilon is None else spec.epsilon
    return (spec.protocol, spec.method, str(spec.variant), budget, spec.seed, result.hash)


def _read_pending(path: Path) -> list[ExperimentResult]:
    """The result in a file; none if another process has folded it meanwhile."""
    try:
        return [ExperimentResult.from_line(path.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        raise DpvdError(f"the result {path} cannot be read: {error}") from error


def _read_lines(path: Path) -> list[ExperimentResult]:
    results = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                results.append(ExperimentResult.from_line(line))
            except (ValueError, TypeError) as error:
                where = f"line {number} of {path}"
                raise DpvdError(f"the result in {where} cannot be read: {error}") from error
    return results


def _write_for_good(path: Path, text: str) -> None:
    """Write a file whole or not at all, and wait until the disk has it."""
    write_atomically(path, text.encode())
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process folds here: two at once would each lose what the other added."""
    make_folder(folder / PENDING)
    with (folder / PENDING / LOCK).open("ab") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
