"""One release of a noisy sum over everybody: a plan with a single step that all examples take."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from dp_accounting import ComposedDpEvent, DpEvent
from torch import Tensor

from dpvd.errors import DpvdError, positive, positive_int
from dpvd.grads import Clipping, ClippingMode
from dpvd.mechanisms import GridNoise, noise_on_grid, release_sums
from dpvd.plan import PrivacyPlan
from dpvd.privacy import (
    AccountantName,
    Relation,
    SamplingKind,
    noise_multiplier_for,
    poisson_event,
)
from dpvd.statistics.people import BLOCK

__all__ = [
    "Charge",
    "Keeper",
    "Part",
    "noise_shares",
    "release_plan",
    "release_total",
    "simplex_sensitivity",
]


@runtime_checkable
class Keeper(Protocol):
    """Pays for releases and keeps their results, so that a run that goes on pays for none twice."""

    def recall(self, plan: PrivacyPlan) -> Tensor | None:
        """The noisy sum that was released under this plan and is paid for; None if none was."""

    def keep(self, plan: PrivacyPlan, total: Tensor) -> None:
        """Pay for a noisy sum and keep it, both or neither; called before anything of it is used.

        If it raises, nothing is released.
        """


Charge = Callable[[PrivacyPlan], None] | Keeper
"""Pays for a release; called before anything of it is used. If it raises, nothing is released."""


@dataclass(frozen=True)
class Part:
    """A part of a budget that several uses of the data share.

    Args:
        share: its part of 1/z², z the noise multiplier that one release with the whole budget has.
        steps: how many noisy sums over everybody the part pays for.
    """

    share: float
    steps: int = 1

    def __post_init__(self) -> None:
        positive(share=self.share)
        positive_int(steps=self.steps)

    def multiplier(self, whole: float) -> float:
        """z√(steps / share): the noise multiplier of each of its sums."""
        return whole * math.sqrt(self.steps / self.share)


def noise_shares(
    epsilon: float,
    delta: float,
    parts: Mapping[str, Part],
    *,
    accountant: AccountantName | str = AccountantName.PLD,
    relation: Relation | str = Relation.ADD_OR_REMOVE,
    earlier: Sequence[DpEvent] = (),
) -> dict[str, float]:
    """The noise multiplier of each part, so that all parts together cost at most (ε, δ).

    Gaussian mechanisms that everybody takes part in compose exactly: those with multipliers z₁, z₂,
    ... cost as much as a single one with 1/z² = Σ 1/zᵢ². Shares of 1/z² are therefore shares of the
    budget. The composition itself is accounted, not this identity.

    Args:
        epsilon: the budget.
        delta: δ of the budget; extra failure probabilities, such as that of `categories`, are to be
            subtracted from it before.
        parts: by name; the shares add up to 1.
        accountant: who adds up.
        relation: which data sets count as neighbours.
        earlier: what was done to the same data before, and is to be within (ε, δ) too.

    Raises:
        DpvdError: if the shares do not add up to 1, or there is no such noise.

    >>> z = noise_shares(1.0, 1e-5, {"mean": Part(0.2), "steps": Part(0.8, steps=20)})
    >>> round(z["mean"], 2), round(z["steps"], 2)
    (8.34, 18.66)
    """
    total = sum(part.share for part in parts.values())
    if not parts or abs(total - 1) > 1e-9:
        raise DpvdError(f"the shares of a budget must add up to 1, got {total!r}")

    def event(whole: float) -> DpEvent:
        new = [poisson_event(part.multiplier(whole), 1.0, part.steps) for part in parts.values()]
        return ComposedDpEvent([*earlier, *new])

    whole = noise_multiplier_for(epsilon, delta, event, accountant=accountant, relation=relation)
    return {name: part.multiplier(whole) for name, part in parts.items()}


def release_plan(
    base: PrivacyPlan, *, name: str, noise_multiplier: float, reach: float
) -> PrivacyPlan:
    """The plan of one release: all examples, one step.

    Args:
        base: whose relation, noise, unit and declarations it shares.
        name: what is released, in words. It is part of the plan: two releases with the same noise
            are two entries of an account, not one.
        noise_multiplier: noise over sensitivity.
        reach: length of the longest vector that one person can add to the sum.
    """
    return replace(
        base,
        batch_size=base.examples,
        steps=1,
        noise_multiplier=noise_multiplier,
        clipping=Clipping(ClippingMode.FLAT, reach),
        sampling=SamplingKind.POISSON,
        initial_weights=f"none: {name} was released before training",
    )


def simplex_sensitivity(relation: Relation) -> float:
    """How far one person moves counts to which they add an average of unit vectors.

    Its length is at most 1, and two of them lie no further apart than two unit vectors do: √2.
    """
    return {Relation.ADD_OR_REMOVE: 1.0, Relation.REPLACE_ONE: math.sqrt(2)}[relation]


def release_total(
    total: Tensor, plan: PrivacyPlan, *, sensitivity: float, purpose: str, charge: Charge
) -> float:
    """Add the plan's noise to a sum over all examples, in place.

    The plan is charged first; a `Keeper` takes charge and noisy sum together, and gives back what
    it has of an interrupted attempt. If that fails, or the noise cannot be had, the sum is
    overwritten with zeros. The sum was added up in double precision, in blocks; what rounding can
    have done to it is at most

        √m (b + n/b) n u      m entries, n examples, b rows in a block, u = 2⁻⁵³,

    times the largest entry that one person can add, which is at most the sensitivity; that is added
    to it twice.

    Args:
        total: the sum, float64 [m].
        plan: of this release, from `release_plan`.
        sensitivity: L2 sensitivity of the sum under the plan's relation.
        purpose: names the stream of random bits: each release of a seeded run has its own.
        charge: pays for the plan.

    Returns:
        The standard deviation of the noise on each entry.

    Raises:
        DpvdError: if the plan is not one of a private release, or has no room on a grid.
    """
    if plan.steps != 1 or plan.batch_size != plan.examples or not plan.private:
        raise DpvdError(
            "a release takes a plan with one step, all examples and noise: make it with"
            " release_plan"
        )
    try:
        rounded = sensitivity * (1 + 2 * _rounding(total.numel(), plan.examples))
        noise = noise_on_grid(rounded, plan.noise_std(rounded), total.numel())
        if isinstance(charge, Keeper):
            _release_once(total, noise, plan, purpose, charge)
        else:
            charge(plan)
            _add_noise(total, noise, plan, purpose)
    except BaseException:
        total.zero_()
        raise
    return noise.std


def _add_noise(total: Tensor, noise: GridNoise, plan: PrivacyPlan, purpose: str) -> None:
    release_sums(
        {purpose: total},
        noise,
        plan.bits(f"noise of {purpose}"),
        scales={purpose: 1.0},
        parameters={},
    )


def _release_once(
    total: Tensor, noise: GridNoise, plan: PrivacyPlan, purpose: str, keeper: Keeper
) -> None:
    """Put what was released before into the place of the sum; otherwise release it now."""
    known = keeper.recall(plan)
    if known is None:
        _add_noise(total, noise, plan, purpose)
        keeper.keep(plan, total)
        return
    if known.shape != total.shape or known.dtype != total.dtype:
        raise DpvdError(
            f"the kept release of {purpose} does not fit: the run was begun with other data or"
            " another version; start a new run, and count both"
        )
    total.copy_(known)


def _rounding(entries: int, examples: int) -> float:
    additions = BLOCK + examples / BLOCK
    return math.sqrt(entries) * additions * examples * torch.finfo(torch.float64).eps / 2
