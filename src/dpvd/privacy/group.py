"""What several rows together cost, when the account is for one: a person's, a household's."""

from dp_accounting import ComposedDpEvent, DpEvent

from dpvd.errors import DpvdError, positive_int
from dpvd.privacy.events import Sampling, count_steps, poisson_event
from dpvd.privacy.names import Relation

__all__ = ["group_event"]


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
        DpvdError: for other relations than add-or-remove and for samples of fixed size, where this
            argument does not hold.

    >>> group_event(poisson_event(6.0, 1.0, 4), 3, relation="add-or-remove").events[0]
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=4)
    """
    positive_int(rows=rows)
    steps = count_steps(event)
    if Relation.parse(relation) is not Relation.ADD_OR_REMOVE or any(
        step.sampling is Sampling.FIXED_SIZE for step in steps
    ):
        raise DpvdError(
            "the cost of a group is known for the add-or-remove relation and Poisson sampling"
            " only; account for the group as one unit instead"
        )
    return ComposedDpEvent(
        [
            poisson_event(step.noise_multiplier / rows, _any_of(rows, step.sampling_prob), count)
            for step, count in steps.items()
        ]
    )


def _any_of(rows: int, sampling_prob: float) -> float:
    """Return the probability that at least one of so many rows is in the batch, rounded up."""
    if sampling_prob == 1:
        return 1.0
    missing: float = (1 - sampling_prob) ** rows
    return min(1.0, (1 - missing) * (1 + 1e-9))
