"""What one pass over a table shows of each column; for the draft of a schema and nothing else."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date

import numpy as np
import polars as pl

from dpvd.data.cells import as_text
from dpvd.data.source import TableSource
from dpvd.data.words import FALSE_WORDS, TRUE_WORDS
from dpvd.errors import DpvdError

__all__ = ["Profile", "profile_table"]

_MOST_DISTINCT = 1000  # kept by name
_MOST_HASHES = 200_000  # kept to see whether two cells are alike
_TOKENS = ("?", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "none", "#N/A", "-", ".")
_DATE_FORMATS = ("", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%Y%m%d")
_DECIMAL_COMMA = r"^[-+]?\d+,\d+$"
_ISO = r"^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}.*)?$"


@dataclass
class Profile:
    """One column, as far as it was read."""

    name: str
    rows: int = 0
    missing: int = 0
    first_missing: int = 0
    tokens: set[str] = field(default_factory=set)
    lowest: float = math.inf
    highest: float = -math.inf
    is_numeric: bool = True
    is_whole: bool = True
    is_unreadable: bool = False
    has_decimal_commas: bool = False
    counts_rows: bool = True
    all_different: bool = True
    first_text: str = ""
    first_text_row: int | None = None
    _last: float | None = None
    _saw_number: bool = False
    _distinct: set[str] | None = field(default_factory=set)
    _hashes: set[int] | None = field(default_factory=set)
    _dates: dict[str, tuple[date, date]] = field(default_factory=dict)
    _formats: tuple[str, ...] = _DATE_FORMATS

    def add(self, series: pl.Series) -> None:
        """Take in the next batch of the column."""
        try:
            text = as_text(series)
        except DpvdError:
            self.is_unreadable = True
            self.rows += len(series)
            return
        gone = (text.is_null() | text.is_in(["", *_TOKENS]).fill_null(False)).to_numpy()
        if gone.any() and not self.missing:
            self.first_missing = self.rows + 1 + int(gone.argmax())
        self.missing += int(gone.sum())
        self.tokens |= set(text.filter(text.is_in(list(_TOKENS)).fill_null(False)).unique())
        present = text.filter(pl.Series(~gone))
        positions = self.rows + 1 + np.flatnonzero(~gone)  # numbers of their rows
        self.rows += len(text)
        if len(present) == 0:
            return
        self._add_distinct(present)
        self._add_numbers(present, positions, bool(gone.any()))
        self._add_dates(series, present)

    @property
    def distinct(self) -> list[str] | None:
        """Different cells in order, numbers by size; None if they are too many."""
        if self._distinct is None:
            return None
        return sorted(self._distinct, key=float if self.is_numeric else None)

    @property
    def is_boolean(self) -> bool:
        """Whether there are one or two different cells, each of them a word for yes or no."""
        words = {text.lower() for text in self._distinct or ()}
        return 1 <= len(words) <= 2 and words <= {*TRUE_WORDS, *FALSE_WORDS}

    @property
    def date_format(self) -> str | None:
        """The only format that fits all cells, empty for ISO; None if none or several do."""
        fitting = [form for form in self._formats if form in self._dates]
        return fitting[0] if len(fitting) == 1 or fitting[:1] == [""] else None

    def nice_bounds(self) -> tuple[float, float]:
        """Return round numbers around all values: one leading digit of their span.

        An age from 17 to 83 gives (10, 90).
        """
        span = self.highest - self.lowest
        size = span if span > 0 else max(abs(self.highest), 1.0)
        step = 10.0 ** math.floor(math.log10(size))
        lower = math.floor(self.lowest / step) * step
        upper = math.ceil(self.highest / step) * step
        if lower == upper:
            lower -= step
            upper += step
        # Steps below 1 leave digits that are nobody's: 0.30000000000000004.
        return float(f"{lower:.12g}"), float(f"{upper:.12g}")

    def year_bounds(self) -> tuple[date, date]:
        """Return the first day of the first year and the last day of the last one."""
        assert self.date_format is not None
        first, last = self._dates[self.date_format]
        return date(first.year, 1, 1), date(last.year, 12, 31)

    def _add_distinct(self, present: pl.Series) -> None:
        unique = present.unique()
        if self._distinct is not None:
            self._distinct |= set(unique)
            if len(self._distinct) > _MOST_DISTINCT:
                self._distinct = None
        if self._hashes is not None:
            hashes = set(unique.hash(0))
            self.all_different &= len(unique) == len(present) and not (hashes & self._hashes)
            self._hashes |= hashes
            if not self.all_different or len(self._hashes) > _MOST_HASHES:
                self._hashes = None

    def _add_numbers(self, present: pl.Series, positions: np.ndarray, has_gaps: bool) -> None:
        numbers = present.cast(pl.Float64, strict=False)
        values = numbers.fill_null(np.nan).to_numpy()
        finite = np.isfinite(values)
        self._saw_number |= bool(finite.any())
        if not finite.all():
            commas = bool(present.filter(pl.Series(~finite)).str.contains(_DECIMAL_COMMA).all())
            self.has_decimal_commas = commas and (self.is_numeric or self.has_decimal_commas)
            self.is_numeric = False
            if self.first_text_row is None:
                self.first_text = present[int((~finite).argmax())]
                self.first_text_row = int(positions[(~finite).argmax()])
        if not self._saw_number:
            self.first_text_row = None  # texts only: nothing is mixed
        if not self.is_numeric:
            self.is_whole = False
            self.counts_rows = False
            return
        self.lowest = min(self.lowest, float(values.min()))
        self.highest = max(self.highest, float(values.max()))
        self.is_whole &= bool((values == np.floor(values)).all())
        before = values if self._last is None else np.append(self._last, values)
        self.counts_rows &= not has_gaps and bool((np.diff(before) == 1).all())
        self._last = float(values[-1])

    def _add_dates(self, series: pl.Series, present: pl.Series) -> None:
        if series.dtype.is_numeric():
            self._formats = ()
        fitting = []
        for form in self._formats:
            days = _days(present, form)
            if days is not None:
                first, last = self._dates.get(form, days)
                self._dates[form] = (min(first, days[0]), max(last, days[1]))
                fitting.append(form)
        self._formats = tuple(fitting)


def _days(present: pl.Series, form: str) -> tuple[date, date] | None:
    """Return the first and last date if all cells are dates of this format."""
    if not form:
        if not present.str.contains(_ISO).all():
            return None
        present = present.str.slice(0, 10)
    parsed = present.str.strptime(pl.Date, form or "%Y-%m-%d", strict=False)
    first = parsed.min()
    last = parsed.max()
    if parsed.null_count() or not isinstance(first, date) or not isinstance(last, date):
        return None
    # Eight digits are a number unless they make sense as a date of our times.
    is_plausible = first.year >= 1850 and last.year <= 2150
    return (first, last) if is_plausible or form != "%Y%m%d" else None


def profile_table(source: TableSource, columns: Sequence[str]) -> dict[str, Profile]:
    """Read a table once and return what was seen of these columns, by their names."""
    profiles = {name: Profile(name) for name in columns}
    for frame in source.read(columns):
        for name, profile in profiles.items():
            profile.add(frame.get_column(name))
    return profiles
