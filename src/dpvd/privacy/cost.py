"""What a use of the data costs, in a form that is kept in a file and composed with others."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dp_accounting import DpEvent

from dpvd.errors import DpvdError, in_unit_interval, is_finite_number, non_negative, positive_int
from dpvd.privacy.accountants import accountant_for
from dpvd.privacy.enums import AccountantName, Relation, SamplingKind
from dpvd.privacy.events import Step, count_steps

__all__ = ["Cost", "composed_cost", "whole_budget"]


@dataclass(frozen=True)
class Cost:
    """One use of the data.

    Attributes:
        steps: how often each kind of Gaussian release is made.
        failure: chance that a category appears which only one person has; see
            ``dpvd.statistics.failure_delta``.
        epsilon: ε of what is not a Gaussian release, such as a selection among runs.
        delta: δ of the same.
    """

    steps: Counter[Step] = field(default_factory=Counter)
    failure: float = 0.0
    epsilon: float = 0.0
    delta: float = 0.0

    @classmethod
    def of(cls, event: DpEvent, *, failure: float = 0.0) -> "Cost":
        """The cost of an event of Gaussian releases."""
        return cls(count_steps(event), failure)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; numbers keep all their digits."""
        steps = [
            {
                "count": count,
                "noise_multiplier": step.noise_multiplier,
                "sampling": None if step.sampling is None else str(step.sampling),
                "sampling_prob": step.sampling_prob,
            }
            for step, count in self.steps.items()
        ]
        return {
            "steps": steps,
            "failure": self.failure,
            "epsilon": self.epsilon,
            "delta": self.delta,
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Cost":
        """The cost that ``to_dict`` wrote.

        Raises:
            DpvdError: if a number is out of range.
            KeyError, TypeError, ValueError: if something is missing or of another kind.
        """
        steps: Counter[Step] = Counter()
        for entry in plain["steps"]:
            steps[_read_step(entry)] += _read_count(entry["count"])
        numbers = {name: plain[name] for name in ("failure", "epsilon", "delta")}
        non_negative(**numbers)
        return cls(steps, **{name: float(value) for name, value in numbers.items()})


def _read_count(count: Any) -> int:
    positive_int(count=count)
    return int(count)


def _read_step(entry: Mapping[str, Any]) -> Step:
    sampling = entry["sampling"]
    noise = entry["noise_multiplier"]
    share = entry["sampling_prob"]
    non_negative(noise_multiplier=noise)
    if not is_finite_number(share) or not 0 < share <= 1:
        raise DpvdError(f"sampling_prob must be above 0 and at most 1, got {share!r}")
    return Step(float(noise), None if sampling is None else SamplingKind(sampling), float(share))


def composed_cost(
    costs: Iterable[Cost], delta: float, relation: Relation, *, most: float = math.inf
) -> float:
    """Return ε at ``delta`` of all uses together.

    Gaussian releases of all of them are composed as one, by their privacy losses. What else costs
    (εᵢ, δᵢ) is added, and so is what failures add to δ:

        ε = PLD(all steps; δ - Σ δᵢ - (1 + e^E) Σ failure) + Σ εᵢ,   E = ``most``.

    Guarantees: never below the true value as long as that is at most ``most``; infinite if δ does
    not suffice.

    Args:
        costs: of the uses.
        delta: δ of everything together.
        relation: which data sets are neighbours; noise multipliers are relative to it.
        most: the ε that is not passed; needed where there are failures.
    """
    steps: Counter[Step] = Counter()
    added = 0.0
    left = delta
    failure = 0.0
    for cost in costs:
        steps += cost.steps
        added += cost.epsilon
        left -= cost.delta
        failure += cost.failure
    if failure:
        left -= (1 + math.exp(most)) * failure if most < 700 else math.inf
    if not steps and not failure:
        return added if left >= 0 else math.inf
    if left <= 0:
        return math.inf
    account = accountant_for(AccountantName.PLD, relation)
    account.compose_steps(steps)
    return account.get_epsilon(left) + added


def whole_budget(epsilon: float, delta: float, *, failure: float = 0.0) -> Cost:
    """The cost of whatever full-batch Gaussian releases are calibrated to (ε, δ).

    Such releases compose to a single one. Its noise is the least that keeps the budget:
    accountants that are not tight give more.

    Args:
        epsilon: the budget.
        delta: δ that is left for the releases, failures subtracted.
        failure: see :class:`Cost`.

    >>> [step] = whole_budget(1.0, 1e-5).steps
    >>> round(step.noise_multiplier, 3)
    3.731
    """
    non_negative(epsilon=epsilon)
    in_unit_interval(delta=delta)

    def spent(noise: float) -> float:
        return composed_cost([Cost(Counter({Step(noise): 1}))], delta, Relation.ADD_OR_REMOVE)

    least = 1e-3
    enough = 1e7
    if spent(enough) > epsilon:
        raise DpvdError(f"no noise gives epsilon {epsilon:g} at delta {delta:g}")
    while True:  # to the last digit: a budget that is the account's limit has to fit into it
        middle = (least + enough) / 2
        if middle in (least, enough):
            return Cost(Counter({Step(enough): 1}), failure)
        if spent(middle) > epsilon:
            least = middle
        else:
            enough = middle
