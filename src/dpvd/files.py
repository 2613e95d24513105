"""Writing files so that nobody ever reads half of one: the only such writer of the package."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpvd.errors import DpvdError

__all__ = ["remove_partials", "replacing", "sync_folder", "write_atomically"]

_PARTIAL = ".{name}.{token}.partial"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path beside ``path`` to write to; it takes the place of ``path`` at the end.

    Guarantees:
        A reader sees the old file or the new one, never a part of it. The new one is on disk before
        it replaces the old one, and under its name when this ends. An exception leaves the old file
        and nothing else; a process that is killed may leave a part beside it, under a name that
        nobody reads.

    Edge cases: missing folders are made.

    Raises:
        DpvdError: if the folder or the file cannot be written.
    """
    partial = path.with_name(_PARTIAL.format(name=path.name, token=secrets.token_hex(4)))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield partial
            _sync(partial)
            os.replace(partial, path)
            sync_folder(path.parent)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise DpvdError(f"{path} cannot be written ({reason}): choose another folder") from error


def write_atomically(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a file as ``replacing`` does.

    Args:
        path: of the file.
        content: all of it.
        mode: who may read and write it, less what the system's mask takes away.

    Raises:
        DpvdError: if the folder or the file cannot be written.
    """
    with replacing(path) as partial:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)


def remove_partials(folder: Path) -> None:
    """Remove the parts of files that killed processes left in a folder, if there is one.

    Only for whoever is alone in it: a part may be one that another process is writing.

    Raises:
        DpvdError: if they cannot be removed.
    """
    try:
        for path in folder.glob(_PARTIAL.format(name="*", token="*")):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise DpvdError(f"cannot remove files in {folder} ({error.strerror})") from error


def sync_folder(folder: Path) -> None:
    """Make a new name in a folder durable, where folders can be synchronised (not on Windows)."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _sync(path: Path) -> None:
    """Wait until the file is on disk, not merely in the system's memory."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
