"""What a run did to its data, read back from its record; and what several runs cost together."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dp_accounting import ComposedDpEvent, DpEvent

from dpvd.errors import DpvdError, is_finite_number
from dpvd.privacy import Relation, SamplingKind, count_steps, epsilon, sampled_event
from dpvd.runs.record import RunRecord

__all__ = ["Total", "event_of", "total_spent"]

_AGREEMENT = 1e-6  # relative difference in ε up to which two accounts are of the same event


def event_of(record: RunRecord) -> DpEvent | None:
    """Return everything that touched the data of a run, or None where its record does not tell.

    Guarantees: the event has as many steps as the run's statement, and the statement's accountant
    gives it the statement's ε. A record whose parts do not agree in that has no event.
    """
    if not record.is_private:
        return None
    try:
        event = _described(record)
        counted = sum(count_steps(event).values())
        spent = epsilon(
            event,
            float(record.guarantee["delta"]),
            accountant=record.guarantee["accountant"],
            relation=record.guarantee["relation"],
        )
    except (DpvdError, KeyError, TypeError, ValueError):
        return None
    stated = float(record.guarantee["epsilon"])
    agrees = math.isclose(spent, stated, rel_tol=_AGREEMENT)
    return event if agrees and counted == record.guarantee["steps"] else None


def _described(record: RunRecord) -> DpEvent:
    """Return what plan and releases describe, whether the statement agrees or not."""
    releases: list[Mapping[str, Any]] = list(getattr(record, "releases", None) or ())
    if not releases:
        return _event(record.plan, record.guarantee["steps"])
    return ComposedDpEvent([_event(entry["plan"], entry["steps"]) for entry in releases])


def _event(plan: Mapping[str, Any], steps: int) -> DpEvent:
    return sampled_event(
        SamplingKind(plan["sampling"]),
        float(plan["noise_multiplier"]),
        batch_size=plan["batch_size"],
        examples=plan["examples"],
        steps=steps,
    )


@dataclass(frozen=True)
class Total:
    """What several runs on the same data cost together.

    Attributes:
        runs: how many private runs there are.
        epsilon: for all of them together; infinite if no finite one is known.
        delta: that belongs to it.
        relation: under which data sets are neighbours.
        composed: whether the events were composed; otherwise ε and δ were added up.
        without_privacy: how many further runs there are that no ε holds for; not in the sum.
    """

    runs: int
    epsilon: float
    delta: float
    relation: Relation
    composed: bool
    without_privacy: int


def total_spent(records: Iterable[RunRecord]) -> Total:
    """Return the cost of releasing all of these runs, which were made from the same data.

    Where every record tells its event, the events are composed at the largest δ among them, by the
    accountant of privacy losses; otherwise the values of ε, and those of δ, are added up.

    Raises:
        DpvdError: if there is no run, or their statements are under different relations.
    """
    every = list(records)
    if not every:
        raise DpvdError("there is no run to add up")
    private = [record for record in every if record.is_private]
    relations = {str(record.guarantee.get("relation")) for record in private}
    if len(relations) > 1:
        raise DpvdError(
            f"the statements of these runs are under different relations"
            f" ({' and '.join(sorted(relations))}): their costs cannot be added up"
        )
    relation = Relation.parse(relations.pop()) if relations else Relation.ADD_OR_REMOVE
    events = [event_of(record) for record in private]
    known = [event for event in events if event is not None]
    composed = len(known) == len(private)
    if composed:
        delta = max((float(record.guarantee["delta"]) for record in private), default=0.0)
        spent = epsilon(ComposedDpEvent(known), delta, relation=relation) if private else 0.0
    else:
        delta = math.fsum(float(record.guarantee["delta"]) for record in private)
        spent = math.fsum(float(record.guarantee["epsilon"]) for record in private)
    if not is_finite_number(spent) or delta >= 1:
        spent = math.inf
    return Total(len(private), spent, delta, relation, composed, len(every) - len(private))
