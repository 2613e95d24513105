"""Noisy sums of rows, of their products with each other, and of their products with targets."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpvd.errors import DpvdError, non_negative
from dpvd.plan import PrivacyPlan
from dpvd.privacy import Relation
from dpvd.statistics.people import Rows, bounded_rows, row_blocks, row_weights
from dpvd.statistics.release import Charge, release_total

__all__ = ["Mean", "MomentWeights", "Moments", "release_mean", "release_moments"]


@dataclass(frozen=True)
class Mean:
    """The noisy mean of everybody's rows.

    Attributes:
        mean: float64 [d].
        std: standard deviation of the noise on each entry.
    """

    mean: Tensor
    std: float


@dataclass(frozen=True)
class Moments:
    """Noisy means over people of x xᵀ, x tᵀ and ‖t‖².

    Attributes:
        second: mean of x xᵀ, float64 [d, d], symmetric.
        second_std: standard deviation of the noise on its diagonal; elsewhere it is 1/√2 of that.
        cross: mean of x tᵀ, float64 [d, k]; None if it was not asked for.
        cross_std: standard deviation of the noise on each of its entries.
        square: mean of ‖t‖²; None if it was not asked for.
        square_std: standard deviation of its noise.
    """

    second: Tensor
    second_std: float
    cross: Tensor | None = None
    cross_std: float = 0.0
    square: float | None = None
    square_std: float = 0.0


@dataclass(frozen=True)
class MomentWeights:
    """What the parts of one release of moments are multiplied by before the noise comes on.

    One person with rows of length at most 1 and targets of length at most 1 adds

        v = (⟦x xᵀ⟧, w x tᵀ, u ‖t‖²)    averaged over their rows,

    where ⟦S⟧ is the upper triangle of S with √2 on everything off the diagonal. Every entry off the
    diagonal stands for two of S, so the length of ⟦S⟧ is the Frobenius norm of S, and ‖x xᵀ‖ =
    ‖x‖². Therefore

        ‖v‖² ≤ 1 + w² + u²                                   adding or removing one person.

    For two people with rows x, y, targets s, t, c = xᵀy, and lengths at most 1,

        ‖x xᵀ - y yᵀ‖² = ‖x‖⁴ + ‖y‖⁴ - 2c²
        ‖x sᵀ - y tᵀ‖² = ‖x‖²‖s‖² + ‖y‖²‖t‖² - 2c sᵀt ≤ ‖x‖² + ‖y‖² + 2|c|

    add up, the second w² times, to at most 2 + 2w² + 2w²|c| - 2c², which is largest at |c| = w²/2:

        ‖v - v'‖² ≤ min( (w² + 2)² / 2 + u²,  4 (1 + w² + u²) )      replacing one person;

    the second bound is the triangle inequality, better for w² above 4.8. Averages over rows are
    convex combinations, and the length of a difference is convex, so both hold for people with
    any number of rows.

    Args:
        cross: w, of the products with the target; 0 leaves them out.
        square: u, of the squares of the target; 0 leaves them out.

    >>> MomentWeights(1.0).reach
    1.4142135623730951
    """

    cross: float = 1.0
    square: float = 0.0

    def __post_init__(self) -> None:
        non_negative(cross=self.cross, square=self.square)

    @classmethod
    def from_shares(cls, second: float, cross: float, square: float = 0.0) -> "MomentWeights":
        """Weights for which the parts have the noise that shares of 1/z² would give them."""
        return cls(math.sqrt(cross / second), math.sqrt(square / second))

    @property
    def reach(self) -> float:
        """The length of the longest vector that one person can add."""
        return math.sqrt(1 + self.cross**2 + self.square**2)

    def sensitivity(self, relation: Relation) -> float:
        """How far one person can move the sum: see above."""
        if relation is Relation.ADD_OR_REMOVE:
            return self.reach
        opposite = (self.cross**2 + 2) ** 2 / 2 + self.square**2
        return min(math.sqrt(opposite), 2 * self.reach)


def release_mean(
    x: Rows,
    plan: PrivacyPlan,
    *,
    unit_index: Tensor | None = None,
    purpose: str = "mean",
    charge: Charge,
) -> Mean:
    """The mean of everybody's rows, with noise; see `release_moments` for what it guarantees.

    One person adds a vector of length at most 1, and exchanging them moves the sum by at most 2.
    """
    weights = row_weights(plan.examples, len(x), unit_index)
    total = torch.zeros(x.shape[1], dtype=torch.float64)
    for rows in row_blocks(len(x)):
        total += weights[rows] @ bounded_rows(x[rows])
    sensitivity = 1.0 if plan.relation is Relation.ADD_OR_REMOVE else 2.0
    std = release_total(total, plan, sensitivity=sensitivity, purpose=purpose, charge=charge)
    return Mean(total / plan.examples, std / plan.examples)


def release_moments(
    x: Rows,
    t: Tensor,
    plan: PrivacyPlan,
    *,
    weights: MomentWeights,
    unit_index: Tensor | None = None,
    purpose: str = "moments",
    charge: Charge,
) -> Moments:
    """Means of x xᵀ, x tᵀ and perhaps ‖t‖² over all people, in one release.

    Guarantees:
        Rows and targets longer than 1 are scaled down to 1, those that are not finite count as
        zero, and the rows of one person are averaged, here and not by the caller. So one person
        moves the sums by no more than ``weights.sensitivity``, whatever their rows and their
        number. Sums are divided by the plan's number of examples, never by one that was counted.

    Args:
        x: [n, d] rows.
        t: [n, k] targets.
        plan: of this release, from `release_plan`; its examples are the people.
        weights: how the noise is divided among the parts.
        unit_index: int64 [n], whose row each is; None if every row is a person.
        purpose: names the stream of random bits; different for each release of a run.
        charge: pays for the plan before anything is released.

    Raises:
        DpvdError: if shapes or plan do not fit; nothing is charged then.
    """
    if x.dim() != 2 or t.dim() != 2 or len(x) != len(t):
        raise DpvdError(
            "rows and targets must be matrices with as many rows as each other, got shapes "
            f"{list(x.shape)} and {list(t.shape)}"
        )
    total = _moment_sums(x, t, row_weights(plan.examples, len(x), unit_index), weights)
    sensitivity = weights.sensitivity(plan.relation)
    std = release_total(total, plan, sensitivity=sensitivity, purpose=purpose, charge=charge)
    return _unpack(total / plan.examples, std / plan.examples, x.shape[1], t.shape[1], weights)


def _moment_sums(x: Rows, t: Tensor, votes: Tensor, weights: MomentWeights) -> Tensor:
    """Σ v as one vector: upper triangle, products with the target, squares."""
    second = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64)
    cross = torch.zeros(x.shape[1], t.shape[1], dtype=torch.float64)
    square = torch.zeros(1, dtype=torch.float64)
    for rows in row_blocks(len(x)):
        part = bounded_rows(x[rows])
        targets = bounded_rows(t[rows])
        weighted = votes[rows, None] * part
        second += weighted.T @ part
        cross += weighted.T @ targets
        square += votes[rows] @ targets.square().sum(1)
    upper = second * _root_two_off_diagonal(x.shape[1])
    row, column = torch.triu_indices(x.shape[1], x.shape[1])
    parts = [upper[row, column]]
    if weights.cross:
        parts.append(weights.cross * cross.flatten())
    if weights.square:
        parts.append(weights.square * square)
    return torch.cat(parts)


def _unpack(
    noisy: Tensor, std: float, features: int, targets: int, weights: MomentWeights
) -> Moments:
    triangle = features * (features + 1) // 2
    row, column = torch.triu_indices(features, features)
    second = torch.zeros(features, features, dtype=torch.float64)
    second[row, column] = noisy[:triangle]
    second /= _root_two_off_diagonal(features)
    second = second + second.T - second.diagonal().diag()
    found = Moments(second, std)
    if weights.cross:
        products = noisy[triangle : triangle + features * targets].view(features, targets)
        found = replace(found, cross=products / weights.cross, cross_std=std / weights.cross)
    if weights.square:
        square = noisy[-1].item() / weights.square
        found = replace(found, square=square, square_std=std / weights.square)
    return found


def _root_two_off_diagonal(size: int) -> Tensor:
    factors = torch.full((size, size), math.sqrt(2), dtype=torch.float64)
    return factors.fill_diagonal_(1.0)
