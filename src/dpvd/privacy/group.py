"""What several rows together cost, when the account is for one: a person's, a household's."""

import math

from dp_accounting import ComposedDpEvent, DpEvent

from dpvd.errors import DpvdError, in_unit_interval, positive_int
from dpvd.privacy.calibration import epsilon
from dpvd.privacy.enums import Relation, SamplingKind
from dpvd.privacy.events import count_steps, is_cyclic, poisson_event

__all__ = ["group_epsilon", "group_event"]

_SMALLEST_DELTA = 1e-18  # below it the account of one row is no longer tested
_TRIES = 40


def group_epsilon(event: DpEvent, delta: float, rows: int, *, relation: Relation | str) -> float:
    """Return the ε at ``delta`` of a group of ``rows`` rows, where ``event`` is for one.

    The smaller of two bounds. The account of :func:`group_event`, where it holds; and, always, the
    chain of neighbours that changes one row after the other: where one row is (ε, δ')-private,
    the group is (kε, δ' (1 + e^ε + ... + e^{(k-1)ε}))-private. δ' is chosen from a grid.

    Guarantees: never below what the group costs; infinite if neither bound is finite.

    References: for the chain Vadhan (2017), The Complexity of Differential Privacy, Lemma 2.2, with
    the sum in place of its bound k e^{kε}.

    >>> from dpvd.privacy import poisson_event
    >>> round(group_epsilon(poisson_event(30.0, 1.0, 9), 1e-5, 10, relation="add-or-remove"), 3)
    4.377
    """
    positive_int(rows=rows)
    in_unit_interval(delta=delta)
    found = [_chained(event, delta, rows, relation)]
    if Relation.parse(relation) is Relation.ADD_OR_REMOVE and _is_joint(event):
        together = group_event(event, rows, relation=relation)
        found.append(epsilon(together, delta, relation=relation))
    return min(found)


def _chained(event: DpEvent, delta: float, rows: int, relation: Relation | str) -> float:
    """Return the smallest k ε(δ') over a grid of δ' whose sum along the chain is within δ."""
    if rows == 1:
        return epsilon(event, delta, relation=relation)
    first = math.log(delta / rows)
    last = math.log(min(_SMALLEST_DELTA, delta / rows))
    best = math.inf
    for number in range(_TRIES):
        log_delta = first + (last - first) * number / (_TRIES - 1)
        one = epsilon(event, math.exp(log_delta), relation=relation)
        if rows * one < best and log_delta + _log_sum(one, rows) <= math.log(delta):
            best = rows * one
    return best


def _log_sum(one: float, rows: int) -> float:
    """Return log(1 + e^ε + ... + e^{(k-1)ε}), or a little more."""
    if one * rows < 1e-6:
        return math.log(rows) + one * rows
    # (e^{kε} - 1) / (e^ε - 1), without overflow
    numerator = -math.expm1(-rows * one)
    denominator = -math.expm1(-one)
    return (rows - 1) * one + math.log(numerator / denominator)


def group_event(event: DpEvent, rows: int, *, relation: Relation | str) -> DpEvent:
    """Return what happened, seen from a group of ``rows`` rows that are there together or not.

    A group of k rows moves a sum by up to k times what one row does, so the noise relative to it
    is z/k. Rows are sampled each by itself: with probability (1-q)^k none of the group takes part,
    and the others' sum does not depend on that; otherwise the group moves the sum by at most k.
    So the step is a step at rate 1 - (1-q)^k with noise z/k, which is (1-q) N(0) + q N(1) with
    these two in place of q and z: a mixture over what the group adds is no easier to tell from
    N(0) than the worst of what it adds (the hockey-stick divergence is jointly convex).

    Guarantees: never states less than the group costs. It may state more: not every row of a group
    is in the batch when one is.

    Args:
        event: as accounted for one row.
        rows: k, at least 1.
        relation: which data sets count as neighbours.

    Raises:
        DpvdError: for other relations than add-or-remove, for samples of fixed size and for
            correlated noise, where this argument does not hold.

    >>> group_event(poisson_event(6.0, 1.0, 4), 3, relation="add-or-remove").events[0]
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=4)
    """
    positive_int(rows=rows)
    steps = count_steps(event)
    one_way = Relation.parse(relation) is Relation.ADD_OR_REMOVE
    if not one_way or not _is_joint(event):
        raise DpvdError(
            "the cost of a group is known for the add-or-remove relation, Poisson sampling and"
            " independent noise only; account for the group as one unit instead"
        )
    events = []
    for step, count in steps.items():
        noise = step.noise_multiplier / rows
        sampling_prob = _any_of(rows, step.sampling_prob)
        events.append(poisson_event(noise, sampling_prob, count))
    return ComposedDpEvent(events)


def _is_joint(event: DpEvent) -> bool:
    """Return whether all rows of a group are drawn in the same steps, each by itself."""
    fixed_size = any(step.sampling is SamplingKind.FIXED_SIZE for step in count_steps(event))
    return not fixed_size and not is_cyclic(event)


def _any_of(rows: int, sampling_prob: float) -> float:
    """Return the probability that at least one of so many rows is in the batch, rounded up."""
    if sampling_prob == 1:
        return 1.0
    missing: float = (1 - sampling_prob) ** rows
    return min(1.0, (1 - missing) * (1 + 1e-9))
