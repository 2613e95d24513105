"""The folder of a run: what its files are called, and who may write into it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpvd.errors import DpvdError
from dpvd.files import (
    LARGEST_NOTE,
    make_folder,
    read_within,
    remove_partials,
    write_atomically,
)
from dpvd.training import CHECKPOINT, LEDGER

__all__ = [
    "ACCOUNT",
    "AUDIT",
    "CHECKPOINT",
    "CHECKSUM_KEY",
    "CONTENTS",
    "FIGURES",
    "LEDGER",
    "MANIFEST",
    "MODEL",
    "OPTIONS",
    "RECORD",
    "REPORT",
    "SIGNATURE",
    "check_contents",
    "create_run_dir",
    "read_key",
    "reopen_run_dir",
    "write_contents",
    "write_key",
]

OPTIONS = "options.json"
MODEL = "model.safetensors"
RECORD = "record.json"
REPORT = "report.html"
MANIFEST = "manifest.json"
SIGNATURE = "signature.txt"
CHECKSUM_KEY = "checksum.key"
CONTENTS = "contents.json"
ACCOUNT = "account.json"
AUDIT = "audit.json"
FIGURES = "figures"


# What a run that was killed before it noted its options can have left.
_LEFT_OVER = (CHECKSUM_KEY, CONTENTS)


def create_run_dir(folder: Path, options: Mapping[str, Any], *, key: bytes | None = None) -> None:
    """Make the folder and note the options that the run in it is started with.

    Guarantees:
        Others than its owner cannot look into a folder that is made here. A folder that has
        anything of a run in it is left as it is. The options come last: where they are, the key is.

    Args:
        folder: of the run.
        options: that it is started with.
        key: of the data's checksum, if there is one.

    Raises:
        DpvdError: if the folder is in use, is a file, or cannot be written to.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise DpvdError(
                f"{folder} is a file: --out takes a folder that does not exist yet, or is empty"
            )
        remove_partials(folder)
        if folder.is_dir() and any(path.name not in _LEFT_OVER for path in folder.iterdir()):
            raise DpvdError(
                f"{folder} exists and is not empty: choose another --out, or --resume the run in it"
            )
        make_folder(folder)
        (folder / CONTENTS).unlink(missing_ok=True)
    except OSError as error:
        raise DpvdError(
            f"cannot write into {folder} ({error.strerror}): choose another --out"
        ) from error
    if key is not None:
        write_key(folder, key)
    text = json.dumps(options, indent=1, allow_nan=False)
    write_atomically(folder / OPTIONS, f"{text}\n".encode())


def reopen_run_dir(folder: Path, options: Mapping[str, Any]) -> None:
    """Check that the run in the folder was started with these options.

    Raises:
        DpvdError: if there is no run, or it had other options; nothing is changed then.
    """
    started = _read_options(folder)
    for name in {**started, **options}:
        before = started.get(name)
        now = options.get(name)
        if before != now:
            raise DpvdError(
                f"the run in {folder} was started with {name} {_word(before)}, not {_word(now)}:"
                " resume it with the options it was started with"
            )


def write_key(folder: Path, key: bytes) -> None:
    """Put the key of the data's checksum into a file that only its owner can read.

    With it, whoever has the record can check a guess at the whole data; it is not to be passed on.
    """
    write_atomically(folder / CHECKSUM_KEY, f"{key.hex()}\n".encode())


def read_key(folder: Path) -> bytes:
    """The key that `write_key` wrote.

    Raises:
        DpvdError: if there is no run, or its key is missing or damaged.
    """
    _read_options(folder)  # where there are none, nothing has begun
    path = folder / CHECKSUM_KEY
    try:
        return bytes.fromhex(read_within(path, LARGEST_NOTE).decode("ascii").strip())
    except (OSError, ValueError) as error:
        raise DpvdError(
            f"the key {path} of the data's checksum cannot be read: without it the run in"
            f" {folder} cannot be resumed"
        ) from error


def write_contents(folder: Path, contents: Mapping[str, str]) -> None:
    """Note the keyed checksums of the files that a run reads, for when it goes on."""
    text = json.dumps(dict(contents), indent=1)
    write_atomically(folder / CONTENTS, f"{text}\n".encode())


def check_contents(folder: Path, contents: Mapping[str, str]) -> None:
    """Check that the files are those that the run in the folder was started with.

    Raises:
        DpvdError: naming a file that has changed.
    """
    path = folder / CONTENTS
    try:
        before = json.loads(read_within(path, LARGEST_NOTE))
    except (OSError, ValueError, RecursionError) as error:
        raise DpvdError(
            f"{path} cannot be read ({error}): without it the run in {folder} cannot be resumed"
        ) from error
    for name, checksum in contents.items():
        if not isinstance(before, dict) or before.get(name) != checksum:
            raise DpvdError(
                f"the {name} has changed since the run in {folder} was started: resume it with the"
                " file as it was, or start a new run and count both"
            )


def _read_options(folder: Path) -> dict[str, Any]:
    path = folder / OPTIONS
    try:
        started = json.loads(read_within(path, LARGEST_NOTE))
    except (FileNotFoundError, NotADirectoryError):
        raise DpvdError(
            f"there is no run to resume in {folder}: leave out --resume to start one"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DpvdError(
            f"{path} cannot be read ({error}): restore it from a copy, or start a new run"
        ) from error
    if not isinstance(started, dict):
        raise DpvdError(
            f"{path} does not hold a run's options: restore it from a copy, or start a new run"
        )
    return started


def _word(value: object) -> str:
    return "left to the default" if value is None else str(value)
