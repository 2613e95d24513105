"""Rows side by side with their person's other rows, so that one person is one example."""

import torch
from torch import Tensor

__all__ = ["by_person"]


def by_person(
    x: Tensor, targets: Tensor, unit_index: Tensor | None, people: int, rows_per_person: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, targets and votes by person, filled up with zeros.

    Args:
        x: [n, d].
        targets: [n, k].
        unit_index: int64 [n], whose row each is; None if every row is a person.
        people: P.
        rows_per_person: r, at least the number of rows of everybody.

    Returns:
        [P, r, d], [P, r, k] and [P, r]: what a row counts, one over the number of its person's
        rows, and 0 where there is no row.
    """
    if unit_index is None:
        return x[:, None], targets[:, None], torch.ones(len(x), 1)
    order = torch.argsort(unit_index, stable=True)
    person = unit_index[order]
    counts = torch.bincount(unit_index, minlength=people)
    first = counts.cumsum(0) - counts
    place = torch.arange(len(order)) - first[person]
    rows = x.new_zeros(people, rows_per_person, x.shape[1])
    values = targets.new_zeros(people, rows_per_person, targets.shape[1])
    votes = torch.zeros(people, rows_per_person)
    rows[person, place] = x[order]
    values[person, place] = targets[order]
    votes[person, place] = 1.0 / counts[person].float()
    return rows, values, votes
