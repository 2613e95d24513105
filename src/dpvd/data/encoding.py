"""From named columns to a matrix of features, by the schema alone.

No statistic of the data is used: what happens to a row depends on that row and on the schema. The
same code serves training and prediction.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import Any, cast

import numpy as np
import polars as pl

from dpvd.data.cells import UNSEEN, parse_booleans, parse_codes, parse_days, parse_numbers
from dpvd.data.column import Column, Kind, Missing, Unseen
from dpvd.data.schema import Schema
from dpvd.data.schema_checks import check_keys, check_option
from dpvd.data.words import quoted
from dpvd.errors import DpvdError

__all__ = ["Encoder", "Spacing"]

_LOG_RATIO = 1000.0  # of the widest to the narrowest position: a constant, chosen without data
_MOST_BINS = 1000
_WIDE = 100.0  # bounds so far apart, counted from 1, are read on a scale of logarithms
_EPOCH = date(1970, 1, 1)


class Spacing(StrEnum):
    """Where the bins of a numeric column lie between its bounds."""

    EVEN = "even"
    """All of the same width."""
    LOG = "log"
    """Each wider than the one before it, for amounts of which most are small."""


@dataclass(frozen=True)
class Encoder:
    """Turns batches of columns into features and targets.

    Features, in this order: a constant 1; then for each column of the schema

    - numeric: the value, moved into the bounds and scaled to [-1, 1]; with bins, a 1 in the one it
      falls into and 0 in the others; with knots, hat functions
    - categorical: a 1 for its category and 0 for the others
    - boolean: 1 or -1
    - date: scaled to [-1, 1] as a number of days is

    and, where the schema says so, a feature for missing and one for undeclared categories. A
    missing number is 0, the middle of its bounds, and falls into no bin.

    With ``knots`` the features are those that `dpvd.tabular` learns from best. There is no
    constant, and 1/k is taken off the k features of a categorical column. Numbers with bounds that
    are ``_WIDE`` apart are scaled by log(1 + value). A number, or a date, has a hat function for
    each of the knots, which lie evenly between the bounds: 1 at its knot, 0 at its neighbours and
    beyond, linear in between. Hats add up to 1, and 1/knots is taken off each. A linear model bends
    at the knots.

    Guarantees:
        Every feature lies in [-1, 1], and the L2 norm of a row is at most `largest_norm`, whatever
        the row holds.

    Args:
        schema: complete: bounds and categories that were to be estimated must have been.
        bins: how many bins a numeric column has; its ``edges`` in the schema, if any, are used
            instead.
        spacing: where these bins lie.
        knots: how many knots a number without ``edges`` has, 0 for none; see above. None leaves the
            features as they are without it.

    Raises:
        DpvdError: for a schema that is not complete, and a number of bins or knots that is not
            allowed.
    """

    schema: Schema
    bins: int = 0
    spacing: Spacing = Spacing.EVEN
    knots: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "spacing", check_option(self.spacing, Spacing, "spacing"))
        if isinstance(self.bins, bool) or not isinstance(self.bins, int) or self.bins < 0:
            raise DpvdError(f"bins must be an integer of at least 0, got {self.bins!r}")
        if self.bins == 1 or self.bins > _MOST_BINS:
            raise DpvdError(f"bins must be 0, or from 2 to {_MOST_BINS}; got {self.bins}")
        self._check_knots()
        open_columns = self.schema.to_estimate()
        if open_columns:
            raise DpvdError(
                f"the {open_columns[0].fact} are to be estimated privately and have not been: have"
                " them estimated first, or write them into the schema"
            )

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of the features, in order."""
        names = ["constant"] if self.has_constant else []
        for column in self.schema.used:
            names += self._names(column)
        return tuple(names)

    @property
    def has_constant(self) -> bool:
        """Whether the first feature is a constant 1."""
        return self.knots is None

    @cached_property
    def groups(self) -> np.ndarray:
        """Which column of the schema each feature comes from, counted from 0; int64, (`width`,).

        A constant is a group of its own, the last.
        """
        widths = [len(self._names(column)) for column in self.schema.used]
        groups = np.repeat(np.arange(len(widths)), widths)
        return np.append([len(widths)], groups) if self.has_constant else groups

    @cached_property
    def is_hat(self) -> np.ndarray:
        """Which features are hat functions of a number that is a feature, too; bool, (`width`,)."""
        hats = np.zeros(self.width, dtype=bool)
        start = int(self.has_constant)
        for column in self.schema.used:
            hats[start + 1 : start + 1 + self._hats(column)] = True  # after the number itself
            start += len(self._names(column))
        return hats

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.features)

    @property
    def largest_norm(self) -> float:
        """The largest L2 norm that a row can have: √(columns + columns with bins or hats), and 1
        more under the root for a constant.
        """
        used = self.schema.used
        binned = sum(len(self._edges(column)) > 0 or self._hats(column) > 0 for column in used)
        return float(np.sqrt(self.has_constant + len(used) + binned))

    def encode(self, frame: pl.DataFrame, first_row: int = 1) -> np.ndarray:
        """Return the features of a batch.

        Args:
            frame: has the columns of the schema, in any order and among others.
            first_row: number of the batch's first row in the table, for messages.

        Returns:
            float32, shape (rows, `width`).

        Raises:
            DpvdError: with row and column, for a cell that the schema does not allow.
        """
        features = np.zeros((len(frame), self.width), dtype=np.float32)
        start = 0
        if self.has_constant:
            features[:, 0] = 1.0
            start = 1
        for column in self.schema.used:
            part = features[:, start : start + len(self._names(column))]
            self._encode_column(column, _cells(frame, column.name), part, first_row)
            start += part.shape[1]
        return features

    def encode_target(self, frame: pl.DataFrame, first_row: int = 1) -> np.ndarray:
        """Return the targets of a batch.

        Returns:
            Shape (rows,): the position of the class, int64; or the number, moved into its bounds
            and scaled to [-1, 1], float32.

        Raises:
            DpvdError: with row and column, for a target that is missing or not declared.
        """
        target = self.schema.target
        series = _cells(frame, target.name)
        tokens = ("", *self.schema.missing_values)
        if target.bounds is not None:
            values, missing = parse_numbers(series, tokens, first_row)
            _refuse_missing(series, missing, first_row, "the target must be known: remove the row")
            return _scaled(values, target.bounds).astype(np.float32)
        codes, missing = parse_codes(series, target.classes, tokens)
        _refuse_missing(series, missing, first_row, "the target must be known: remove the row")
        _refuse_unseen(series, codes == UNSEEN, first_row, "classes")
        return codes

    def decode_target(self, scaled: np.ndarray) -> np.ndarray:
        """Return numbers between -1 and 1 in the unit of a regression's target, float64."""
        if self.schema.target.bounds is None:
            raise DpvdError("the target has classes, not a scale: take their names from the schema")
        lower, upper = self.schema.target.bounds
        return lower + (np.asarray(scaled, dtype=np.float64) + 1) * (upper - lower) / 2

    def to_dict(self) -> dict[str, Any]:
        """Return schema and settings fit for JSON; `from_dict` is the way back."""
        return {
            "schema": self.schema.to_dict(),
            "bins": self.bins,
            "spacing": str(self.spacing),
            "knots": self.knots,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Encoder":
        """Return the encoder that `to_dict` described."""
        entries: Any = check_keys(values, ("schema", "bins", "spacing", "knots"), "the encoder")
        if "schema" not in entries:
            raise DpvdError("the encoder has no schema")
        return cls(**{**entries, "schema": Schema.from_dict(entries["schema"])})

    def _names(self, column: Column) -> list[str]:
        if column.kind is Kind.CATEGORICAL:
            names = [f"{column.name} = {category}" for category in column.categories]
            if column.unseen is Unseen.OTHER:
                names.append(f"{column.name} is another")
        else:
            edges = self._edges(column)
            names = [column.name]
            names += [f"{column.name} in [{left:g}, {right:g})" for left, right in pairwise(edges)]
            names += [f"{column.name} near knot {knot + 1}" for knot in range(self._hats(column))]
        if column.missing is not Missing.REFUSE:
            names.append(f"{column.name} is missing")
        return names

    def _check_knots(self) -> None:
        if self.knots is None:
            return
        if isinstance(self.knots, bool) or not isinstance(self.knots, int) or self.knots < 0:
            raise DpvdError(f"knots must be an integer of at least 0, got {self.knots!r}")
        if self.knots == 1 or self.knots > _MOST_BINS:
            raise DpvdError(f"knots must be 0, or from 2 to {_MOST_BINS}; got {self.knots}")
        if self.bins:
            raise DpvdError("give bins or knots, not both")

    def _hats(self, column: Column) -> int:
        """How many hat functions a column has."""
        is_number = column.kind in (Kind.NUMERIC, Kind.DATE)
        return (self.knots or 0) if is_number and not column.edges else 0

    def _edges(self, column: Column) -> tuple[float, ...]:
        """Return where bins begin and end, the bounds included; nothing without bins."""
        if column.kind is not Kind.NUMERIC or not (column.edges or self.bins):
            return ()
        lower, upper = cast(tuple[float, float], column.bounds)
        if column.edges:
            return (lower, *column.edges, upper)
        share = np.arange(1, self.bins) / self.bins
        if self.spacing is Spacing.LOG:
            share = (_LOG_RATIO**share - 1) / (_LOG_RATIO - 1)
        return (lower, *(lower + (upper - lower) * share).tolist(), upper)

    def _encode_column(
        self, column: Column, series: pl.Series, part: np.ndarray, first_row: int
    ) -> None:
        """Write the features of one column into ``part``, zeros of shape (rows, its features)."""
        tokens = self.schema.missing_tokens(column)
        if column.kind is Kind.CATEGORICAL:
            codes, missing = parse_codes(series, column.categories, tokens)
            unseen = (codes == UNSEEN) & ~missing
            if column.unseen is Unseen.REFUSE:
                _refuse_unseen(series, unseen, first_row, "categories")
            codes = np.where(unseen, len(column.categories), codes)
            known = np.flatnonzero(~missing)
            part[known, codes[known]] = 1.0
            if self.knots is not None:
                present = part[:, : part.shape[1] - (column.missing is not Missing.REFUSE)]
                present[known] -= 1 / present.shape[1]
        elif column.kind is Kind.BOOLEAN:
            part[:, 0], missing = parse_booleans(series, tokens, first_row)
        else:
            missing = self._encode_scaled(column, series, part, first_row)
        if column.missing is Missing.REFUSE:
            rule = "category" if column.kind is Kind.CATEGORICAL else "indicator"
            _refuse_missing(
                series, missing, first_row, f'fill it in, or set missing = "{rule}" in the schema'
            )
        else:
            part[missing, -1] = 1.0

    def _encode_scaled(
        self, column: Column, series: pl.Series, part: np.ndarray, first_row: int
    ) -> np.ndarray:
        """Write numbers or dates and their bins; return which are missing."""
        tokens = self.schema.missing_tokens(column)
        if column.kind is Kind.DATE:
            values, missing = parse_days(series, column.date_format, tokens, first_row)
            first, last = cast(tuple[date, date], column.bounds)
            bounds = (float((first - _EPOCH).days), float((last - _EPOCH).days))
        else:
            values, missing = parse_numbers(series, tokens, first_row)
            bounds = cast(tuple[float, float], column.bounds)
        known = np.flatnonzero(~missing)
        if self.knots is None:
            part[known, 0] = _scaled(values[known], bounds)
        else:
            part[known, 0] = _scaled_by_width(values[known], bounds, column.kind)
            hats = self._hats(column)
            if hats:
                part[known, 1 : 1 + hats] = _hat_functions(part[known, 0], hats)
        edges = self._edges(column)
        if edges:
            # Bin j holds edges[j] ≤ value < edges[j + 1]; the first and last hold what is beyond.
            bins = np.searchsorted(edges[1:-1], values[known], side="right")
            part[known, 1 + bins] = 1.0
        return missing


def _scaled(values: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    lower, upper = bounds
    share: np.ndarray = (np.clip(values, lower, upper) - lower) / (upper - lower)
    scaled: np.ndarray = 2 * share - 1
    return scaled


def _scaled_by_width(values: np.ndarray, bounds: tuple[float, float], kind: Kind) -> np.ndarray:
    """Return the values within [-1, 1]: by their logarithms if the bounds are far apart."""
    lower, upper = bounds
    is_wide = kind is Kind.NUMERIC and lower >= 0 and upper / max(lower, 1.0) >= _WIDE
    if not is_wide:
        return _scaled(values, bounds)
    inside = np.clip(values, lower, upper)
    return _scaled(np.log1p(inside), (float(np.log1p(lower)), float(np.log1p(upper))))


def _hat_functions(scaled: np.ndarray, knots: int) -> np.ndarray:
    """Return the hat functions of numbers within [-1, 1], less their mean: (rows, knots)."""
    place = (scaled + 1) / 2 * (knots - 1)
    distance = np.abs(place[:, None] - np.arange(knots))
    hats: np.ndarray = np.maximum(0.0, 1 - distance) - 1 / knots
    return hats


def _cells(frame: pl.DataFrame, name: str) -> pl.Series:
    if name not in frame.columns:
        raise DpvdError(f"the table has no column {quoted(name)}")
    return frame.get_column(name)


def _refuse_missing(series: pl.Series, missing: np.ndarray, first_row: int, remedy: str) -> None:
    if missing.any():
        row = first_row + int(missing.argmax())
        raise DpvdError(f"row {row}, column {quoted(series.name)}: the cell is empty: {remedy}")


def _refuse_unseen(series: pl.Series, unseen: np.ndarray, first_row: int, entry: str) -> None:
    if unseen.any():
        position = int(unseen.argmax())
        remedy = "" if entry == "classes" else ', or set unseen = "other"'
        raise DpvdError(
            f"row {first_row + position}, column {quoted(series.name)}:"
            f" the cell is not one of the declared {entry}: correct it, or"
            f" add it to the schema{remedy}"
        )
