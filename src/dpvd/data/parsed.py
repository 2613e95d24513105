"""Rows that are parsed once and then read as often as they are needed."""

import io
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from dpvd.data.source import TableSource
from dpvd.data.storage import on_disk

__all__ = ["parsed_once"]


def parsed_once(source: TableSource, *, memory: int, scratch: Path | None = None) -> TableSource:
    """Return a source with the same rows, whose file is parsed when it is read first, and no more.

    Guarantees:
        What was parsed is the same in every later pass, whatever happens to the file. The copy is
        in memory, or in a file without a name: that vanishes with the source, however the process
        ends.

    Args:
        source: a table; one that is in memory already is returned as it is.
        memory: bytes, compressed, beyond which rows go into a file.
        scratch: folder for that file; None for the system's own.

    Raises:
        DpvdError: when it is read first, for whatever the source refuses, and for a full disk.
    """
    if source.in_memory:
        return source
    rows = _ParsedRows(source, memory, scratch)
    return TableSource(
        source.name,
        source.columns,
        batches=lambda: rows.read(source.columns),
        some_columns=rows.read,
    )


class _ParsedRows:
    """Batches of columns, each a piece of the file by itself: a column is read without the rest."""

    def __init__(self, source: TableSource, memory: int, scratch: Path | None) -> None:
        self._source = source
        folder = None if scratch is None else str(scratch)
        # Closed by the finalizer: the rows are read for as long as somebody holds them.
        self._file = tempfile.SpooledTemporaryFile(memory, dir=folder)  # noqa: SIM115
        self._pieces: list[dict[str, tuple[int, int]]] | None = None  # for each batch
        weakref.finalize(self, self._file.close)

    def read(self, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Yield some columns, in batches as the source has them."""
        if self._pieces is None:
            self._pieces = self._copied()
        for pieces in self._pieces:
            yield pl.DataFrame([self._series(*pieces[name]) for name in columns])

    def _copied(self) -> list[dict[str, tuple[int, int]]]:
        """Write all rows; return where each batch has each column: place and bytes."""
        on_disk(lambda: self._file.truncate(0))  # of a pass that was broken off
        on_disk(lambda: self._file.seek(0))
        return [
            {series.name: self._write(series) for series in frame}
            for frame in self._source.batches()
        ]

    def _write(self, series: pl.Series) -> tuple[int, int]:
        buffer = io.BytesIO()
        series.to_frame().write_ipc(buffer, compression="lz4")
        piece = buffer.getvalue()
        place = self._file.tell()
        on_disk(lambda: self._file.write(piece))
        return place, len(piece)

    def _series(self, place: int, size: int) -> pl.Series:
        self._file.seek(place)
        return pl.read_ipc(self._file.read(size)).to_series()
