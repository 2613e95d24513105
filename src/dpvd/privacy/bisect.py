"""One search for both directions of calibration: the last value that a budget allows."""

import math
from collections.abc import Callable

__all__ = ["largest_within_budget"]

_TIGHTNESS = 2e-4  # the search ends when at least (1 - this) of the budget is used ...
_NARROWEST = 1e-9  # ... or, where spending jumps, when the bracket is this narrow on a log scale
_FIRST_STRIDE = math.log(1.1)


def largest_within_budget(
    spent: Callable[[float], float],
    budget: float,
    *,
    start: float,
    cheapest: float,
    costliest: float,
    whole: bool = False,
) -> float | None:
    """Return the value nearest to ``costliest`` that is within ``budget``, or None.

    Spending must be monotone between the limits ``cheapest`` (spends least) and ``costliest``. The
    search brackets the edge from ``start`` and closes in by interpolating log spending against log
    value, with a bisection whenever that fails to halve the bracket.

    Guarantees: ``spent`` has been evaluated at the returned value and was at most ``budget``.

    Edge cases: ``whole`` restricts the search to whole numbers and then the edge is exact. Infinite
    and zero spending are legal.

    >>> found = largest_within_budget(
    ...     lambda x: 1 / x, 0.5, start=1.0, cheapest=1e3, costliest=1e-3
    ... )
    >>> round(found, 2)
    2.0
    """
    bracket = _bracket(spent, budget, start, cheapest, costliest, whole)
    if bracket is None:
        return None
    (good, good_spent), (bad, bad_spent) = bracket
    halved = True
    while not _done(good, good_spent, bad, budget, whole):
        width = abs(math.log(bad / good))
        if halved:
            middle = _interpolate(good, good_spent, bad, bad_spent, budget)
        else:
            middle = math.sqrt(good * bad)
        if whole:
            middle = _whole_between(good, bad, middle)
        amount = spent(middle)
        if amount <= budget:
            good = middle
            good_spent = amount
        else:
            bad = middle
            bad_spent = amount
        halved = abs(math.log(bad / good)) <= width / 2
    return good


def _whole_between(good: float, bad: float, value: float) -> int:
    """Return the whole number nearest to ``value`` that is neither of the two."""
    least = min(good, bad) + 1
    most = max(good, bad) - 1
    return int(min(max(round(value), least), most))


def _done(good: float, good_spent: float, bad: float, budget: float, whole: bool) -> bool:
    if good == bad:
        return True
    if whole:
        return abs(good - bad) <= 1
    if good_spent >= budget * (1 - _TIGHTNESS):
        return True
    return abs(math.log(bad / good)) < _NARROWEST


def _bracket(
    spent: Callable[[float], float],
    budget: float,
    start: float,
    cheapest: float,
    costliest: float,
    whole: bool,
) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Return a value within budget and one beyond it, each with its spending.

    Both are the same value if even ``costliest`` is within budget; None if not even ``cheapest``.
    """
    here = start
    here_spent = spent(start)
    within = here_spent <= budget
    limit = costliest if within else cheapest
    upwards = limit >= start
    stride = _FIRST_STRIDE
    while here != limit:
        there = _further(here, stride, limit, upwards=upwards, whole=whole)
        there_spent = spent(there)
        crossed = (there_spent <= budget) != within
        if crossed and within:
            return (here, here_spent), (there, there_spent)
        if crossed:
            return (there, there_spent), (here, here_spent)
        here = there
        here_spent = there_spent
        stride *= 2
    if not within:
        return None
    return (here, here_spent), (here, here_spent)


def _further(here: float, stride: float, limit: float, *, upwards: bool, whole: bool) -> float:
    """Return the value one stride, on a log scale, towards the limit, and not beyond it."""
    if upwards:
        there = here * math.exp(stride)
        return min(math.ceil(there) if whole else there, limit)
    there = here * math.exp(-stride)
    return max(math.floor(there) if whole else there, limit)


def _interpolate(
    good: float, good_spent: float, bad: float, bad_spent: float, budget: float
) -> float:
    """Return where a straight line in logarithms meets the budget, a hair on the good side."""
    if good_spent <= 0 or math.isinf(bad_spent):
        return math.sqrt(good * bad)
    aim = math.log(budget * (1 - _TIGHTNESS / 2))
    log_good = math.log(good_spent)
    log_bad = math.log(bad_spent)
    share = (aim - log_good) / (log_bad - log_good)
    share = min(max(share, 0.01), 0.99)
    return good * math.exp(share * math.log(bad / good))
