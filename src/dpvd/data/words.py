"""Cells as text: one spelling for every value, and the words that stand for yes and no."""

import math
from datetime import date, datetime

__all__ = ["DELIMITERS", "FALSE_WORDS", "TRUE_WORDS", "canonical_text", "quoted", "shortened"]

TRUE_WORDS = ("true", "yes", "1", "t", "y")
"""Compared without regard to case; a boolean column knows these and the next."""

FALSE_WORDS = ("false", "no", "0", "f", "n")

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
"""What may stand between the cells of a CSV file, with its name."""

_LONGEST_SHOWN = 40


def canonical_text(value: object) -> str:
    """Return the text under which a value is compared with categories, classes and identifiers.

    A whole number is written without a decimal point, so that 1, 1.0 and "1" are the same.

    >>> [canonical_text(value) for value in (" a ", 1, 1.0, 2.5, True, date(2020, 1, 31))]
    ['a', '1', '1', '2.5', 'true', '2020-01-31']
    """
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return str(int(value))
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value)


def quoted(name: str) -> str:
    """Return a name as messages show it, on one line and not too long."""
    return '"' + shortened(name) + '"'


def shortened(text: str) -> str:
    """Return the text on one line, cut off after 40 characters.

    >>> shortened("a\\nb")
    'a b'
    """
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_SHOWN else line[: _LONGEST_SHOWN - 3] + "..."
