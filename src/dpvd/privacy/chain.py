"""Lines that are chained to all lines before them: what ledgers and accounts are written in.

Every line is a JSON object that ends with ``"hash"``: SHA-256 of all bytes before the line and of
the line without its hash. A line that is changed, dropped, repeated or moved breaks the chain.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpvd.errors import DpvdError
from dpvd.files import sync_folder

__all__ = [
    "Chain",
    "canonical",
    "chained",
    "check_hash",
    "create_file",
    "damaged",
    "new_chain",
    "read_entry",
    "write_through",
]

Chain = Any
"""A running SHA-256 of all complete lines."""


def new_chain() -> Chain:
    """The chain of a file without lines."""
    return hashlib.sha256()


def chained(entry: Mapping[str, Any], chain: Chain) -> bytes:
    """The line of an entry, chained to all before it; the chain then includes it."""
    hashed = {**entry, "hash": _hash(entry, chain)}
    line = json.dumps(hashed, sort_keys=True).encode() + b"\n"
    chain.update(line)
    return line


def _hash(entry: Mapping[str, Any], chain: Chain) -> str:
    """SHA-256 of all bytes in the chain, and of the entry without its hash."""
    bare = {name: value for name, value in entry.items() if name != "hash"}
    digest = chain.copy()
    digest.update(canonical(bare).encode())
    found: str = digest.hexdigest()
    return found


def canonical(plain: Mapping[str, Any]) -> str:
    """The one JSON text of plain data: sorted keys, no spaces.

    Raises:
        DpvdError: if it is not plain JSON data.
    """
    try:
        return json.dumps(dict(plain), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as problem:
        raise DpvdError(f"a ledger's plan must be plain JSON data: {problem}") from None


def read_entry(file: str, number: int, line: bytes) -> dict[str, Any]:
    """What a line holds.

    Args:
        file: which file it is, in words.
        number: of the line, from 1.
        line: without its newline.

    Raises:
        DpvdError: if it is not a JSON object.
    """
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict):
        raise damaged(file, number)
    return entry


def check_hash(file: str, number: int, entry: Mapping[str, Any], chain: Chain) -> None:
    """Raise unless a line is the one that was written after exactly these lines."""
    if entry.get("hash") != _hash(entry, chain):
        raise DpvdError(
            f"line {number} of {file} does not follow from the lines before it: a line"
            " was changed, dropped, repeated or moved, and its account cannot be trusted"
        )


def damaged(file: str, number: int) -> DpvdError:
    """The error for a line that no crash explains."""
    return DpvdError(f"line {number} of {file} is damaged; its account cannot be trusted")


def create_file(path: Path, line: bytes) -> None:
    """Write the first line of a new file, which only its owner can read; it is on disk then.

    Raises:
        OSError: if the file exists or cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        write_through(file, line)
    sync_folder(path.parent)


def write_through(file: Any, line: bytes) -> None:
    """Write a line; it is on disk when this returns.

    Args:
        file: open for writing, best without a buffer: what is left in one after an error may reach
            the disk later.
        line: with its newline.
    """
    rest = memoryview(line)
    while rest:  # a nearly full disk takes a part
        rest = rest[file.write(rest) :]
    file.flush()
    os.fsync(file.fileno())
