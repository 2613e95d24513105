"""How many people have a score below each point of a grid, with little noise at every point."""

import math
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from dpvd.errors import DpvdError, positive_int
from dpvd.plan import PrivacyPlan
from dpvd.statistics.release import Charge, release_total, simplex_sensitivity

__all__ = ["ScoreCounts", "coverage_lost", "release_score_counts", "score_count_std"]

# Norms are computed in floating point; columns this much shorter than 1 keep the bound true.
_ALMOST_ONE = 1 - 1e-12


@dataclass(frozen=True, eq=False)
class ScoreCounts:
    """Noisy numbers of people whose score lies below each point.

    Attributes:
        counts: float64 [points].
        std: largest standard deviation of the noise on one of them.
        people: how many there are.
    """

    counts: Tensor
    std: float
    people: int

    def point_for(self, coverage: float) -> int:
        """The first point below which a share of the people lies, by bisection.

        A noisy count that is too large by chance ends the search too early. Bisection looks at
        log₂ of the points alone, so few of them can do that: see `coverage_lost`.

        Args:
            coverage: share of new people who are to lie below, between 0 and 1.

        Returns:
            From 0 to the number of points; the latter if no point will do.
        """
        enough = coverage * (self.people + 1)  # of conformal prediction: n + 1, not n
        if enough > self.people:
            return len(self.counts)
        fails = -1
        holds = len(self.counts)
        while holds - fails > 1:
            middle = (fails + holds) // 2
            if self.counts[middle] >= enough:
                holds = middle
            else:
                fails = middle
        return holds


def release_score_counts(
    places: Tensor, points: int, plan: PrivacyPlan, *, purpose: str, charge: Charge
) -> ScoreCounts:
    """Count, in one release, the people below each of ``points`` points 0, 1, 2, ....

    With h the numbers of people by place, the counts are A h, A the lower triangle of ones. It has
    a square root C, again a lower triangle, with the coefficients of (1 - x)^(-1/2). What is
    released is C h / |c| + noise, c the first column of C; the counts are |c| C times that. Their
    noise is |c|² ≈ 1 + ln(points)/π times that of one count alone, whichever point is asked for
    (Fichtenberger, Henzinger and Upadhyay 2023, "Constant matters", 2202.11205).

    Guarantees:
        A person adds an average of two neighbouring columns of C / |c|, each of norm at most 1. Its
        entries are not negative, so two people differ by √2 at most. A place counts continuously, 0
        at points up to it and 1 from one point further on: what rounding does to a place is not
        made larger. No person counts at a point that is not above their place.

    Args:
        places: float [n], where each person's score lies on the grid; one that is no number counts
            nowhere.
        points: how many.
        plan: of this release, from `release_plan` with reach 1.
        purpose: names the stream of random bits.
        charge: pays for the plan.

    Raises:
        DpvdError: if the plan is for another number of people; nothing is charged then.
    """
    positive_int(points=points)
    if places.dim() != 1 or len(places) != plan.examples:
        raise DpvdError(
            f"the plan is for {plan.examples} examples, there are scores of shape"
            f" {tuple(places.shape)}: give one for each"
        )
    root, norm = _root(points)
    total = _bounded_sums(places, points)
    sensitivity = simplex_sensitivity(plan.relation)
    std = release_total(total, plan, sensitivity=sensitivity, purpose=purpose, charge=charge)
    return ScoreCounts(norm * root @ total, norm**2 * std, plan.examples)


def score_count_std(plan: PrivacyPlan, points: int) -> float:
    """About the standard deviation that the counts will have; known before anything is charged."""
    squared = _coefficients(points).square().sum().item()
    return plan.noise_std(simplex_sensitivity(plan.relation)) * squared


def coverage_lost(people: int, std: float, points: int) -> float:
    """By how much noise may lower the coverage of `ScoreCounts.point_for`.

    Let s be the score of a new person, exchangeable with the n others, and r = (n + 1) coverage.
    Unless a noisy count that the search looks at is too large by more than m, the point that it
    ends at lies above r - m scores, and s lies below it with probability (r - m)/(n + 1). Up to the
    first wrong answer the search goes one way that the noise has no part in, past log₂(points + 1)
    counts. So the coverage is lower by at most

        m/(n + 1) + ⌈log₂(points + 1)⌉ Q(m/std),    Q the upper tail of a normal distribution,

    for every m; this is the least of these values.

    Args:
        people: n.
        std: of the noise on a count.
        points: of the grid.

    >>> round(coverage_lost(6000, 36.0, 640), 4)
    0.0232
    """
    positive_int(people=people, points=points)
    looks = math.ceil(math.log2(points + 1))
    # Where the derivative in m is zero.
    ratio = looks * (people + 1) / (std * math.sqrt(2 * math.pi))
    if ratio <= 1:
        return 1.0
    deviations = math.sqrt(2 * math.log(ratio))
    tail = float(stats.norm.sf(deviations))
    return min(1.0, deviations * std / (people + 1) + looks * tail)


def _bounded_sums(places: Tensor, points: int) -> Tensor:
    """C h / |c|, to which a person adds a vector no longer than 1: float64 [points]."""
    root, norm = _root(points)
    return root @ _numbers_by_place(places, points) / norm


def _numbers_by_place(places: Tensor, points: int) -> Tensor:
    """Each person in parts at the two points above their place: float64 [points]."""
    exact = places.double().nan_to_num(math.inf, math.inf, -math.inf).clamp(-1, points)
    below = exact.floor()
    part = exact - below  # [n], of the person that waits for one point more
    first = below.long() + 1
    numbers = torch.zeros(points + 3, dtype=torch.float64)
    numbers.index_add_(0, first, 1 - part)
    numbers.index_add_(0, first + 1, part)
    return numbers[:points]


def _root(points: int) -> tuple[Tensor, float]:
    """C, and |c| or slightly more."""
    column = _coefficients(points)
    norm = torch.linalg.vector_norm(column).item()
    return _lower_triangle(column), norm / _ALMOST_ONE


def _coefficients(points: int) -> Tensor:
    """Of (1 - x)^(-1/2): c₀ = 1, cₖ = cₖ₋₁ (2k - 1)/(2k). float64 [points]."""
    k = torch.arange(1, points, dtype=torch.float64)
    ratios = torch.cat([torch.ones(1, dtype=torch.float64), (2 * k - 1) / (2 * k)])
    return ratios.cumprod(0)


def _lower_triangle(column: Tensor) -> Tensor:
    """The lower triangular matrix whose diagonals are constant, by its first column."""
    index = torch.arange(len(column))
    apart = index[:, None] - index
    return torch.where(apart >= 0, column[apart.clamp_min(0)], 0.0)
