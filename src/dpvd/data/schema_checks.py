"""Checks of single entries of a schema; each message says where, what was got, what to write."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import date, datetime
from enum import StrEnum
from itertools import pairwise
from typing import Any, TypeVar

from dpvd.data.words import canonical_text, shortened
from dpvd.errors import DpvdError

__all__ = [
    "changed_entries",
    "check_date_bounds",
    "check_edges",
    "check_keys",
    "check_name",
    "check_number_bounds",
    "check_option",
    "check_texts",
    "plain",
    "store",
]

_Option = TypeVar("_Option", bound=StrEnum)


def check_name(value: object, where: str) -> str:
    """Return the name of a column, or raise."""
    if not isinstance(value, str) or not value.strip():
        raise DpvdError(f"{where} must be the name of a column, got {value!r}")
    return value.strip()


def check_option(value: object, options: type[_Option], where: str) -> _Option:
    """Return the member of ``options`` with this value, or raise naming the allowed ones."""
    try:
        return options(str(value))
    except ValueError:
        allowed = ", ".join(f'"{option}"' for option in options)
        got = "nothing" if value is None else repr(value)
        raise DpvdError(f"{where} must be one of {allowed}; got {got}") from None


def check_keys(values: object, allowed: Iterable[str], where: str) -> Mapping[str, object]:
    """Return a table of entries, or raise if it is none or has an entry that nobody knows."""
    if not isinstance(values, Mapping):
        raise DpvdError(f"{where} must be a table of entries, got {values!r}")
    unknown = [str(key) for key in values if key not in set(allowed)]
    if unknown:
        raise DpvdError(
            f"{where} has an unknown entry {shortened(unknown[0])!r}; known are"
            f" {', '.join(allowed)}"
        )
    return values


def check_texts(values: object, where: str) -> tuple[str, ...]:
    """Return different, non-empty texts; numbers and booleans get their canonical text."""
    if not isinstance(values, list | tuple):
        raise DpvdError(f'{where} must be a list such as ["a", "b"], got {values!r}')
    for value in values:
        if not isinstance(value, str | int | float | bool) or not canonical_text(value):
            raise DpvdError(f"{where} must be texts that are not empty, got {value!r}")
    texts = tuple(canonical_text(value) for value in values)
    twice = [text for position, text in enumerate(texts) if text in texts[:position]]
    if twice:
        raise DpvdError(f"{where} has {shortened(twice[0])!r} twice: leave one out")
    return texts


def check_number_bounds(value: object, where: str) -> tuple[float, float]:
    """Return a pair of finite numbers, the lower first."""
    pair = list(value) if isinstance(value, list | tuple) else []
    if len(pair) != 2 or not all(_is_finite(number) for number in pair):
        raise DpvdError(
            f"{where} must be two finite numbers such as bounds = [0, 120], got {value!r}"
        )
    lower, upper = (float(number) for number in pair)
    if not lower < upper or not math.isfinite(upper - lower):
        raise DpvdError(f"{where} must have the lower number first, got {value!r}")
    return lower, upper


def check_date_bounds(value: object, where: str) -> tuple[date, date]:
    """Return a pair of dates, the earlier first; texts must be written as 2020-12-31."""
    pair = list(value) if isinstance(value, list | tuple) else []
    dates = [_as_date(entry) for entry in pair]
    if len(dates) != 2 or dates[0] is None or dates[1] is None:
        raise DpvdError(
            f"{where} must be two dates such as bounds = [2000-01-01, 2020-12-31], got {value!r}"
        )
    if not dates[0] < dates[1]:
        raise DpvdError(f"{where} must have the earlier date first, got {value!r}")
    return dates[0], dates[1]


def check_edges(value: object, bounds: tuple[float, float] | None, where: str) -> tuple[float, ...]:
    """Return increasing numbers strictly between the bounds."""
    if not isinstance(value, list | tuple) or not all(_is_finite(edge) for edge in value):
        raise DpvdError(f"{where} must be a list of finite numbers, got {value!r}")
    edges = tuple(float(edge) for edge in value)
    within = edges if bounds is None else (bounds[0], *edges, bounds[1])
    if any(left >= right for left, right in pairwise(within)):
        raise DpvdError(f"{where} must increase and lie strictly between the bounds, got {value!r}")
    return edges


def store(declared: Any, **values: object) -> None:
    """Write checked values into a frozen object while it is made."""
    for name, value in values.items():
        object.__setattr__(declared, name, value)


def changed_entries(declared: Any) -> dict[str, Any]:
    """Return the entries that are not at their default; an empty list counts as none."""
    found = {entry.name: getattr(declared, entry.name) for entry in fields(declared)}
    defaults = {entry.name: entry.default for entry in fields(declared)}
    return {
        name: value
        for name, value in found.items()
        if value != defaults[name] and value != [] and value is not None
    }


def plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, StrEnum) else value


def _is_finite(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        return is_number and math.isfinite(float(value))  # type: ignore[arg-type]
    except OverflowError:
        return False


def _as_date(value: object) -> date | None:
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    try:
        return date.fromisoformat(str(value))
    except ValueError:
        return None
