"""What a finished run's files are: their checksums, in one file that can be signed."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpvd.errors import DpvdError
from dpvd.files import remove_partials, size_within, write_atomically
from dpvd.privacy import Ledger
from dpvd.runs.record import RunRecord
from dpvd.runs.run_dir import MANIFEST, MODEL, OPTIONS, RECORD

__all__ = [
    "Manifest",
    "checksum",
    "finished_run",
    "intact_record",
    "ledgers_in",
    "read_manifest",
    "write_manifest",
]

_FORMAT = 1
_LARGEST = 1 << 20  # bytes of a manifest; a longer file is none
_LARGEST_FILE = 4 << 30  # bytes of a file that it describes: of a model, the largest of them
_LEDGERS = "ledger*.jsonl"


@dataclass(frozen=True)
class Manifest:
    """The files of a run and what their ledgers stood at when it was finished.

    Attributes:
        files: SHA-256 of each file, by name.
        heads: hash of the last line of each ledger, by name; None for one without a chain.
    """

    files: dict[str, str]
    heads: dict[str, str | None]


def write_manifest(folder: Path) -> None:
    """Note the checksums of record, model, options and ledgers: the last file of a run.

    The page and its figures are functions of the record, and the key of the data's checksum is to
    stay secret: neither is in it.

    Raises:
        DpvdError: if a file cannot be read, or the manifest not be written.
    """
    files = {name: checksum(folder / name) for name in _names(folder)}
    heads = {path.name: Ledger.open(path).head for path in ledgers_in(folder)}
    text = json.dumps({"files": files, "format": _FORMAT, "heads": heads}, indent=1, sort_keys=True)
    write_atomically(folder / MANIFEST, f"{text}\n".encode())


def finished_run(folder: Path) -> RunRecord:
    """Return the record of a run that has come to its end, and finish what a kill cut off.

    The manifest is written if the process that wrote the record did not come to it; parts of files
    that killed processes left are removed.

    Raises:
        DpvdError: if the record is damaged, or the model is not the one it was written for.
    """
    record = RunRecord.read(folder)
    remove_partials(folder)
    if not (folder / MANIFEST).exists():
        if checksum(folder / MODEL) != record.model.get("checksum"):
            raise DpvdError(
                f"the model in {folder} is not the one that the record was written for: restore"
                " both from a copy"
            )
        write_manifest(folder)
    return record


def intact_record(folder: Path) -> RunRecord:
    """Return the record of a run whose record and model are the files that its manifest describes.

    Bounds and categories in a record decide what a model says as much as its weights do.

    Guarantees: no prediction comes from a record or a model that changed after the run was
    finished, unless the manifest was changed with it.

    Edge cases: runs of early versions have no manifest, and are taken as they are.

    Raises:
        DpvdError: naming the file that is another one, or damaged.
    """
    if (folder / MANIFEST).exists():
        files = read_manifest(folder).files
        for name in (RECORD, MODEL):
            if checksum(folder / name) != files.get(name):
                raise DpvdError(
                    f"{folder / name} cannot be read: it is not the file that the manifest beside"
                    " it describes (its checksum differs); restore both from a copy"
                )
    return RunRecord.read(folder)


def read_manifest(folder: Path) -> Manifest:
    """Read what ``write_manifest`` wrote.

    Raises:
        DpvdError: if there is none, or it is damaged.
    """
    path = folder / MANIFEST
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise DpvdError(
            f"{path} cannot be read ({error.strerror}): a run is verified by its manifest, which is"
            " written when it ends"
        ) from None
    try:
        values = json.loads(content) if len(content) <= _LARGEST else None
        manifest = _parsed(values)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        raise DpvdError(
            f"{path} is damaged: it is not a manifest that this program wrote"
        ) from None
    return manifest


def ledgers_in(folder: Path) -> list[Path]:
    """The ledgers of a run, in the order of their names."""
    return sorted(folder.glob(_LEDGERS))


def _parsed(values: Any) -> Manifest:
    if values["format"] != _FORMAT:
        raise ValueError("another format")
    files = {str(name): str(digest) for name, digest in values["files"].items()}
    heads = {}
    for name, head in values["heads"].items():
        heads[str(name)] = None if head is None else str(head)
    return Manifest(files, heads)


def _names(folder: Path) -> Iterator[str]:
    for name in (RECORD, MODEL, OPTIONS):
        if (folder / name).exists():  # a model that was trained from Python has no options
            yield name
    for path in ledgers_in(folder):
        yield path.name


def checksum(path: Path) -> str:
    """SHA-256 of a file, read in pieces."""
    try:
        size_within(path, _LARGEST_FILE)
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DpvdError(f"{path} cannot be read: {error.strerror}") from None
