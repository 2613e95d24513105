"""Writing files so that nobody ever reads half of one: the only such writer of the package."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpvd.errors import DpvdError

__all__ = ["replacing", "write_atomically"]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path beside ``path`` to write to; it takes the place of ``path`` at the end.

    Guarantees:
        A reader sees the old file or the new one, never a part of it. The new one is on disk before
        it replaces the old one. An exception leaves the old file and nothing else.

    Edge cases: missing folders are made.

    Raises:
        DpvdError: if the folder or the file cannot be written.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield partial
            _sync(partial)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise DpvdError(f"{path} cannot be written ({reason}): choose another folder") from error


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file as ``replacing`` does.

    Raises:
        DpvdError: if the folder or the file cannot be written.
    """
    with replacing(path) as partial:
        partial.write_bytes(content)


def _sync(path: Path) -> None:
    """Wait until the file is on disk, not merely in the system's memory."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
