"""The claim under test, and its neighbours: the same plan with more noise, or with less."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

from scipy.special import ndtr, ndtri

from dpvd.errors import DpvdError
from dpvd.plan import PrivacyPlan
from dpvd.privacy import privacy_curve

__all__ = ["NoiseFamily", "least_refuted_noise"]

_PRECISION = 2e-3  # relative, of a noise multiplier; every one that is returned has been refuted
_WIDEST = 1e4  # how many times the planned noise is looked at


@dataclass(frozen=True)
class NoiseFamily:
    """What a plan promises for every noise multiplier z that it might have run with.

    A bound says which z cannot have been: those whose promise was seen to be broken. The least of
    them is turned into an ε by the same account that made the claim, so that bound and claim are
    the same quantity. That the mechanism is one of the family is needed for this number only.
    Whether it is above the claim is the same as whether the claim itself is refuted, which needs
    no family.

    Args:
        plan: with its noise multiplier; sampling, steps and relation are those of all the family.

    Raises:
        DpvdError: if the plan adds no noise.
    """

    plan: PrivacyPlan

    def __post_init__(self) -> None:
        if not self.plan.private:
            raise DpvdError("the plan adds no noise and promises nothing: there is no claim")

    @cached_property
    def claimed_noise(self) -> float:
        """z of the plan."""
        assert self.plan.noise_multiplier is not None  # checked at construction
        return self.plan.noise_multiplier

    @property
    def is_gaussian(self) -> bool:
        """Whether all examples take part in all steps, so that the mechanism is μ-Gaussian."""
        return self.plan.sampling_prob == 1

    def mu(self, noise_multiplier: float) -> float:
        """μ = √T / z, of a plan without sampling."""
        return math.sqrt(self.plan.steps) / noise_multiplier

    def noise_of(self, mu: float) -> float:
        """The z whose plan, without sampling, is μ-Gaussian."""
        return math.sqrt(self.plan.steps) / mu

    def detected(self, noise_multiplier: float, false_positive_rate: float) -> float:
        """Return the most that any test detects at this rate of false alarms.

        Without sampling Φ(Φ⁻¹(FPR) + μ), exactly; with it, from the account's pairs (ε, δ), and
        never too little.
        """
        return _detected(self.plan, noise_multiplier)(false_positive_rate)

    def epsilon(self, noise_multiplier: float, delta: float) -> float:
        """ε at δ of the plan with this noise."""
        return _with_noise(self.plan, noise_multiplier).epsilon(delta)


def _with_noise(plan: PrivacyPlan, noise_multiplier: float) -> PrivacyPlan:
    return PrivacyPlan.from_dict(plan.to_dict() | {"noise_multiplier": noise_multiplier})


@lru_cache(maxsize=128)  # a curve takes a second, and is asked for many rates
def _detected(plan: PrivacyPlan, noise_multiplier: float) -> Callable[[float], float]:
    if plan.sampling_prob == 1:
        mu = math.sqrt(plan.steps) / noise_multiplier
        return lambda rate: float(ndtr(ndtri(rate) + mu))
    event = _with_noise(plan, noise_multiplier).event()
    curve = privacy_curve(event, relation=plan.relation)

    def detected(rate: float) -> float:
        if rate <= 0:
            return float(curve.deltas[-1])
        return 1.0 if rate >= 1 else curve.true_positive_rate(rate)

    return detected


def least_refuted_noise(refutes: Callable[[float], bool], start: float) -> float | None:
    """Return the least noise multiplier that is refuted, to two thousandths; None if none is.

    Args:
        refutes: whether a promise with this noise was seen to be broken. If it is for one z, it
            must be for every larger one.
        start: where to begin: the z of the claim.
    """
    high = start
    while not refutes(high):
        high *= 2
        if high > _WIDEST * start:
            return None
    low = high / 2
    while refutes(low):
        high = low
        low /= 2
    while high - low > _PRECISION * high:
        middle = math.sqrt(low * high)
        if refutes(middle):
            high = middle
        else:
            low = middle
    return high
