"""Encoded rows, in memory while they are few and in a file when they are many."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np

from dpvd.errors import DpvdError

__all__ = ["IN_MEMORY_BYTES", "RowStore", "on_disk"]

IN_MEMORY_BYTES = 256 * 2**20
"""Encoded features beyond this size go into a memory-mapped file."""

_ROWS_AT_A_TIME = 16_384


class RowStore:
    """Features, target and unit of rows, appended batch by batch.

    Guarantees:
        The file has no name: it vanishes with the arrays that show it, however the process ends.

    Args:
        width: number of features.
        scratch: folder for the file; None for the system's own.
        memory: bytes of features that are kept in memory.
    """

    def __init__(self, width: int, scratch: Path | None, memory: int = IN_MEMORY_BYTES) -> None:
        self.width = width
        self._scratch = scratch
        self._memory = memory
        self._rows = 0
        self._parts: list[np.ndarray] = []
        self._file: IO[bytes] | None = None
        self._targets: list[np.ndarray] = []
        self._keys: list[np.ndarray] = []

    def close(self) -> None:
        """Give up a file that has not become an array."""
        if self._file is not None:
            self._file.close()

    def append(self, x: np.ndarray, y: np.ndarray, keys: np.ndarray | None) -> None:
        """Add rows; features are float32 of shape (rows, width)."""
        self._rows += len(x)
        self._targets.append(y)
        if keys is not None:
            self._keys.append(keys)
        self._parts.append(x)
        if self._file is None and self._rows * self.width * 4 > self._memory:
            self._file = _nameless_file(self._scratch)
        if self._file is not None:
            on_disk(self._write_parts)

    def features(self) -> np.ndarray:
        """Return all features in the order they came in, float32 of shape (rows, width).

        This can be done once: the store gives them away.
        """
        if self._file is not None:
            return _mapped(self._file, self._rows, self.width)
        parts = self._parts or [np.zeros((0, self.width), dtype=np.float32)]
        whole = np.concatenate(parts)
        self._parts = []
        return whole

    def targets(self) -> np.ndarray:
        """Return all targets."""
        return np.concatenate(self._targets) if self._targets else np.zeros(0, dtype=np.int64)

    def keys(self) -> np.ndarray:
        """Return all keys."""
        return np.concatenate(self._keys) if self._keys else np.zeros(0, dtype=np.uint64)

    def select(self, features: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return some rows in a given order, in a new file if the features are in one."""
        if not isinstance(features, np.memmap):
            return np.take(features, rows, axis=0)
        file = _nameless_file(self._scratch)

        def write() -> None:
            for start in range(0, len(rows), _ROWS_AT_A_TIME):
                file.write(features[rows[start : start + _ROWS_AT_A_TIME]].data)

        on_disk(write)
        return _mapped(file, len(rows), self.width)

    def _write_parts(self) -> None:
        assert self._file is not None
        for part in self._parts:
            self._file.write(np.ascontiguousarray(part).data)
        self._parts = []


def _nameless_file(folder: Path | None) -> IO[bytes]:
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        raise DpvdError(
            f"cannot write into the scratch folder {folder or tempfile.gettempdir()}"
            f" ({error.strerror}): choose another"
        ) from error


def _mapped(file: IO[bytes], rows: int, width: int) -> np.ndarray:
    """Return the contents of a file as an array, which keeps the file although it is closed."""
    with file:
        on_disk(file.flush)
        if rows == 0:
            return np.zeros((0, width), dtype=np.float32)
        return np.memmap(file, dtype=np.float32, mode="r+", shape=(rows, width))


def on_disk(write: Callable[[], object]) -> None:
    """Write, and say what to do if the disk does not take it."""
    try:
        write()
    except OSError as error:
        raise DpvdError(
            f"the table cannot be written to disk ({error.strerror}): choose a scratch folder with"
            " more space"
        ) from error
