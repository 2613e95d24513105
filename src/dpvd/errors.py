"""The one exception type users see, and the checks that raise it.

A message says what was got, what is allowed and what to do. The command line prints it as one line
and exits with code 2; a library user catches ``DpvdError``.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Any, Generic, TypeGuard, TypeVar, cast

__all__ = [
    "Choice",
    "DpvdError",
    "OptionalChoice",
    "choice",
    "exact_fields",
    "in_unit_interval",
    "is_finite_number",
    "non_negative",
    "phrase",
    "phrases",
    "positive",
    "positive_int",
]


_Option = TypeVar("_Option", bound=StrEnum)


class DpvdError(ValueError):
    """Something a caller can put right: a bad argument, bad data, a broken file."""


def is_finite_number(value: object) -> TypeGuard[float]:
    """Whether a value is a finite number.

    >>> [is_finite_number(value) for value in (0.5, None, float("inf"), "0.5", True)]
    [True, False, False, False, False]
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floating-point numbers
        return False


def positive(**named: float) -> None:
    """Raise unless every named value is a finite number above zero.

    >>> positive(clip_norm=-1.0)
    Traceback (most recent call last):
    ...
    dpvd.errors.DpvdError: clip_norm must be a finite number above 0, got -1.0
    """
    for name, value in named.items():
        if not is_finite_number(value) or value <= 0:
            raise DpvdError(f"{name} must be a finite number above 0, got {value!r}")


def non_negative(**named: float) -> None:
    """Raise unless every named value is a finite number of at least zero."""
    for name, value in named.items():
        if not is_finite_number(value) or value < 0:
            raise DpvdError(f"{name} must be a finite number of at least 0, got {value!r}")


def positive_int(**named: int) -> None:
    """Raise unless every named value is an integer of at least one."""
    for name, value in named.items():
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or value < 1:
            raise DpvdError(f"{name} must be an integer of at least 1, got {value!r}")


def in_unit_interval(**named: float) -> None:
    """Raise unless every named value lies strictly between 0 and 1."""
    for name, value in named.items():
        if not is_finite_number(value) or not 0 < value < 1:
            raise DpvdError(f"{name} must lie strictly between 0 and 1, got {value!r}")


def choice(value: str, options: type[_Option], name: str) -> _Option:
    """Return the member of a ``StrEnum`` with this value, or raise naming the allowed ones."""
    try:
        return options(value)
    except ValueError:
        allowed = ", ".join(str(option) for option in options)
        raise DpvdError(f"{name} must be one of {allowed}; got {value!r}") from None


class Choice(Generic[_Option]):
    """A field of a frozen dataclass that takes a member or its name, and always is the member.

    Type checkers then accept ``relation="replace-one"`` in the constructor, and know that what is
    read is a member.

    >>> from dataclasses import dataclass
    >>> class Colour(StrEnum):
    ...     RED = "red"
    ...     BLUE = "blue"
    >>> @dataclass(frozen=True)
    ... class Pen:
    ...     colour: Choice[Colour] = Choice(Colour.RED)
    >>> Pen().colour, Pen("blue").colour
    (<Colour.RED: 'red'>, <Colour.BLUE: 'blue'>)
    >>> Pen("green")
    Traceback (most recent call last):
    ...
    dpvd.errors.DpvdError: colour must be one of red, blue; got 'green'

    Args:
        default: the member that is taken where nothing is given.
        called: how errors name the field; its own name if not given.
        parse: returns the member of a text, if there are more texts than members.
    """

    def __init__(
        self,
        default: _Option,
        called: str | None = None,
        *,
        parse: Callable[[str], _Option] | None = None,
    ) -> None:
        self._default = default
        self._called = called
        self._parse = parse

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object | None, owner: type | None = None) -> _Option:
        if instance is None:  # the dataclass asks for the default
            return self._default
        return cast(_Option, vars(instance)[self._name])

    def __set__(self, instance: object, value: _Option | str) -> None:
        if self._parse is None:
            member = choice(value, type(self._default), self._called or self._name)
        else:
            member = self._parse(value)
        vars(instance)[self._name] = member


class OptionalChoice(Generic[_Option]):
    """A ``Choice`` that may be None, which is its default."""

    def __init__(self, options: type[_Option]) -> None:
        self._options = options

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object | None, owner: type | None = None) -> _Option | None:
        if instance is None:
            return None
        return cast(_Option | None, vars(instance)[self._name])

    def __set__(self, instance: object, value: _Option | str | None) -> None:
        member = None
        if value is not None:
            member = choice(value, self._options, self._name)
        vars(instance)[self._name] = member


def phrase(value: object, name: str) -> str:
    """Return a few words that a statement will print, or raise if they are none.

    >>> phrase(" patient ", "unit")
    'patient'
    """
    if not isinstance(value, str) or not value.strip():
        raise DpvdError(f"{name} must be words, such as 'patient', got {value!r}")
    return value.strip()


def phrases(value: object, name: str) -> tuple[str, ...]:
    """Return entries of a list that a statement will print; one text is one entry.

    >>> phrases("the learning rate", "tuned")
    ('the learning rate',)
    """
    entries = value
    if isinstance(value, str):
        entries = [value]
    if not isinstance(entries, list | tuple):
        raise DpvdError(f"{name} must be a text or a list of texts, got {value!r}")
    return tuple(phrase(entry, f"an entry of {name}") for entry in entries)


def exact_fields(
    values: object, owner: type, what: str, *, optional: Collection[str] = ()
) -> dict[str, Any]:
    """Return a mapping that has exactly the fields of a dataclass, or raise naming the others.

    Args:
        values: what was read, to make an ``owner`` of.
        owner: the dataclass.
        what: how the error calls it ("a recipe").
        optional: fields that may be missing.
    """
    if not isinstance(values, Mapping):
        got = type(values).__name__
        raise DpvdError(f"{what} is a mapping from names to values, got {got}")
    known = {field.name for field in fields(owner)}
    unknown = set(values) - known
    missing = known - set(values) - set(optional)
    if unknown or missing:
        wrong = sorted(unknown | missing)
        raise DpvdError(f"not {what}: fields {wrong} are missing or unknown")
    return dict(values)
