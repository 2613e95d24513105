"""Which rows are trained on, and what is read of them before a table can be encoded."""

import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from dpvd.data.cells import as_text, parse_days, parse_numbers
from dpvd.data.column import Column, Kind, Target
from dpvd.data.schema import Schema
from dpvd.data.source import TableSource, require_columns
from dpvd.data.units import chosen_rows, share_of, unit_hashes, unit_numbers
from dpvd.errors import DpvdError

__all__ = ["TrainingCells", "count_units", "seed_bytes", "split_batches", "training_cells"]


def split_batches(
    source: TableSource,
    schema: Schema,
    test_fraction: float,
    seed: bytes,
    columns: Sequence[str],
) -> Iterator[tuple[pl.DataFrame, int, np.ndarray | None, np.ndarray]]:
    """Yield each batch, the number of its first row, its units' hashes, and which rows are to test
    on: the same for the same seed.

    A batch has the columns that are asked for, and those that tell the rows apart.
    """
    needed = [*columns, schema.id] if schema.id is not None else list(columns)
    needed = list(dict.fromkeys(needed)) or list(source.columns[:1])
    coins = np.random.Generator(np.random.PCG64(int.from_bytes(seed, "little")))
    first_row = 1
    for frame in source.read(needed):
        keys = None
        if schema.id is None:
            in_test = coins.random(len(frame)) < test_fraction
        else:
            ids = frame.get_column(schema.id)
            keys = unit_hashes(ids, schema.missing_values, seed, first_row)
            in_test = share_of(keys) < test_fraction
        yield frame, first_row, keys, in_test
        first_row += len(frame)


def count_units(
    source: TableSource, schema: Schema, *, test_fraction: float | None = None, seed: int
) -> int:
    """Return how many units `load_table` would put into the training part with this seed.

    What a row is encoded as may depend on that number, which a privacy statement calls public.
    """
    require_columns(source, [] if schema.id is None else [schema.id])
    rows = 0
    units = np.zeros(0, dtype=np.uint64)
    batches = split_batches(source, schema, test_fraction or 0.0, seed_bytes(seed), ())
    for _, _, keys, in_test in batches:
        rows += int((~in_test).sum())
        if keys is not None:
            units = np.union1d(units, keys[~in_test])
    return rows if schema.id is None else len(units)


@dataclass(frozen=True, eq=False)
class TrainingCells:
    """Cells of the training part as they are, for estimates that are made before encoding.

    Args:
        parts: starts reading a column and yields its cells, part by part: float64, NaN where there
            is no value, dates as days since 1970-01-01; or texts as objects, None where there is
            no value.
        order: which of these cells are the column's, in the order of ``unit``; None for all.
        unit: as in `EncodedTable`.
    """

    parts: Callable[[str], Iterator[np.ndarray]]
    order: np.ndarray | None
    unit: np.ndarray | None

    def column(self, name: str) -> np.ndarray:
        """Read a column, of shape (rows,). Nothing of it is kept here."""
        whole = np.concatenate(list(self.parts(name)))
        return whole if self.order is None else whole[self.order]

    def has_more_values(self, name: str, most: int) -> bool:
        """Whether a column has more different values than so many; read only as far as needed."""
        seen: set[object] = set()
        for part in self.parts(name):
            seen.update(part.tolist())
            if len(seen) > most:
                return True
        return False


def training_cells(
    source: TableSource,
    schema: Schema,
    columns: Sequence[Column | Target],
    *,
    test_fraction: float | None = None,
    seed: int,
) -> TrainingCells:
    """Return some columns of the rows that `load_table` would train on with this seed.

    They stay where they are until they are asked for, so that memory holds one at a time.
    """
    declared = {column.name: column for column in columns}
    require_columns(source, [*declared] if schema.id is None else [*declared, schema.id])
    takes_part, order, unit = _rows_that_take_part(
        source, schema, test_fraction or 0.0, seed_bytes(seed)
    )

    def parts(name: str) -> Iterator[np.ndarray]:
        start = 0
        for frame in source.read([name]):
            cells = _raw_cells(frame.get_column(name), schema, declared[name], start + 1)
            yield cells[takes_part[start : start + len(frame)]]
            start += len(frame)

    return TrainingCells(parts, order, unit)


def _rows_that_take_part(
    source: TableSource, schema: Schema, test_fraction: float, seed: bytes
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Return which rows of a table are trained on, their order by unit, and their units."""
    hashes = []
    in_training = []
    for _, _, keys, in_test in split_batches(source, schema, test_fraction, seed, ()):
        in_training.append(~in_test)
        if keys is not None:
            hashes.append(keys[~in_test])
    takes_part = np.concatenate(in_training)
    if schema.id is None:
        return takes_part, None, None
    together = np.concatenate(hashes)
    rows = chosen_rows(together, schema.rows_per_unit)
    is_chosen = np.zeros(len(together), dtype=bool)
    is_chosen[rows] = True
    takes_part[takes_part] = is_chosen
    place = np.cumsum(is_chosen) - 1
    return takes_part, place[rows], unit_numbers(together[rows])


def _raw_cells(
    series: pl.Series, schema: Schema, column: Column | Target, first_row: int
) -> np.ndarray:
    """Return numbers, float64, or texts, as objects of which equal ones are the same."""
    tokens: tuple[str, ...] = ("", *schema.missing_values)
    if isinstance(column, Column):
        tokens = schema.missing_tokens(column)
    if isinstance(column, Column) and column.kind is Kind.CATEGORICAL:
        text = as_text(series)
        kept = text.set(text.is_in(list(tokens)).fill_null(False), None)
        return np.array([None if cell is None else sys.intern(cell) for cell in kept], dtype=object)
    if isinstance(column, Column) and column.kind is Kind.DATE:
        values, missing = parse_days(series, column.date_format, tokens, first_row)
    else:
        values, missing = parse_numbers(series, tokens, first_row)
    return np.where(missing, np.nan, values)


def seed_bytes(seed: int | None) -> bytes:
    """Return what the hashes and coins of a split follow from; drawn from the system for None."""
    if seed is None:
        return secrets.token_bytes(32)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise DpvdError(f"seed must be an integer from 0 to 2^64 - 1, got {seed!r}")
    return b"dpvd table split" + seed.to_bytes(16, "little")
