"""The folder of a run: what its files are called, and who may write into it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpvd.errors import DpvdError
from dpvd.files import write_atomically
from dpvd.training import CHECKPOINT, LEDGER

__all__ = [
    "CHECKPOINT",
    "FIGURES",
    "LEDGER",
    "MODEL",
    "OPTIONS",
    "RECORD",
    "REPORT",
    "create_run_dir",
    "reopen_run_dir",
]

OPTIONS = "options.json"
MODEL = "model.safetensors"
RECORD = "record.json"
REPORT = "report.html"
FIGURES = "figures"


def create_run_dir(folder: Path, options: Mapping[str, Any]) -> None:
    """Make the folder and note the options that the run in it is started with.

    Guarantees:
        A folder that has anything in it is left as it is.

    Raises:
        DpvdError: if the folder is in use, is a file, or cannot be written to.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise DpvdError(
                f"{folder} is a file: --out takes a folder that does not exist yet, or is empty"
            )
        if folder.is_dir() and any(folder.iterdir()):
            raise DpvdError(
                f"{folder} exists and is not empty: choose another --out, or --resume the run in it"
            )
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DpvdError(
            f"cannot write into {folder} ({error.strerror}): choose another --out"
        ) from error
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


def _read_options(folder: Path) -> dict[str, Any]:
    path = folder / OPTIONS
    try:
        started = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise DpvdError(
            f"there is no run to resume in {folder}: leave out --resume to start one"
        ) from None
    except (OSError, ValueError) as error:
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
