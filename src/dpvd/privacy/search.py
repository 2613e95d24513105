"""One search for both directions of calibration: the last value that a budget allows."""

import math
from collections.abc import Callable

__all__ = ["edge_of_budget"]

_TIGHTNESS = 2e-4  # the search ends when at least (1 - this) of the budget is used ...
_NARROWEST = 1e-9  # ... or, where spending jumps, when the bracket is this narrow on a log scale
_FIRST_STRIDE = math.log(1.1)


def edge_of_budget(
    spent: Callable[[float], float],
    budget: float,
    *,
    start: float,
    thrifty: float,
    costly: float,
    whole: bool = False,
) -> float | None:
    """Return the value nearest to ``costly`` whose spending is within ``budget``, or None if none
    is.

    Spending must be monotone between the limits ``thrifty`` (spends least) and ``costly``. The
    search brackets the edge from ``start`` and closes in by interpolating log spending against log
    value, with a bisection whenever that fails to halve the bracket.

    Guarantees: ``spent`` has been evaluated at the returned value and was at most ``budget``.

    Edge cases: ``whole`` restricts the search to whole numbers and then the edge is exact. Infinite
    and zero spending are legal.

    >>> round(edge_of_budget(lambda x: 1 / x, 0.5, start=1.0, thrifty=1e3, costly=1e-3), 2)
    2.0
    """
    bracket = _bracket(spent, budget, start, thrifty, costly, whole)
    if bracket is None:
        return None
    (good, good_spent), (bad, bad_spent) = bracket
    halved = True
    while not _done(good, good_spent, bad, budget, whole):
        width = abs(math.log(bad / good))
        middle = (
            _interpolate(good, good_spent, bad, bad_spent, budget)
            if halved
            else math.sqrt(good * bad)
        )
        if whole:
            middle = min(max(round(middle), min(good, bad) + 1), max(good, bad) - 1)
        amount = spent(middle)
        if amount <= budget:
            good, good_spent = middle, amount
        else:
            bad, bad_spent = middle, amount
        halved = abs(math.log(bad / good)) <= width / 2
    return good


def _done(good: float, good_spent: float, bad: float, budget: float, whole: bool) -> bool:
    if good == bad:
        return True
    if whole:
        return abs(good - bad) <= 1
    return good_spent >= budget * (1 - _TIGHTNESS) or abs(math.log(bad / good)) < _NARROWEST


def _bracket(
    spent: Callable[[float], float],
    budget: float,
    start: float,
    thrifty: float,
    costly: float,
    whole: bool,
) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Return a value within budget and one beyond it, each with its spending.

    Both are the same value if even ``costly`` is within budget; None if not even ``thrifty`` is.
    """
    here, here_spent = start, spent(start)
    within = here_spent <= budget
    limit = costly if within else thrifty
    direction = math.copysign(1.0, math.log(limit / start)) if limit != start else 1.0
    stride = _FIRST_STRIDE
    while here != limit:
        there = here * math.exp(direction * stride)
        if whole:
            there = math.ceil(there) if direction > 0 else math.floor(there)
        there = min(there, limit) if direction > 0 else max(there, limit)
        there_spent = spent(there)
        if (there_spent <= budget) != within:
            pair = (here, here_spent), (there, there_spent)
            return pair if within else (pair[1], pair[0])
        here, here_spent, stride = there, there_spent, 2 * stride
    return ((here, here_spent), (here, here_spent)) if within else None


def _interpolate(
    good: float, good_spent: float, bad: float, bad_spent: float, budget: float
) -> float:
    """Return where a straight line in logarithms meets the budget, a hair on the good side."""
    if good_spent <= 0 or math.isinf(bad_spent):
        return math.sqrt(good * bad)
    aim = math.log(budget * (1 - _TIGHTNESS / 2))
    share = (aim - math.log(good_spent)) / (math.log(bad_spent) - math.log(good_spent))
    share = min(max(share, 0.01), 0.99)
    return good * math.exp(share * math.log(bad / good))
