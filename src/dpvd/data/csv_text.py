"""CSV files as batches of text cells: checked line by line, never whole in memory.

No type is guessed: every cell stays the text it is, for the schema to read.
"""

import codecs
import csv
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl

from dpvd.data.source import BATCH_ROWS, TableSource, check_columns
from dpvd.data.words import DELIMITERS
from dpvd.errors import DpvdError

__all__ = ["csv_source"]

LONGEST_LINE = 10_000_000  # characters, and bytes before they are decoded
_BLOCK = 2**20  # bytes read at a time
_RECORDS = 1024  # parsed at a time
_SAMPLE_LINES = 50  # from which the delimiter is recognised
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def csv_source(
    path: Path, *, delimiter: str | None = None, encoding: str | None = None
) -> TableSource:
    """Return a CSV file as a source of text columns.

    Args:
        path: a file whose first line names the columns.
        delimiter: one of ``, ; | tab``; recognised from the first lines if not given.
        encoding: a name that Python knows, such as ``"latin-1"``; otherwise UTF-16 if the file
            begins with its byte order mark, and UTF-8 if not.

    Raises:
        DpvdError: for a file that is no such text, with the line where that is known.
    """
    if delimiter is not None and delimiter not in DELIMITERS:
        allowed = ", ".join(f"{mark!r}" for mark in DELIMITERS)
        raise DpvdError(f"delimiter must be one of {allowed}; got {delimiter!r}")
    chosen = _known_encoding(encoding) if encoding else _encoding_by_mark(path)
    mark = delimiter or _recognised_delimiter(path, chosen)
    rows = _rows(path, chosen, mark)
    header = next(rows, None)
    if header is None:
        raise DpvdError(f"{path} is empty: it needs a first line with the names of its columns")
    names = check_columns([cell.strip() for cell in header[1]], str(path))
    return TableSource(str(path), names, lambda: _batches(path, chosen, mark, names))


def _batches(
    path: Path, encoding: str, delimiter: str, names: tuple[str, ...]
) -> Iterator[pl.DataFrame]:
    rows = _rows(path, encoding, delimiter)
    next(rows)  # the header
    batch: list[list[str]] = []
    for line, row in rows:
        if len(row) != len(names):
            raise DpvdError(
                f"{path}, line {line}: {_count(len(row), 'cell')} where the header has"
                f" {len(names)}: a cell with the delimiter {delimiter!r} in it must be quoted"
            )
        batch.append(row)
        if len(batch) == BATCH_ROWS:
            yield _frame(batch, names)
            batch = []
    if batch:
        yield _frame(batch, names)


def _frame(rows: list[list[str]], names: tuple[str, ...]) -> pl.DataFrame:
    columns = zip(names, zip(*rows, strict=True), strict=True)
    return pl.DataFrame([pl.Series(name, cells, dtype=pl.String) for name, cells in columns])


def _rows(path: Path, encoding: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each record with the number of its last line; lines with nothing in them are skipped.

    A quoted cell may go over several lines.
    """
    reader = csv.reader(_lines(path, encoding), delimiter=delimiter, strict=True)
    while records := _some_records(reader, path):
        yield from ((line, row) for line, row in records if row)


def _some_records(reader: Any, path: Path) -> list[tuple[int, list[str]]]:
    """Return the next records; none at the end of the file."""
    before = csv.field_size_limit(LONGEST_LINE)  # a setting of the whole process: put back below
    try:
        return [(reader.line_num, row) for row in islice(reader, _RECORDS)]
    except csv.Error as error:
        complaint = _csv_complaint(str(error))
        raise DpvdError(f"{path}, line {reader.line_num}: {complaint}") from error
    finally:
        csv.field_size_limit(before)


def _csv_complaint(words: str) -> str:
    if "unexpected end" in words or "field larger" in words:
        return 'a quote (") is opened and never closed: close it'
    if "expected after" in words:
        return 'text follows a closing quote: write a quote inside a quoted cell twice, as ""'
    return words


def _lines(path: Path, encoding: str) -> Iterator[str]:
    """Yield decoded lines with their ends, at most one block and one line in memory."""
    decoder = codecs.getincrementaldecoder(encoding)("strict")
    rest = ""
    number = 0
    with path.open("rb") as file:
        while True:
            block = file.read(_BLOCK)
            try:
                text = rest + decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                raise DpvdError(_encoding_complaint(path, encoding, error)) from error
            lines = text.split("\n")
            if "\0" in text or "\r" in text or len(text) > LONGEST_LINE:
                for position, line in enumerate(lines, number + 1):
                    _check_line(line, path, position)
            rest = lines.pop()
            number += len(lines)
            yield from (line + "\n" for line in lines)
            if not block:
                break
    if rest:
        yield rest


def _check_line(line: str, path: Path, number: int) -> None:
    if len(line) > LONGEST_LINE:
        raise DpvdError(
            f"{path}, line {number} is longer than {LONGEST_LINE // 1_000_000} million characters:"
            " this is no table with one row per line"
        )
    if "\0" in line:
        raise DpvdError(
            f"{path}, line {number} has a NUL byte: this is no text in the encoding expected; give"
            " the encoding, or export the table again"
        )
    if "\r" in line[:-1] and '"' not in line:
        raise DpvdError(
            f"{path}, line {number} has a carriage return within: lines must end with a line feed;"
            " export the table again"
        )


def _encoding_complaint(path: Path, encoding: str, error: UnicodeDecodeError) -> str:
    name = "utf-8" if encoding == "utf-8-sig" else encoding
    found = error.object[error.start : error.start + 1].hex()
    return (
        f"{path} is not {name} (byte 0x{found}): give its encoding, such as latin-1 for files from"
        " older Windows programs"
    )


def _encoding_by_mark(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(4)
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if start.startswith(mark):
            return encoding
    return "utf-8-sig"


def _known_encoding(name: str) -> str:
    try:
        "a".encode(name)  # a LookupError also for what is no encoding of text, such as base64
    except (LookupError, ValueError) as error:
        raise DpvdError(
            f"encoding must be one that Python knows, such as utf-8 or latin-1; got {name!r}"
        ) from error
    known = codecs.lookup(name).name
    return "utf-8-sig" if known == "utf-8" else known


def _recognised_delimiter(path: Path, encoding: str) -> str:
    """Return the delimiter under which the first lines have the same number of cells, and most.

    A file with a single column has none; a comma does it no harm.
    """
    sample = []
    for line in _lines(path, encoding):
        sample.append(line)
        if len(sample) == _SAMPLE_LINES:
            break
    cells = {mark: _cells_per_row(sample, mark) for mark in DELIMITERS}
    best = max(cells, key=lambda mark: cells[mark])
    if cells[best] > 1:
        return best
    # Ragged lines are complained about later; under the delimiter that the header speaks for.
    header = sample[0] if sample else ""
    return max(DELIMITERS, key=lambda mark: header.count(mark))


def _cells_per_row(sample: list[str], delimiter: str) -> int:
    """Return how many cells each line has, 0 if they differ."""
    try:
        rows = [row for row in csv.reader(sample, delimiter=delimiter) if row]
    except csv.Error:
        return 0
    # A quoted cell may have been cut off by the end of the sample.
    counts = {len(row) for row in (rows[:-1] or rows)}
    return counts.pop() if len(counts) == 1 else 0


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
