"""Whose rows are whose: every person has one vote, however many rows they have."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from dpvd.errors import DpvdError, positive_int

__all__ = [
    "BLOCK",
    "Rows",
    "bounded_rows",
    "check_people",
    "row_blocks",
    "row_weights",
    "vote_counts",
]

BLOCK = 8192  # rows that are added up at once

# Norms are computed in floating point; aiming this far below 1 keeps the bound true all the same.
_ALMOST_ONE = 1 - 16 * torch.finfo(torch.float64).eps


class Rows(Protocol):
    """A matrix that is read in blocks of rows: a tensor, or something that makes them."""

    @property
    def shape(self) -> Sequence[int]: ...

    def dim(self) -> int: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Tensor: ...


def check_people(people: int, rows: int, unit_index: Tensor | None) -> None:
    """Raise unless every row belongs to one of so many people.

    Args:
        people: their number, which is public.
        rows: rows of the table.
        unit_index: int64 [rows], the person of each row, from 0; None if each row is a person.

    Raises:
        DpvdError: if the shapes do not fit. A person without a row is legal.
    """
    positive_int(people=people)
    if unit_index is None:
        if rows != people:
            raise DpvdError(
                f"the plan is for {people} examples, the table has {rows} rows: give unit_index, "
                "which says whose row is whose, or a plan with as many examples"
            )
        return
    if unit_index.dtype != torch.int64 or unit_index.shape != (rows,):
        raise DpvdError(
            f"unit_index must be an int64 tensor with one entry for each of the {rows} rows, got "
            f"{unit_index.dtype} of shape {list(unit_index.shape)}"
        )
    if rows and not 0 <= int(unit_index.min()) <= int(unit_index.max()) < people:
        raise DpvdError(f"the entries of unit_index must lie between 0 and {people - 1}")


def row_weights(people: int, rows: int, unit_index: Tensor | None) -> Tensor:
    """What each row counts: one over the number of rows of its person. float64 [rows].

    A person's rows are averaged by it. An average of vectors is no longer than the longest of them,
    so a bound on a row is a bound on a person.

    >>> row_weights(2, 3, torch.tensor([0, 1, 1]))
    tensor([1.0000, 0.5000, 0.5000], dtype=torch.float64)
    """
    check_people(people, rows, unit_index)
    if unit_index is None:
        return torch.ones(rows, dtype=torch.float64)
    counts = torch.bincount(unit_index, minlength=people).double()
    return 1 / counts[unit_index]


def bounded_rows(rows: Tensor) -> Tensor:
    """The rows in float64, longer ones than 1 scaled down to 1; what is not finite counts as zero.

    >>> bounded_rows(torch.tensor([[3.0, 4.0], [0.3, 0.4], [float("nan"), 1.0]]))
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000],
            [0.0000, 0.0000]], dtype=torch.float64)
    """
    exact = rows.double()
    norms: Tensor = torch.linalg.vector_norm(exact, dim=1, keepdim=True)
    usable = torch.where(norms.isfinite(), exact, torch.zeros_like(exact))
    # A bounded row is shortened by the last bits as well: no row is treated by its value.
    factors = torch.full_like(norms, _ALMOST_ONE) / norms.clamp_min(1.0)
    bounded: Tensor = usable * factors.nan_to_num(0.0)
    return bounded


def vote_counts(places: Tensor, votes: Tensor, bins: int) -> Tensor:
    """What the rows in each of so many bins count together: float64 [bins].

    Args:
        places: int64 [rows], the bin of each row.
        votes: float64 [rows], what each row counts.
        bins: their number.

    >>> vote_counts(torch.tensor([0, 2, 2]), torch.tensor([1.0, 0.5, 0.5]).double(), 3)
    tensor([1., 0., 1.], dtype=torch.float64)
    """
    counts = torch.zeros(bins, dtype=torch.float64)
    for rows in row_blocks(len(places)):
        counts += torch.zeros_like(counts).index_add_(0, places[rows], votes[rows])
    return counts


def row_blocks(rows: int) -> Iterator[slice]:
    """Rows in blocks: sums of sums lose less to rounding than one long sum."""
    return (slice(start, start + BLOCK) for start in range(0, rows, BLOCK))
