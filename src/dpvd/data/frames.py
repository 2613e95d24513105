"""Frames and arrays in memory as tables: pandas, Polars, pyarrow, dictionaries, NumPy.

Neither pandas nor pyarrow is imported here: whoever passes one of their objects has it.
"""

import numbers
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any

import numpy as np
import polars as pl

from dpvd.data.source import BATCH_ROWS, TableSource, check_columns
from dpvd.data.words import canonical_text, quoted
from dpvd.errors import DpvdError

__all__ = ["from_frame"]

_MISSING_TYPES = ("NoneType", "NAType", "NaTType")


def from_frame(data: Any, names: Sequence[str] | None = None) -> TableSource:
    """Return a frame in memory as a source of columns.

    Guarantees:
        Missing values of every library (None, NaN, NaT, NA) are missing; nothing else is.

    Args:
        data: a pandas or Polars frame, a pyarrow table, a dictionary of arrays by column name, a
            structured array, or an array of shape (rows, columns).
        names: of the columns of an array that is not structured.

    Raises:
        DpvdError: for anything else, names that are lacking or there twice, and columns of
            different lengths.

    >>> from_frame({"age": [31, 54], "smoker": [True, False]}).columns
    ('age', 'smoker')
    """
    columns = list(_columns(data, names))
    labels = [name.strip() for name, _ in columns]
    checked = check_columns(labels, "the frame")
    lengths = {len(series) for _, series in columns}
    if len(lengths) > 1:
        raise DpvdError(f"the columns of the frame have different lengths: {sorted(lengths)}")
    pairs = zip(checked, columns, strict=True)
    frame = pl.DataFrame([series.alias(name) for name, (_, series) in pairs])
    return TableSource("the frame", checked, lambda: _slices(frame), in_memory=True)


def _slices(frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
    for start in range(0, len(frame), BATCH_ROWS):
        yield frame.slice(start, BATCH_ROWS)


def _columns(data: Any, names: Sequence[str] | None) -> Iterator[tuple[str, pl.Series]]:
    """Yield name and contents of each column, whatever holds them."""
    library = type(data).__module__.split(".")[0]
    if names is not None and not isinstance(data, np.ndarray):
        raise DpvdError("names are for arrays: a frame has its own")
    if isinstance(data, pl.LazyFrame):
        data = data.collect()
    if isinstance(data, pl.DataFrame):
        yield from ((series.name, series) for series in data)
    elif library == "pandas" and hasattr(data, "columns"):
        for position, label in enumerate(data.columns):
            yield str(label), _pandas_series(data.iloc[:, position])
    elif library == "pyarrow" and hasattr(data, "column_names"):
        for position, label in enumerate(data.column_names):
            yield label, pl.Series(label, pl.from_arrow(data.column(position)))
    elif isinstance(data, Mapping):
        for label, values in data.items():
            yield str(label), _plain_series(values, f"column {quoted(str(label))}")
    elif isinstance(data, np.ndarray):
        yield from _array_columns(data, names)
    else:
        raise DpvdError(
            "a table must be the path of a file, a pandas or Polars frame, a pyarrow table, a"
            f" dictionary of columns or an array, got {type(data).__name__}"
        )


def _array_columns(
    array: np.ndarray, names: Sequence[str] | None
) -> Iterator[tuple[str, pl.Series]]:
    if array.dtype.names is not None:
        for label in array.dtype.names:
            yield label, _plain_series(array[label], f"column {quoted(label)}")
        return
    if array.ndim != 2:
        raise DpvdError(f"an array must have shape (rows, columns), got {array.shape}")
    if names is None or len(names) != array.shape[1]:
        got = "none" if names is None else str(len(names))
        raise DpvdError(f"an array of {array.shape[1]} columns needs as many names, got {got}")
    for position, label in enumerate(names):
        yield str(label), _plain_series(array[:, position], f"column {quoted(str(label))}")


def _plain_series(values: Any, where: str) -> pl.Series:
    """Return an array, list or tuple as a column."""
    array = values if isinstance(values, np.ndarray) else None
    if array is None:
        if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
            raise DpvdError(f"{where} must be an array or a list, got {type(values).__name__}")
        return _object_series(list(values), where)
    if array.ndim != 1:
        raise DpvdError(f"{where} must have one value per row, got shape {array.shape}")
    if array.dtype.kind in "biuf":
        # float16 and long doubles are no types of Polars.
        odd = array.dtype.kind == "f" and array.dtype.itemsize not in (4, 8)
        return pl.Series(np.ascontiguousarray(array.astype(np.float64) if odd else array))
    if array.dtype.kind == "M":
        return pl.Series(array.astype("datetime64[us]"))
    return _object_series(array.tolist(), where)


def _pandas_series(series: Any) -> pl.Series:
    """Return a pandas column; its own types for missing values, text and categories included."""
    where = f"column {quoted(str(series.name))}"
    missing = series.isna().to_numpy()
    kind = getattr(series.dtype, "kind", "O")
    if isinstance(series.dtype, np.dtype) and kind in "biuf":
        return _plain_series(series.to_numpy(), where)
    if kind == "M" and (isinstance(series.dtype, np.dtype) or hasattr(series.dtype, "tz")):
        without_zone = series.dt.tz_localize(None)
        return _plain_series(without_zone.to_numpy(dtype="datetime64[us]"), where)
    values = series.astype(object).tolist()
    known = [None if gone else value for value, gone in zip(values, missing, strict=True)]
    return _object_series(known, where)


def _object_series(values: list[Any], where: str) -> pl.Series:
    """Return Python values as a column: of one type if they have one, otherwise as text."""
    known = [_plain_value(value, where) for value in values]
    present = [value for value in known if value is not None]
    if all(isinstance(value, bool) for value in present):
        return pl.Series(known, dtype=pl.Boolean)
    if all(_is_number(value) for value in present):
        is_whole = all(_is_64_bit_integer(value) for value in present)
        kind = pl.Int64 if is_whole else pl.Float64
        return pl.Series(known, dtype=kind, strict=False)
    texts = [None if value is None else canonical_text(value) for value in known]
    return pl.Series(texts, dtype=pl.String)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_64_bit_integer(value: Any) -> bool:
    return isinstance(value, int) and abs(value) < 2**63


def _plain_value(value: Any, where: str) -> Any:
    """Return None for a missing value, otherwise a text, boolean, number or date of Python."""
    if type(value).__name__ in _MISSING_TYPES or value != value:
        return None
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str | bool | int | float | date | datetime):
        return value
    if isinstance(value, numbers.Real) or type(value).__name__ == "Decimal":
        return float(value)
    raise DpvdError(
        f"{where} holds a {type(value).__name__}: allowed are texts, numbers, booleans and dates"
    )
