"""To whom rows belong, and which of them take part.

A unit (a person, say) is known by a keyed hash of its identifier; identifiers themselves are not
kept. Which part a unit goes into and which of its rows take part follows from that hash alone, so
that nobody's rows depend on who else is in the table.
"""

import hashlib

import numpy as np
import polars as pl

from dpvd.data.cells import as_text
from dpvd.data.words import quoted
from dpvd.errors import DpvdError

__all__ = ["chosen_rows", "share_of", "unit_hashes", "unit_numbers"]

_STEP = np.uint64(0x9E3779B97F4A7C15)  # of SplitMix64 (Steele, Lea, Flood 2014), as is _mixed


def unit_hashes(
    series: pl.Series, missing: tuple[str, ...], key: bytes, first_row: int
) -> np.ndarray:
    """Return a 64-bit hash of each row's identifier.

    Edge cases:
        Two identifiers share a hash with a probability of 2⁻⁶⁴. They then count as one unit, which
        takes rows from them and nothing from anybody's protection.

    Args:
        series: identifiers of one batch.
        missing: texts that count as missing.
        key: 16 bytes or more, at most 64.
        first_row: number of the batch's first row in the table.

    Raises:
        DpvdError: with the row, if an identifier is missing.
    """
    text = as_text(series)
    gone = (text.is_null() | text.is_in(["", *missing]).fill_null(False)).to_numpy()
    if gone.any():
        raise DpvdError(
            f"row {first_row + int(gone.argmax())}, column {quoted(series.name)}: the identifier is"
            " missing: fill it in, or remove the row"
        )
    distinct = text.unique()
    hashes = [
        int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8, key=key).digest(), "little")
        for name in distinct
    ]
    replaced = text.replace_strict(distinct, pl.Series(hashes, dtype=pl.UInt64))
    return replaced.to_numpy().astype(np.uint64)


def share_of(hashes: np.ndarray) -> np.ndarray:
    """Return a number in [0, 1) for each hash, spread evenly; equal hashes have equal ones."""
    words = _mixed(hashes + _STEP)
    high_bits = words >> np.uint64(11)  # 53 of them: what a double holds
    return high_bits.astype(np.float64) * 2.0**-53


def chosen_rows(hashes: np.ndarray, most: int | None) -> np.ndarray:
    """Return the rows that take part, grouped by unit: at most so many of each, at random.

    The j-th row of a unit draws a number from the unit's hash and j; the rows with the smallest
    numbers stay. No value is looked at, and no other unit's rows.

    Args:
        hashes: of each row's unit, uint64, shape (rows,).
        most: rows of one unit; None for all of them.

    Returns:
        Positions, int64; rows of one unit stand together, in the order of the table.
    """
    order = np.argsort(hashes, kind="stable")
    if most is None:
        return order
    grouped = hashes[order]
    place = _place_within(grouped)
    numbers = place.astype(np.uint64) + np.uint64(2)
    draws = _mixed(grouped + numbers * _STEP)
    by_draw = np.lexsort((draws, grouped))
    rank = _place_within(grouped[by_draw])
    kept = np.sort(by_draw[rank < most])
    return order[kept]


def unit_numbers(grouped: np.ndarray) -> np.ndarray:
    """Return 0, 0, 1, 2, 2, ... for hashes of which equal ones stand together; int64."""
    if len(grouped) == 0:
        return np.zeros(0, dtype=np.int64)
    begins_another = grouped[1:] != grouped[:-1]
    numbers = np.append(0, np.cumsum(begins_another))
    return numbers.astype(np.int64)


def _place_within(grouped: np.ndarray) -> np.ndarray:
    """Return 0, 1, 2, ... within each run of equal hashes."""
    rows = len(grouped)
    differs = grouped[1:] != grouped[:-1]
    begins = np.append(True, differs)[:rows]
    starts = np.flatnonzero(begins)
    boundaries = np.append(starts, rows)
    lengths = np.diff(boundaries)
    return np.arange(rows) - np.repeat(starts, lengths)


def _mixed(words: np.ndarray) -> np.ndarray:
    """The output function of SplitMix64: 64 bits to 64 bits, one to one."""
    mixed: np.ndarray = words ^ (words >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
