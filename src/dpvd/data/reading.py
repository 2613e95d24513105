"""Tables in files: CSV, Parquet, Arrow, Feather and arrays, read in batches of bounded size."""

from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl

from dpvd.data.array_tables import ARRAY_ENDINGS, array_table
from dpvd.data.csv_text import csv_source
from dpvd.data.source import BATCH_ROWS, TableSource, check_columns
from dpvd.errors import DpvdError

__all__ = ["read_table"]

_CSV = (".csv", ".tsv", ".txt")
_PARQUET = (".parquet", ".pq")
_ARROW = (".arrow", ".feather", ".ipc")

# What Polars raises on a damaged file; a panic of its Rust code is no Exception.
_DAMAGED = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError)

# How files begin that are no text, with what they are.
_SIGNATURES = {
    b"PK\x03\x04": "a zip archive (or a spreadsheet)",
    b"PK\x05\x06": "an empty zip archive",
    b"\x1f\x8b": "compressed with gzip",
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ\x00": "compressed with xz",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"\xd0\xcf\x11\xe0": "an old office document",
    b"SQLite format 3": "an SQLite database",
    b"%PDF": "a PDF document",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"\x93NUMPY": "a NumPy array",
}


def read_table(
    path: str | Path, *, delimiter: str | None = None, encoding: str | None = None
) -> TableSource:
    """Return the table in a file, by the ending of its name.

    Guarantees:
        Nothing but the beginning of the file is read until batches are asked for; arrays are read
        at once.

    Args:
        path: ``.csv``, ``.tsv``, ``.txt``; ``.parquet``, ``.pq``; ``.arrow``, ``.feather``,
            ``.ipc``; ``.npz``, ``.npy`` with rows of numbers.
        delimiter: of a CSV file; recognised if not given.
        encoding: of a CSV file; UTF-8, or UTF-16 by its mark, if not given.

    Raises:
        DpvdError: if there is no such file, or it is not what its name says.
    """
    path = Path(path)
    ending = path.suffix.lower()
    start = _beginning(path)
    if ending in _CSV:
        found = [words for signature, words in _SIGNATURES.items() if start.startswith(signature)]
        if found:
            raise DpvdError(f"{path} is {found[0]}, not text: unpack or export it as CSV first")
        return csv_source(path, delimiter=delimiter, encoding=encoding)
    if ending not in _PARQUET + _ARROW + ARRAY_ENDINGS:
        allowed = ", ".join(_CSV + _PARQUET + _ARROW + ARRAY_ENDINGS)
        raise DpvdError(f"the name of a table must end with one of {allowed}; got {path.name}")
    if delimiter is not None or encoding is not None:
        raise DpvdError(f"delimiter and encoding are for CSV files; {path} is none")
    if ending in ARRAY_ENDINGS:
        return array_table(path)
    if ending in _PARQUET:
        return _polars_source(path, start, b"PAR1", "Parquet", pl.scan_parquet)
    return _polars_source(path, start, b"ARROW1", "Arrow (Feather, IPC file)", pl.scan_ipc)


def _polars_source(
    path: Path,
    start: bytes,
    signature: bytes,
    format_name: str,
    scan: Callable[[Path], pl.LazyFrame],
) -> TableSource:
    if not start.startswith(signature):
        raise DpvdError(f"{path} is no {format_name} file, though its name says so")
    complaint = f"{path} is a damaged {format_name} file"
    try:
        names = scan(path).collect_schema().names()
    except _DAMAGED as error:
        raise DpvdError(complaint) from error
    columns = check_columns([name.strip() for name in names], str(path))

    def batches() -> Iterator[pl.DataFrame]:
        try:
            reading = scan(path).collect_batches(
                chunk_size=BATCH_ROWS, maintain_order=True, lazy=True
            )
            for frame in reading:
                frame.columns = list(columns)
                yield frame
        except _DAMAGED as error:
            raise DpvdError(complaint) from error

    return TableSource(str(path), columns, batches)


def _beginning(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise DpvdError(f"{path} is a folder: name a file with a table")
        if not path.exists():
            raise DpvdError(f"there is no file {path}")
        if not path.is_file():
            raise DpvdError(f"{path} is no regular file: name a file with a table")
        with path.open("rb") as file:
            start = file.read(16)
    except OSError as error:
        raise DpvdError(f"{path} cannot be read ({error.strerror})") from error
    if not start:
        raise DpvdError(f"{path} is empty: it needs a first line with the names of its columns")
    return start
