"""From an event to epsilon, and back: the noise or the number of steps that a budget allows."""

from collections.abc import Callable, Sequence
from functools import lru_cache

from dp_accounting import DpEvent

from dpvd.errors import DpvdError, in_unit_interval, positive
from dpvd.privacy.accountants import accountant_for
from dpvd.privacy.bisect import largest_within_budget
from dpvd.privacy.enums import AccountantName, Relation
from dpvd.privacy.events import Step, count_steps
from dpvd.privacy.schedule import MOST_STEPS

__all__ = ["epsilon", "epsilon_curve", "noise_multiplier_for", "steps_for"]

# The range in which noise multipliers are looked for.
_LEAST_NOISE = 1e-3
_MOST_NOISE = 1e7


def epsilon(
    event: DpEvent,
    delta: float,
    *,
    accountant: AccountantName | str = AccountantName.PLD,
    relation: Relation | str = Relation.ADD_OR_REMOVE,
) -> float:
    """Return the epsilon at ``delta`` of everything in ``event``.

    Guarantees: never below the true value under the given relation.

    Edge cases: 0 for no steps; infinite for a step without noise.

    Args:
        event: what happened; see :func:`poisson_event` and :func:`fixed_size_event`. Its noise
            multipliers are relative to the sensitivity under ``relation``.
        delta: strictly between 0 and 1.
        accountant: how losses are added up.
        relation: which data sets count as neighbours.

    Raises:
        DpvdError: if delta is out of range, or the accountant has no theorem for the event's
            sampling under this relation.

    >>> from dpvd.privacy import poisson_event
    >>> round(epsilon(poisson_event(1.0, 0.01, 1000), 1e-5), 2)
    1.83
    """
    in_unit_interval(delta=delta)
    name = AccountantName.parse(accountant)
    neighbours = Relation.parse(relation)
    return _account(event, delta, name, neighbours)


def _account(event: DpEvent, delta: float, name: AccountantName, relation: Relation) -> float:
    steps = tuple(count_steps(event).items())  # hashable: accounts of equal steps are shared
    return _epsilon_of(steps, float(delta), name, relation)


@lru_cache(maxsize=4096)
def _epsilon_of(
    steps: tuple[tuple[Step, int], ...], delta: float, name: AccountantName, relation: Relation
) -> float:
    account = accountant_for(name, relation)
    account.compose_steps(dict(steps))
    return account.get_epsilon(delta)


def noise_multiplier_for(
    epsilon: float,
    delta: float,
    event_for: Callable[[float], DpEvent],
    *,
    accountant: AccountantName | str = AccountantName.PLD,
    relation: Relation | str = Relation.ADD_OR_REMOVE,
) -> float:
    """Return the smallest noise multiplier, up to a tolerance, that keeps within (epsilon, delta).

    Guarantees: accounting the event with the returned value gives at most ``epsilon``: that very
    value has been accounted. Where the account is continuous in the noise, at least
    99.98 % of ``epsilon`` is used.

    Args:
        epsilon: the budget, above 0.
        delta: strictly between 0 and 1.
        event_for: the event as a function of the noise multiplier; more noise must not cost more.
        accountant: how losses are added up.
        relation: which data sets count as neighbours.

    Raises:
        DpvdError: if the budget is out of range, or no noise multiplier up to 1e7 keeps it.

    >>> from dpvd.privacy import poisson_event
    >>> round(noise_multiplier_for(1.0, 1e-5, lambda z: poisson_event(z, 1.0, 1)), 2)
    3.73
    """
    positive(epsilon=epsilon)
    in_unit_interval(delta=delta)
    name = AccountantName.parse(accountant)
    neighbours = Relation.parse(relation)

    def spent(noise_multiplier: float) -> float:
        event = event_for(noise_multiplier)
        return _account(event, delta, name, neighbours)

    start = 1.0
    if name is AccountantName.PLD:  # its account is slow, and close to one that is fast
        start = _rough_noise_multiplier(epsilon, delta, event_for)
    found = largest_within_budget(
        spent, epsilon, start=start, cheapest=_MOST_NOISE, costliest=_LEAST_NOISE
    )
    if found is None:
        raise DpvdError(
            f"no noise multiplier up to {_MOST_NOISE:g} gives epsilon {epsilon:g} at delta"
            f" {delta:g}; ask for a larger epsilon or delta, or take fewer steps"
        )
    return found


def _rough_noise_multiplier(
    epsilon: float, delta: float, event_for: Callable[[float], DpEvent]
) -> float:
    """Return where to start the search, from the Renyi account under whichever relation it has."""
    for relation in Relation:
        try:
            return noise_multiplier_for(
                epsilon, delta, event_for, accountant=AccountantName.RDP, relation=relation
            )
        except DpvdError:
            continue
    return 1.0


def steps_for(
    epsilon: float,
    delta: float,
    event_for: Callable[[int], DpEvent],
    *,
    accountant: AccountantName | str = AccountantName.PLD,
    relation: Relation | str = Relation.ADD_OR_REMOVE,
) -> int:
    """Return the largest number of steps that keeps within (epsilon, delta).

    Guarantees: that number has been accounted and costs at most ``epsilon``; one more costs more.

    Edge cases: 0 if a single step is too many; never more than ``MOST_STEPS``.

    Args:
        epsilon: the budget, above 0.
        delta: strictly between 0 and 1.
        event_for: the event as a function of the number of steps; more steps must not cost less.
        accountant: how losses are added up.
        relation: which data sets count as neighbours.

    Raises:
        DpvdError: if the budget is out of range.

    >>> from dpvd.privacy import poisson_event
    >>> steps_for(1.0, 1e-5, lambda steps: poisson_event(10.0, 1.0, steps))
    7
    """
    positive(epsilon=epsilon)
    in_unit_interval(delta=delta)
    name = AccountantName.parse(accountant)
    neighbours = Relation.parse(relation)

    def spent(steps: float) -> float:
        event = event_for(int(steps))
        return _account(event, delta, name, neighbours)

    found = largest_within_budget(
        spent, epsilon, start=1000, cheapest=1, costliest=MOST_STEPS, whole=True
    )
    return 0 if found is None else int(found)


def epsilon_curve(
    event_for: Callable[[int], DpEvent],
    steps: Sequence[int],
    delta: float,
    *,
    accountant: AccountantName | str = AccountantName.PLD,
    relation: Relation | str = Relation.ADD_OR_REMOVE,
) -> list[float]:
    """Return the epsilon spent after each of the given numbers of steps.

    Guarantees: each entry is what :func:`epsilon` returns; the account of a single step is shared.

    >>> from dpvd.privacy import poisson_event
    >>> curve = epsilon_curve(lambda steps: poisson_event(10.0, 1.0, steps), [0, 1, 7], 1e-5)
    >>> [round(value, 3) for value in curve]
    [0.0, 0.341, 0.986]
    """
    return [
        epsilon(event_for(count), delta, accountant=accountant, relation=relation)
        for count in steps
    ]
