"""Whose row each is, and which of somebody's rows take part."""

import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpvd.data import chosen_rows, open_table, unit_hashes, unit_numbers
from dpvd.errors import DpvdError, positive_int

__all__ = ["People", "choose_people"]

_COLUMN = "groups"


@dataclass(frozen=True)
class People:
    """The rows that take part, by person.

    Attributes:
        rows: int64, positions of these rows.
        unit_index: int64, whose row each of them is.
        count: how many people there are.
        rows_per_person: the most rows that one has.
    """

    rows: Tensor
    unit_index: Tensor
    count: int
    rows_per_person: int


def choose_people(groups: Any, rows: int, rows_per_person: Any, seed: int | None) -> People:
    """Take at most so many rows of everybody, at random and without looking at values.

    Args:
        groups: whose row each is: numbers or texts, one for each row.
        rows: how many rows there are.
        rows_per_person: the most rows of one person that take part.
        seed: makes the choice repeatable; drawn from the system if None.

    Raises:
        DpvdError: if groups do not fit the rows, or there are fewer than two people.
    """
    if rows_per_person is None:
        raise DpvdError(
            "rows_per_person must be given with groups: how many rows of one person may take part"
            " at most, a number that is chosen without looking at the data"
        )
    most = int(rows_per_person) if isinstance(rows_per_person, np.integer) else rows_per_person
    positive_int(rows_per_person=most)
    names = np.asarray(groups)
    if names.shape != (rows,):
        raise DpvdError(
            f"groups must have one entry for each of the {rows} rows, got shape {names.shape}"
        )
    key = secrets.token_bytes(32) if seed is None else b"dpvd groups" + seed.to_bytes(16, "little")
    parts = []
    first_row = 1
    for frame in open_table({_COLUMN: names}).batches():
        parts.append(unit_hashes(frame.get_column(_COLUMN), (), key, first_row))
        first_row += len(frame)
    hashes = np.concatenate(parts)
    kept = chosen_rows(hashes, most)
    unit_index = unit_numbers(hashes[kept])
    count = int(unit_index[-1]) + 1
    if count < 2:
        raise DpvdError("groups must name two or more people, got one")
    return People(torch.from_numpy(kept), torch.from_numpy(unit_index), count, most)
