"""Where rows come from: named columns, delivered in batches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from dpvd.data.words import DELIMITERS, quoted
from dpvd.errors import DpvdError

__all__ = ["BATCH_ROWS", "TableSource", "check_columns", "require_columns"]

BATCH_ROWS = 32_768
"""Rows in memory at a time while a table is read."""


@dataclass(frozen=True)
class TableSource:
    """A table that can be read from its beginning, batch by batch.

    Args:
        name: how messages name it.
        columns: their names, in order.
        batches: starts reading and yields frames with these columns. From a CSV file all cells are
            text; otherwise columns have types.
        some_columns: does the same for some of the columns, if that is less work.
        in_memory: whether the rows are in memory anyway.
    """

    name: str
    columns: tuple[str, ...]
    batches: Callable[[], Iterator[pl.DataFrame]]
    some_columns: Callable[[Sequence[str]], Iterator[pl.DataFrame]] | None = None
    in_memory: bool = False

    def read(self, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Start reading and yield frames with some of the columns, one or more."""
        if self.some_columns is not None:
            return self.some_columns(columns)
        return (frame.select(columns) for frame in self.batches())


def check_columns(names: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the names of a table's columns, or raise if one is empty or there twice."""
    if not names:
        raise DpvdError(f"{where} has no columns")
    for position, name in enumerate(names):
        if not name:
            raise DpvdError(
                f"{where} has no name for column {position + 1}: give every column a name in the"
                " first line"
            )
        if name in names[:position]:
            raise DpvdError(f"{where} has two columns named {quoted(name)}: rename one of them")
    return tuple(names)


def require_columns(source: TableSource, wanted: Sequence[str]) -> None:
    """Raise if the table lacks one of these columns, saying what it has instead."""
    lacking = [name for name in wanted if name not in source.columns]
    if not lacking:
        return
    only = source.columns[0]
    inside = [word for mark, word in DELIMITERS.items() if mark in only]
    if len(source.columns) == 1 and inside:
        raise DpvdError(
            f"{source.name} has no column {quoted(lacking[0])}: it was read as one column,"
            f" {quoted(only)}; is the delimiter a {inside[0]}?"
        )
    shown = ", ".join(source.columns[:20]) + (", ..." if len(source.columns) > 20 else "")
    raise DpvdError(f"{source.name} has no column {quoted(lacking[0])}; it has {shown}")
