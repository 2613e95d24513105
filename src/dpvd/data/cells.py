"""Columns of cells as numbers: text or typed, with the cells that are missing, or one clear error.

Rows are counted from 1 and the header is not counted.
"""

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import polars as pl

from dpvd.data.words import FALSE_WORDS, TRUE_WORDS, quoted, shortened
from dpvd.errors import DpvdError

__all__ = ["UNSEEN", "as_text", "parse_booleans", "parse_codes", "parse_days", "parse_numbers"]

UNSEEN = -1
"""The code of a category that is not declared."""

_ISO = r"^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?$"
_WHOLE_WITH_POINT = r"^(-?\d+)\.0+$"
_EXACT_INTEGERS = 2.0**53


def as_text(series: pl.Series) -> pl.Series:
    """Return the cells under their canonical text; null where nothing is there.

    >>> as_text(pl.Series([1.0, 2.5, float("nan")])).to_list()
    ['1', '2.5', None]
    """
    kind = series.dtype
    if kind == pl.String:
        return series.str.strip_chars()
    if kind in (pl.Categorical, pl.Enum):
        return series.cast(pl.String).str.strip_chars()
    if kind == pl.Boolean:
        return series.cast(pl.Int8).replace_strict({1: "true", 0: "false"}, return_dtype=pl.String)
    if kind.is_integer() or kind == pl.Null or kind == pl.Date:
        return series.cast(pl.String)
    if kind == pl.Datetime:
        return series.cast(pl.Date).cast(pl.String)
    if kind.is_float() or kind == pl.Decimal:
        numbers = series.cast(pl.Float64).fill_nan(None)
        is_whole = (numbers == numbers.floor()) & (numbers.abs() < _EXACT_INTEGERS)
        whole = numbers.zip_with(is_whole.fill_null(False), pl.Series([0.0]))
        texts = whole.cast(pl.Int64).cast(pl.String)
        return texts.zip_with(is_whole.fill_null(True) & numbers.is_not_null(), _text(numbers))
    raise DpvdError(
        f"column {quoted(series.name)} holds {shortened(str(kind))}: allowed are texts, numbers,"
        " booleans and dates; set its kind to ignore, or convert it"
    )


def parse_numbers(
    series: pl.Series, tokens: Sequence[str], first_row: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of a column, 0 where one is missing, and which are missing.

    Args:
        series: the cells of one batch.
        tokens: texts that count as missing; one that is a number counts however it is written.
        first_row: number of the batch's first row in the table.

    Returns:
        float64 and bool, each of shape (rows,).

    Raises:
        DpvdError: with row and column, for a cell that is no finite number.
    """
    if series.dtype.is_numeric() or series.dtype == pl.Boolean:
        numbers = series.cast(pl.Float64).fill_nan(None)
        missing = numbers.is_null().to_numpy()
    else:
        text = as_text(series)
        missing = _is_missing(text, tokens)
        numbers = text.cast(pl.Float64, strict=False)
    values = numbers.fill_null(np.nan).to_numpy().copy()
    for token in tokens:
        if (number := _number(token)) is not None:
            missing = missing | (values == number)
    bad = ~missing & ~np.isfinite(values)
    if bad.any():
        position = int(bad.argmax())
        _refuse(series, position, first_row, _number_complaint(str(series[position])))
    values[missing] = 0.0
    return values, missing


def parse_codes(
    series: pl.Series, categories: Sequence[str], tokens: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return each cell's position among the categories, or `UNSEEN`, and which are missing.

    Edge cases:
        A boolean of a frame is the category that says the same, such as "True", "yes" or "1".

    Returns:
        int64 and bool, each of shape (rows,).
    """
    text = as_text(series)
    missing = _is_missing(text, tokens)
    names = list(categories)
    spelled = names
    if series.dtype == pl.Boolean:
        spelled = [_boolean_text(name, names) for name in names]
    codes = _positions(text, spelled)
    unseen = (codes == UNSEEN) & ~missing
    if unseen.any():  # a column of whole numbers with gaps is often written as 1.0, 2.0
        without_point = text.str.replace(_WHOLE_WITH_POINT, "${1}")
        codes = np.where(unseen, _positions(without_point, spelled), codes)
    return codes, missing


def parse_booleans(
    series: pl.Series, tokens: Sequence[str], first_row: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return +1 for yes, -1 for no, 0 where it is missing; and which are missing."""
    text = as_text(series).str.to_lowercase().str.replace(_WHOLE_WITH_POINT, "${1}")
    missing = _is_missing(as_text(series), tokens)
    codes = _positions(text, [*TRUE_WORDS, *FALSE_WORDS])
    bad = (codes == UNSEEN) & ~missing
    if bad.any():
        position = int(bad.argmax())
        words = "the cell is neither yes nor no: allowed are"
        pairs = zip(TRUE_WORDS, FALSE_WORDS, strict=True)
        allowed = ", ".join(f"{yes}/{no}" for yes, no in pairs)
        _refuse(series, position, first_row, f"{words} {allowed}")
    values = np.where(codes < len(TRUE_WORDS), 1.0, -1.0)
    values[missing] = 0.0
    return values, missing


def parse_days(
    series: pl.Series, date_format: str, tokens: Sequence[str], first_row: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return days since 1970-01-01, 0 where a date is missing, and which are missing.

    Args:
        series: the cells of one batch.
        date_format: as for ``strptime``; empty for 2020-12-31, a time of day may follow.
        tokens: texts that count as missing.
        first_row: number of the batch's first row in the table.
    """
    if series.dtype in (pl.Date, pl.Datetime):
        dates = series.cast(pl.Date)
        missing = dates.is_null().to_numpy()
    else:
        text = as_text(series)
        missing = _is_missing(text, tokens)
        dates = _dates(text, date_format, series.name)
    bad = ~missing & dates.is_null().to_numpy()
    if bad.any():
        position = int(bad.argmax())
        wanted = f"in the format {date_format}" if date_format else "such as 2020-12-31"
        words = f"the cell is no date {wanted}"
        _refuse(series, position, first_row, f"{words}: correct it, or set date_format")
    return dates.cast(pl.Int32).fill_null(0).to_numpy().astype(np.float64), missing


def _dates(text: pl.Series, date_format: str, name: str) -> pl.Series:
    if not date_format:
        is_date = text.str.contains(_ISO).fill_null(False)
        day = text.str.slice(0, 10).zip_with(is_date, pl.Series([None], dtype=pl.String))
        return day.str.strptime(pl.Date, "%Y-%m-%d", strict=False)
    try:
        return text.str.strptime(pl.Date, date_format, strict=False)
    except pl.exceptions.PolarsError as error:
        raise DpvdError(
            f"schema: column {quoted(name)}: date_format {date_format!r} is no format of a date,"
            ' such as "%d.%m.%Y"'
        ) from error


def _is_missing(text: pl.Series, tokens: Sequence[str]) -> np.ndarray:
    return (text.is_null() | text.is_in(list(tokens)).fill_null(False)).to_numpy()


def _positions(text: pl.Series, names: Sequence[str]) -> np.ndarray:
    """Return where each cell stands among the names, int64; `UNSEEN` if nowhere."""
    codes = text.replace_strict(
        list(names), list(range(len(names))), default=UNSEEN, return_dtype=pl.Int64
    )
    return codes.fill_null(UNSEEN).to_numpy()


def _boolean_text(name: str, names: Sequence[str]) -> str:
    """Return "true" or "false" for the category that says so, if it is the only one that does."""
    for word, spellings in (("true", TRUE_WORDS), ("false", FALSE_WORDS)):
        alike = [other for other in names if other.lower() in spellings]
        if alike == [name]:
            return word
    return name


def _text(numbers: pl.Series) -> pl.Series:
    return numbers.cast(pl.String)


def _number(token: str) -> float | None:
    try:
        return float(token)
    except ValueError:
        return None


def _number_complaint(cell: str) -> str:
    # The cell itself is not told: errors end up in logs.
    if cell.strip().lower() in ("nan", "na", "n/a", "null", "none", "-", "?", ".", ""):
        return "the cell is no number: if it means that there is none, add it to missing_values"
    if cell.strip().lower().lstrip("+-") in ("inf", "infinity"):
        return "the cell is not finite: correct it, or add it to missing_values"
    if _number(cell.replace(",", ".")) is not None:
        return "the cell is no number: write a point as the decimal sign"
    return "the cell is no number: correct it, or change the kind of the column"


def _refuse(series: pl.Series, position: int, first_row: int, complaint: str) -> NoReturn:
    raise DpvdError(f"row {first_row + position}, column {quoted(series.name)}: {complaint}")
