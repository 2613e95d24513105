"""Writing files whole, and for their owner alone; reading files that a stranger may have written.

It is the only such writer of the package.
"""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EISDIR
from pathlib import Path

from dpvd.errors import DpvdError

__all__ = [
    "HANDED_OUT",
    "LARGEST_NOTE",
    "PRIVATE",
    "create_private",
    "make_folder",
    "read_within",
    "remove_partials",
    "replacing",
    "size_within",
    "sync_folder",
    "write_atomically",
]

PRIVATE = 0o600
"""Mode of a file that tells of the data or of its account: nobody else reads it."""

HANDED_OUT = 0o644
"""Mode of a file that was asked for to be passed on; the system's mask may take more away."""

LARGEST_NOTE = 1 << 20
"""Bytes of a small file, such as options or a key: thousands of times what one has."""

_PARTIAL = ".{name}.{token}.partial"


@contextmanager
def replacing(path: Path, *, mode: int = PRIVATE) -> Iterator[Path]:
    """Yield an empty file beside ``path`` to write to; it takes the place of ``path`` at the end.

    Guarantees:
        A reader sees the old file or the new one, never a part of it. The new one is on disk before
        it replaces the old one, and under its name when this ends. An exception leaves the old file
        and nothing else; a process that is killed may leave a part beside it, under a name that
        nobody reads. At no time is the file open to more users than ``mode`` says, whatever the
        system's mask.

    Args:
        path: of the file.
        mode: `PRIVATE` or `HANDED_OUT`.

    Edge cases: missing folders are made, as private as the file.

    Raises:
        DpvdError: if the folder or the file cannot be written.
    """
    partial = path.with_name(_PARTIAL.format(name=path.name, token=secrets.token_hex(4)))
    try:
        make_folder(path.parent, mode=_folder_mode(mode))
        try:
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
            yield partial
            _sync(partial)
            os.replace(partial, path)
            sync_folder(path.parent)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise DpvdError(f"{path} cannot be written ({reason}): choose another folder") from error


def write_atomically(path: Path, content: bytes, *, mode: int = PRIVATE) -> None:
    """Write a file as ``replacing`` does.

    Args:
        path: of the file.
        content: all of it.
        mode: `PRIVATE` or `HANDED_OUT`.

    Raises:
        DpvdError: if the folder or the file cannot be written.
    """
    with replacing(path, mode=mode) as partial:
        partial.write_bytes(content)


def create_private(path: Path, content: bytes) -> None:
    """Write a file that must be new and is for its owner alone.

    Raises:
        OSError: if there is one, or it cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def read_within(path: Path, most: int) -> bytes:
    """The bytes of a file, if it is one and not larger than its kind can be.

    Raises: as `size_within`.
    """
    size = size_within(path, most)
    with path.open("rb") as file:
        return file.read(size)


def size_within(path: Path, most: int) -> int:
    """How many bytes a file has, if it is one and not larger than its kind can be.

    Whoever gets a folder from a stranger opens files that may be of any size, or no files at all:
    a pipe would be waited for, a device has no end.

    Raises:
        OSError: if it cannot be read.
        DpvdError: if it is no ordinary file, or larger.
    """
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(EISDIR, "Is a directory", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise DpvdError(f"{path} is no ordinary file")
    if status.st_size > most:
        raise DpvdError(
            f"{path} has {status.st_size:,} bytes, and a file of its kind has at most {most:,}:"
            " it is not what its name says"
        )
    return status.st_size


def make_folder(folder: Path, *, mode: int = 0o700) -> None:
    """Make a folder and those above it that are missing, all with one mode.

    ``Path.mkdir`` gives a mode to the last of them only. Folders that exist stay as they are.

    Raises:
        OSError: if one cannot be made.
    """
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent, mode=mode)
    folder.mkdir(mode=mode, exist_ok=True)


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


def _folder_mode(mode: int) -> int:
    """That of a folder for a file: whoever may read the file may look into the folder."""
    return mode | (mode & 0o444) >> 2


def _sync(path: Path) -> None:
    """Wait until the file is on disk, not merely in the system's memory."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
