"""From what scikit-learn's users pass as X to the features of a table, by declared facts alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from dpvd.data import (
    Column,
    Encoder,
    Kind,
    Schema,
    Source,
    Target,
    encoded_batches,
    open_table,
    read_schema,
)
from dpvd.errors import DpvdError

__all__ = [
    "NO_BOUNDS",
    "as_polars",
    "as_schema",
    "bounds_pair",
    "columns_of",
    "encode",
    "is_frame",
    "numeric_schema",
]

NO_BOUNDS = (
    "bounds or schema must be given: what is known of the columns without looking at the data, such"
    " as bounds=(0, 1), one pair for each column, or bounds={'age': (0, 120), ...}. Bounds that are"
    " read off the data tell something about the people in it, and no noise would hide that;"
    " private_bounds=0.2 has them estimated with noise, for that part of epsilon"
)


def is_frame(x: Any) -> bool:
    """Whether columns have names: a frame, a pyarrow table or a dictionary."""
    return isinstance(x, Mapping) or hasattr(x, "columns") or hasattr(x, "column_names")


def as_schema(schema: Any) -> Schema:
    """Return the schema that was given as one, as the path of a file, or as a dictionary."""
    if isinstance(schema, Schema):
        return schema
    if isinstance(schema, str | Path):
        return read_schema(schema)
    if isinstance(schema, Mapping):
        return Schema.from_dict(schema)
    raise DpvdError(
        "schema must be a Schema, the path of a schema file, or a dictionary, got"
        f" {type(schema).__name__}"
    )


def numeric_schema(
    names: Sequence[str], bounds: Any, target: Target, *, estimate: bool = False
) -> Schema:
    """Return the schema of numeric columns with declared bounds.

    Args:
        names: of the columns.
        bounds: one pair for all columns, one pair for each, or pairs by name.
        target: what is to be predicted.
        estimate: whether columns may lack bounds, which are to be estimated.
    """
    declared = names
    if estimate and (bounds is None or isinstance(bounds, Mapping)):
        bounds = {} if bounds is None else bounds
        declared = [name for name in names if name in bounds]
    pairs = _bounds_by_name(declared, bounds)
    columns = [
        Column(name, Kind.NUMERIC, bounds=pairs[name], source=Source.PUBLIC)
        if name in pairs
        else Column(name, Kind.NUMERIC, source=Source.PRIVATE)
        for name in names
    ]
    if target.name in names:
        target = replace(target, name=_unused(target.name, names))
    return Schema(tuple(columns), target)


def as_polars(x: Any) -> pl.DataFrame:
    """Return a frame of any library, or a dictionary of columns, as a Polars frame."""
    parts = list(open_table(x).batches())
    if not parts:
        raise DpvdError("the table has no rows: two or more are needed")
    return pl.concat(parts)


def columns_of(x: Any, names: Sequence[str]) -> Any:
    """Return a frame as it is, and an array with the names of its columns."""
    if is_frame(x):
        return x
    return {name: x[:, position] for position, name in enumerate(names)}


def encode(table: Any, encoder: Encoder) -> Tensor:
    """Return the features of a table, float32 [n, features].

    Raises:
        DpvdError: with row and column, for whatever the schema does not allow.
    """
    parts = [features for _, features in encoded_batches(open_table(table), encoder)]
    if not parts:
        raise DpvdError("the table has no rows: one or more are needed")
    return torch.from_numpy(np.concatenate(parts))


def _bounds_by_name(names: Sequence[str], bounds: Any) -> dict[str, tuple[float, float]]:
    if isinstance(bounds, Mapping):
        lacking = [name for name in names if name not in bounds]
        unknown = [name for name in bounds if name not in names]
        if lacking or unknown:
            what = "has none for column" if lacking else "names a column that is not there:"
            raise DpvdError(
                f"bounds {what} {(lacking or unknown)[0]!r}; the columns are"
                f" {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"
            )
        return {name: bounds_pair(bounds[name], f"column {name!r}") for name in names}
    if not isinstance(bounds, Sequence | np.ndarray) or isinstance(bounds, str):
        raise DpvdError(f"bounds must be pairs of numbers, got {bounds!r}")
    if len(bounds) == 2 and all(isinstance(bound, Real) for bound in bounds):
        return {name: bounds_pair(bounds, f"column {name!r}") for name in names}
    if len(bounds) != len(names):
        raise DpvdError(
            f"bounds must be one pair for all columns or one for each of the {len(names)}, got"
            f" {len(bounds)}"
        )
    pairs = zip(names, bounds, strict=True)
    return {name: bounds_pair(pair, f"column {name!r}") for name, pair in pairs}


def bounds_pair(pair: Any, what: str) -> tuple[float, float]:
    """Return the smallest and largest value that ``what`` can have, as two numbers."""
    numbers = list(pair) if isinstance(pair, Sequence | np.ndarray) else [pair]
    if len(numbers) != 2 or not all(isinstance(number, Real) for number in numbers):
        raise DpvdError(f"the bounds of {what} must be two numbers, got {pair!r}")
    return float(numbers[0]), float(numbers[1])


def _unused(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "_"
    return name
