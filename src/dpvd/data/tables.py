"""A table as arrays to train on: read once, encoded, split and grouped by unit."""

import hashlib
import hmac
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dpvd.data.column import Missing
from dpvd.data.encoding import Encoder
from dpvd.data.frames import from_frame
from dpvd.data.reading import read_table
from dpvd.data.schema import Schema
from dpvd.data.source import TableSource, require_columns
from dpvd.data.splitting import seed_bytes, split_batches
from dpvd.data.storage import IN_MEMORY_BYTES, RowStore
from dpvd.data.units import chosen_rows, unit_numbers
from dpvd.data.words import quoted
from dpvd.errors import DpvdError, in_unit_interval

__all__ = [
    "EncodedTable",
    "TableParts",
    "encoded_batches",
    "load_table",
    "open_table",
]

_SHORTEST_KEY = 16  # bytes
_ROWS_AT_A_TIME = 65_536


@dataclass(frozen=True, eq=False)
class EncodedTable:
    """Features and targets of a table.

    Args:
        x: features, float32, shape (rows, features); a memory map if they are many.
        y: targets, shape (rows,): int64 classes, or float32 in [-1, 1].
        unit: to whom each row belongs, int64 from 0, rows of one unit together; None if every row
            stands for itself.
        encoder: what made them.
    """

    x: np.ndarray
    y: np.ndarray
    unit: np.ndarray | None
    encoder: Encoder

    @property
    def schema(self) -> Schema:
        """The schema of the table."""
        return self.encoder.schema

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features."""
        return self.encoder.features

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.y)

    @property
    def units(self) -> int:
        """Number of units: people, say, or rows where these stand for themselves."""
        if self.unit is None or self.rows == 0:
            return self.rows
        return int(self.unit[-1]) + 1

    def checksum(self, key: bytes) -> str:
        """Return the HMAC-SHA256 of all contents: without the key it says nothing about the data.

        A plain hash would let anybody check a guess at the whole table.

        Args:
            key: secret, 16 bytes or more.
        """
        if not isinstance(key, bytes) or len(key) < _SHORTEST_KEY:
            raise DpvdError(f"the key of a checksum must be {_SHORTEST_KEY} bytes or more")
        digest = hmac.new(key, digestmod=hashlib.sha256)
        arrays = [self.x, self.y]
        if self.unit is not None:
            arrays.append(self.unit)
        for array in arrays:
            header = f"{array.dtype} {array.shape};"
            digest.update(header.encode())
            for start in range(0, len(array), _ROWS_AT_A_TIME):
                rows = array[start : start + _ROWS_AT_A_TIME]
                digest.update(np.ascontiguousarray(rows).data)
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class TableParts:
    """The part of a table to train on, and the part to test on if one was asked for."""

    train: EncodedTable
    test: EncodedTable | None


def open_table(
    data: Any, *, delimiter: str | None = None, encoding: str | None = None
) -> TableSource:
    """Return a table from the path of a file, a frame, or a source that is one already.

    Args:
        data: text or path of a file (see `read_table`), or a frame (see `from_frame`).
        delimiter: of a CSV file; recognised if not given.
        encoding: of a CSV file; UTF-8, or UTF-16 by its mark, if not given.
    """
    if isinstance(data, TableSource):
        return data
    if isinstance(data, str | Path):
        return read_table(data, delimiter=delimiter, encoding=encoding)
    return from_frame(data)


def encoded_batches(
    source: TableSource, encoder: Encoder
) -> Iterator[tuple[pl.DataFrame, np.ndarray]]:
    """Yield each batch of a table with its features; the target need not be there.

    Raises:
        DpvdError: for a column that is missing, before anything is yielded, and for bad cells.
    """
    require_columns(source, [column.name for column in encoder.schema.used])
    first_row = 1
    for frame in source.batches():
        yield frame, _at(source, encoder.encode, frame, first_row)
        first_row += len(frame)


def load_table(
    data: Any,
    schema: Schema | Encoder,
    *,
    test_fraction: float | None = None,
    seed: int | None = None,
    all_rows: bool = False,
    scratch: Path | None = None,
    memory: int = IN_MEMORY_BYTES,
    delimiter: str | None = None,
    encoding: str | None = None,
) -> TableParts:
    """Read a table once and return it encoded, by its schema alone.

    With an id in the schema, a unit's rows are all in the training part or all in the test part,
    and at most ``rows_per_unit`` of them are in the training part, chosen at random.

    Guarantees:
        Which rows are chosen, and for which part, depends on no value but the identifier; and for
        one unit on no other unit.

    Edge cases:
        Each unit (each row, without an id) goes to the test part with the given probability, by
        itself: its size is the fraction of the whole only on average. A table whose rows have one
        class only, or no value in a column, is refused: this tells whoever holds the data, and
        nothing is trained.

    Args:
        data: a file or a frame, as for `open_table`.
        schema: or an encoder, which also says how numbers become features.
        test_fraction: share of units to test on, strictly between 0 and 1; None for no test part.
        seed: makes the choice of rows repeatable; drawn from the system if not given.
        all_rows: keep all rows of each unit: for a table that is to be tested on.
        scratch: folder for the file of a large table; None for the system's own.
        memory: bytes of features beyond which they go into that file.
        delimiter: of a CSV file; recognised if not given.
        encoding: of a CSV file; UTF-8, or UTF-16 by its mark, if not given.

    Raises:
        DpvdError: with row and column, for whatever the schema does not allow.
    """
    if test_fraction is not None:
        in_unit_interval(test_fraction=test_fraction)
    encoder = schema if isinstance(schema, Encoder) else Encoder(schema)
    source = open_table(data, delimiter=delimiter, encoding=encoding)
    known = encoder.schema
    wanted = [column.name for column in known.used] + [known.target.name]
    require_columns(source, wanted if known.id is None else [*wanted, known.id])
    stores = [RowStore(encoder.width, scratch, memory) for _ in range(2)]
    try:
        batches = split_batches(source, known, test_fraction or 0.0, seed_bytes(seed), wanted)
        _fill(stores, batches, source, encoder)
        most = None if all_rows else known.rows_per_unit
        train = _table(stores[0], encoder, most)
        test = None if test_fraction is None else _table(stores[1], encoder, None)
    finally:
        for store in stores:
            store.close()
    _refuse_untrainable(train, test, source.name)
    return TableParts(train, test)


def _fill(
    stores: list[RowStore],
    batches: Iterator[tuple[pl.DataFrame, int, np.ndarray | None, np.ndarray]],
    source: TableSource,
    encoder: Encoder,
) -> None:
    """Read all rows into the store of the training part or that of the test part."""
    for frame, first_row, keys, in_test in batches:
        x = _at(source, encoder.encode, frame, first_row)
        y = _at(source, encoder.encode_target, frame, first_row)
        for store, rows in ((stores[0], ~in_test), (stores[1], in_test)):
            if rows.any():
                everything = bool(rows.all())
                store.append(
                    x if everything else x[rows],
                    y[rows],
                    None if keys is None else keys[rows],
                )


def _table(store: RowStore, encoder: Encoder, most: int | None) -> EncodedTable:
    """Return what a store holds, grouped by unit if the schema has an id."""
    features = store.features()
    targets = store.targets()
    if encoder.schema.id is None:
        return EncodedTable(features, targets, None, encoder)
    hashes = store.keys()
    rows = chosen_rows(hashes, most)
    unit = unit_numbers(hashes[rows])
    return EncodedTable(store.select(features, rows), targets[rows], unit, encoder)


def _refuse_untrainable(train: EncodedTable, test: EncodedTable | None, name: str) -> None:
    if train.rows + (test.rows if test else 0) == 0:
        raise DpvdError(f"{name} has a header and no rows")
    if train.units < 2:
        raise DpvdError(f"{name} has {train.rows} row to train on: two or more are needed")
    if test is not None and test.rows == 0:
        raise DpvdError(f"{name} is too small for this test fraction: no row is left to test on")
    target = train.schema.target
    if target.is_classification and (train.y == train.y[0]).all():
        raise DpvdError(
            f"{name}, column {quoted(target.name)}: all rows to train on have the class"
            f" {quoted(target.classes[int(train.y[0])])}: there is nothing to tell apart"
        )
    for column in train.schema.used:
        if column.missing is Missing.REFUSE:
            continue
        indicator = train.x[:, train.features.index(f"{column.name} is missing")]
        if indicator.all():
            raise DpvdError(
                f"{name}, column {quoted(column.name)}: no row has a value: set"
                ' kind = "ignore" in the schema'
            )


def _at(
    source: TableSource,
    encode: Callable[[pl.DataFrame, int], np.ndarray],
    frame: pl.DataFrame,
    first_row: int,
) -> np.ndarray:
    """Encode a batch; an error names the table."""
    try:
        return encode(frame, first_row)
    except DpvdError as error:
        raise DpvdError(f"{source.name}, {error}") from error
