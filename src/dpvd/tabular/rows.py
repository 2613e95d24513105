"""Rows that are made when they are asked for, and whose rows are whose.

A table may be larger than the memory: its encoded rows then lie in a file, and nothing here makes a
second copy of all of them.
"""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["DerivedRows", "rows_by_person"]


class DerivedRows:
    """A function of each row of a matrix, computed for the rows that are asked for.

    Args:
        x: [n, d] rows.
        function: makes [..., width] of [..., d], each row by itself.
        width: of what it makes.
    """

    def __init__(self, x: Tensor, function: Callable[[Tensor], Tensor], width: int) -> None:
        self._x = x
        self._function = function
        self.shape = (len(x), width)

    def __len__(self) -> int:
        return len(self._x)

    def dim(self) -> int:
        """2, as of a matrix."""
        return 2

    @torch.no_grad()
    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        return self._function(self._x[rows])


def rows_by_person(
    unit_index: Tensor | None, rows: int, people: int, rows_per_person: int
) -> Tensor:
    """The numbers of each person's rows, so that one person is one example: int64 [P, r].

    Where a person has fewer than r rows, -1 stands for the others.

    Args:
        unit_index: int64 [n], whose row each is; None if every row is a person.
        rows: n.
        people: P.
        rows_per_person: r, at least the number of rows of everybody.

    >>> rows_by_person(torch.tensor([0, 1, 1]), 3, people=2, rows_per_person=2)
    tensor([[ 0, -1],
            [ 1,  2]])
    """
    if unit_index is None:
        return torch.arange(rows)[:, None]
    order = torch.argsort(unit_index, stable=True)
    person = unit_index[order]
    counts = torch.bincount(unit_index, minlength=people)
    first = counts.cumsum(0) - counts
    place = torch.arange(len(order)) - first[person]
    numbers = torch.full((people, rows_per_person), -1)
    numbers[person, place] = order
    return numbers
