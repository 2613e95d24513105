"""Bounds of a numeric column, from noisy counts in bins that are the same for every column."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpvd.errors import DpvdError
from dpvd.plan import PrivacyPlan
from dpvd.statistics.people import row_weights, vote_counts
from dpvd.statistics.release import Charge, release_total, simplex_sensitivity

__all__ = ["NumericBounds", "dyadic_edges", "people_for_bounds", "release_bounds"]

_FINE_BINS = 64
_FALSE_BIN = 0.01  # chance that noise alone makes an empty bin of a histogram look inhabited
_ENOUGH_SEEN = 0.25  # part of the people that have to be in bins which stand out
_WINDOW = 3  # powers of two within which most values of a column lie
# As many people as this times the least count are found within a window: see `_likeliest_scale`.
_ENOUGH = 4


@dataclass(frozen=True)
class NumericBounds:
    """Where nearly all values of a column lie.

    Attributes:
        low: lower bound.
        high: upper bound.
        are_rough: whether noise hid most people, and these are no more than the likeliest scale.
    """

    low: float
    high: float
    are_rough: bool = False


def dyadic_edges(smallest: int = -20, largest: int = 40) -> Tensor:
    """-2⁴⁰, ..., -2⁻²⁰, 2⁻²⁰, ..., 2⁴⁰: public edges that fit columns of every scale. float64."""
    powers = torch.pow(2.0, torch.arange(smallest, largest + 1, dtype=torch.float64))
    return torch.cat([-powers.flip(0), powers])


def release_bounds(
    values: Tensor,
    coarse: PrivacyPlan,
    fine: PrivacyPlan,
    *,
    outside: float = 0.01,
    unit_index: Tensor | None = None,
    purpose: str,
    charge: Charge,
) -> NumericBounds:
    """Bounds that leave out about a given part of the people, in two releases.

    The first counts people in bins whose edges are powers of two; bins that hold no more people
    than noise would pretend are taken as empty. If few people are in the others, the likeliest
    scale is taken: it costs nothing more. The second counts people in equal bins between the
    outermost that are not, and finds the quantiles.

    Guarantees:
        A person adds the average of unit vectors, one for each of their rows, which is no longer
        than 1; two such differ by √2 at most, the distance of two unit vectors. Values that are
        not finite, and those beyond ±2⁴⁰, count in no bin. Everything else is made of noisy counts.

    Args:
        values: [n]; NaN is a missing value.
        coarse: plan of the first release, from `release_plan` with reach 1.
        fine: plan of the second; must differ in its words from the first.
        outside: the part of the people that may lie outside, half of it on either side.
        unit_index: int64 [n], whose row each is; None if every row is a person.
        purpose: names the streams of random bits, such as the name of the column.
        charge: pays for the plans.

    Raises:
        DpvdError: if the plans are the same, or there are fewer than `people_for_bounds`; nothing
            is charged then.
    """
    if coarse == fine:
        raise DpvdError("two releases need two plans: give them different names in release_plan")
    if not 0 < outside < 1:
        raise DpvdError(f"outside must lie strictly between 0 and 1, got {outside!r}")
    needed = people_for_bounds(coarse)
    if coarse.examples < needed:
        raise DpvdError(
            f"too few people for bounds of {purpose}: there are {coarse.examples}, and under this"
            f" noise {needed} are needed. Declare bounds that you know, or spend a larger epsilon"
            " on them"
        )
    edges = dyadic_edges()
    counts, std = _noisy_counts(values, edges, coarse, unit_index, f"{purpose}, coarse", charge)
    inhabited = (counts > _least_count(std, len(counts))).nonzero().flatten()
    are_rough = False
    if counts[inhabited].sum() < _ENOUGH_SEEN * coarse.examples:
        low, high, are_rough = _likeliest_scale(counts, edges, coarse.examples)
    else:
        low = edges[int(inhabited[0])].item()
        high = edges[int(inhabited[-1]) + 1].item()
    edges = torch.linspace(low, high, _FINE_BINS + 1, dtype=torch.float64)
    counts, std = _noisy_counts(values, edges, fine, unit_index, f"{purpose}, fine", charge)
    kept = torch.where(counts > _least_count(std, len(counts)), counts, torch.zeros_like(counts))
    if kept.sum() < _ENOUGH_SEEN * fine.examples:
        return NumericBounds(low, high, are_rough)
    below = kept.cumsum(0) / kept.sum()
    first = int((below > outside / 2).nonzero()[0])
    last = int((below >= 1 - outside / 2).nonzero()[0])
    return NumericBounds(edges[first].item(), edges[last + 1].item(), are_rough)


def people_for_bounds(plan: PrivacyPlan) -> int:
    """How many people are needed for bounds of a column, by the noise of the first release alone.

    With fewer, the noise would hide them wherever they are. It is known before anything is charged.
    """
    std = plan.noise_std(simplex_sensitivity(plan.relation))
    return math.ceil(_ENOUGH * _least_count(std, len(dyadic_edges()) - 1))


def _likeliest_scale(counts: Tensor, edges: Tensor, people: int) -> tuple[float, float, bool]:
    """Bounds for a column of which single bins do not stand out, from the same noisy counts.

    Most values of a column lie within a few powers of two. The noise of 2w bins together is √(2w)
    times that of one, while nearly everybody is in them: they stand out where one bin does not.

    Args:
        counts: [bins], noisy.
        edges: [bins + 1], those of `dyadic_edges`.
        people: their number, which is public.

    Returns:
        Lower and upper bound, and whether they are rough: fewer than half of the people are there.
    """
    middle = len(counts) // 2  # the bin around zero
    positive = counts[middle + 1 :]  # from small to large
    negative = counts[:middle].flip(0)
    sums = torch.stack([positive, negative]).unfold(1, _WINDOW, 1).sum(-1)  # [2, windows]
    best = int(sums.sum(0).argmax())
    # One power of two above the window: what lies beyond it is not cut off at once.
    above = min(middle + best + _WINDOW + 1, len(counts) - 1)
    high = edges[above + 1].item()
    are_rough = bool(sums[:, best].sum() < people / 2)
    has_sign = (sums[:, best] > people / 4).tolist()
    if has_sign == [True, False]:
        return 0.0, high, are_rough
    if has_sign == [False, True]:
        return -high, 0.0, are_rough
    return -high, high, are_rough


def _noisy_counts(
    values: Tensor,
    edges: Tensor,
    plan: PrivacyPlan,
    unit_index: Tensor | None,
    purpose: str,
    charge: Charge,
) -> tuple[Tensor, float]:
    """People in each bin, with noise, and its standard deviation."""
    votes = row_weights(plan.examples, len(values), unit_index)
    exact = values.double()
    places = torch.bucketize(exact.nan_to_num(math.inf), edges, right=True) - 1
    # The last bin includes its upper edge.
    places = torch.where(exact == edges[-1], len(edges) - 2, places)
    inside = (places >= 0) & (places < len(edges) - 1)
    counts = vote_counts(places[inside], votes[inside], len(edges) - 1)
    std = release_total(
        counts,
        plan,
        sensitivity=simplex_sensitivity(plan.relation),
        purpose=purpose,
        charge=charge,
    )
    return counts, std


def _least_count(std: float, bins: int) -> float:
    """What the noise of one of so many empty bins exceeds with probability `_FALSE_BIN`, at most:
    exp(-t²/2) bounds the tail of a normal distribution.
    """
    return std * math.sqrt(2 * math.log(bins / _FALSE_BIN))
