"""What a guarantee means for one person: how well any attack can do, from the whole δ(ε) curve.

A mechanism is private at every (ε, δ(ε)) of its curve at once, so any bound that one pair gives
may be taken at the best of them. Each pair used here was accounted by itself
(:func:`dpvd.privacy.epsilon`), so every number is an upper bound, whichever pairs were tried.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting import DpEvent
from scipy.special import ndtri

from dpvd.errors import DpvdError, in_unit_interval
from dpvd.privacy.bounds import Array, gaussian_log_delta
from dpvd.privacy.calibration import epsilon
from dpvd.privacy.enums import Relation
from dpvd.privacy.events import count_steps

__all__ = [
    "FALSE_POSITIVE_RATES",
    "PRIORS",
    "Interpretation",
    "PrivacyCurve",
    "gaussian_dp",
    "interpret",
    "privacy_curve",
]

FALSE_POSITIVE_RATES = (0.01, 0.001)
PRIORS = (0.5, 0.01)

LOWEST_DELTA = 1e-10
"""Where a curve ends unless a smaller δ is asked about."""

# About 0.1 standard deviations of the loss apart. The lines between pairs then cost 0.1 % of a μ
# below 1, and 0.2 % at 4.
_POINTS = 64
_BISECTIONS = 20  # of the logarithm of δ(0); they end within 0.01 % of it
_LARGEST_EPSILON = 600.0  # e^ε beyond this leaves double precision
_NEAREST_TO_ONE = 1 - 1e-12  # a δ(0) above this counts as 1
_MARGIN = 1e-9  # relative, by which a μ must clear the curve: more than rounding can amount to


@dataclass(frozen=True, eq=False)
class PrivacyCurve:
    """Pairs (ε, δ) that a mechanism satisfies, δ falling from δ(0) to ``lowest``.

    Guarantees: the mechanism is (ε, δ)-differentially private at each of the pairs.

    Edge cases: a mechanism without finite ε has the one pair (0, 1), which everything satisfies;
    one with an ε in the hundreds has that and the last pair.
    """

    epsilons: Array  # [pairs], not falling
    deltas: Array  # [pairs], falling

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """Return the most that any test for one neighbour against the other detects.

        TPR ≤ e^ε FPR + δ and, with the roles of the two answers exchanged,
        TPR ≤ 1 - e^{-ε} (1 - FPR - δ), at every pair of the curve.

        References: Kairouz, Oh and Viswanath, arXiv 1311.0776v4, section 2.

        >>> curve = PrivacyCurve(np.array([0.0]), np.array([0.1]))
        >>> round(curve.true_positive_rate(0.01), 6)
        0.11
        """
        in_unit_interval(false_positive_rate=false_positive_rate)
        factors = np.exp(np.minimum(self.epsilons, _LARGEST_EPSILON))
        direct = factors * false_positive_rate + self.deltas
        inverse = np.exp(-self.epsilons)
        mirrored = 1 - inverse * (1 - false_positive_rate - self.deltas)
        lowest_direct = float(direct.min())
        lowest_mirrored = float(mirrored.min())
        return min(1.0, lowest_direct, lowest_mirrored)

    def correct_guesses(self) -> float:
        """Return how often a guess at even odds can be right.

        A guess is right with probability (TPR + 1 - FPR) / 2, which each pair holds to
        (e^ε + δ) / (1 + e^ε); at ε = 0 that is (1 + δ(0)) / 2. No probability is set aside.

        References: Kairouz, Oh and Viswanath, arXiv 1311.0776v4, section 2.
        """
        inverse = np.exp(-self.epsilons)
        right = (1 + self.deltas * inverse) / (1 + inverse)
        lowest = float(right.min())
        return min(1.0, lowest)

    def loss_bound(self, failure: float) -> float:
        """Return the privacy loss that is exceeded with probability at most ``failure``.

        Let L be the logarithm of how much more likely the model is with the person's data than
        without. Where the mechanism is (ε, δ)-private, for x > ε

            δ ≥ E[max(0, 1 - e^{ε - L})] ≥ (1 - e^{ε - x}) P(L ≥ x),

        so P(L ≥ x) ≤ ``failure`` at x = ε - log(1 - δ/failure), and the smallest such x over the
        curve's pairs is returned. The probability is over training with the person's data;
        without them a loss above x ≥ 0 is less likely still.

        Edge cases: infinite if no pair has a δ below ``failure``.

        References: Kasiviswanathan and Smith (2014), On the 'Semantics' of Differential Privacy,
        arXiv 0803.3946v3, section 3, which has the inequality for one pair.
        """
        in_unit_interval(failure=failure)
        small = self.deltas < failure
        if not small.any():
            return math.inf
        shares = self.deltas[small] / failure
        losses = self.epsilons[small] - np.log1p(-shares)
        return float(losses.min())

    def posterior(self, prior: float, failure: float) -> float:
        """Return what a belief of ``prior`` grows to at most, but with probability ``failure``.

        Bayes' rule multiplies the odds by e^L, and L is at most :meth:`loss_bound`.

        >>> curve = PrivacyCurve(np.array([1.0]), np.array([1e-9]))
        >>> round(curve.posterior(0.5, 1e-5), 4)
        0.7311
        """
        in_unit_interval(prior=prior)
        loss = self.loss_bound(failure)
        odds_against = (1 - prior) / prior
        odds_left = odds_against * math.exp(-loss)
        return 1 / (1 + odds_left)


@dataclass(frozen=True)
class Interpretation:
    """How well anybody can do against one unit, whatever they know and compute. All upper bounds.

    Guarantees: valid for the event and the relation that they were computed for, and no other.
    """

    delta: float
    """The probability that :attr:`posteriors` sets aside: the δ of the guarantee."""
    true_positive_rates: Mapping[float, float]
    """Share of units that are rightly said to be in the data, by the share wrongly said to be."""
    correct_guesses: float
    """How often a guess at even odds is right."""
    posteriors: Mapping[float, float]
    """Belief afterwards by belief before; but with probability ``delta`` over the noise."""
    mu: float | None
    """Gaussian differential privacy; None where no finite μ holds."""
    mu_slack: float
    """μ holds but for this much δ; 0 where it holds outright."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold; rates and priors become texts."""
        return {
            "delta": self.delta,
            "true_positive_rates": _with_keys(self.true_positive_rates, repr),
            "correct_guesses": self.correct_guesses,
            "posteriors": _with_keys(self.posteriors, repr),
            "mu": self.mu,
            "mu_slack": self.mu_slack,
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Interpretation":
        """Return the interpretation that :meth:`to_dict` wrote.

        Raises:
            DpvdError: if a field is missing or no number.
        """
        try:
            mu = plain["mu"]
            return cls(
                delta=float(plain["delta"]),
                true_positive_rates=_with_keys(plain["true_positive_rates"], float),
                correct_guesses=float(plain["correct_guesses"]),
                posteriors=_with_keys(plain["posteriors"], float),
                mu=None if mu is None else float(mu),
                mu_slack=float(plain["mu_slack"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise DpvdError(
                f"not an interpretation of a guarantee: {problem!r}; write it with"
                " Interpretation.to_dict"
            ) from None


def _with_keys(table: Mapping[Any, float], convert: Callable[[Any], Any]) -> dict[Any, float]:
    converted = {}
    for key, value in table.items():
        converted[convert(key)] = float(value)
    return converted


def interpret(
    event: DpEvent,
    delta: float,
    *,
    relation: Relation | str = Relation.ADD_OR_REMOVE,
    false_positive_rates: Sequence[float] = FALSE_POSITIVE_RATES,
    priors: Sequence[float] = PRIORS,
) -> Interpretation:
    """Return what an event means for one unit of the data.

    Args:
        event: everything that touched the data; noise is relative to the sensitivity under
            ``relation``.
        delta: that of the guarantee; the probability that the bound on beliefs sets aside.
        relation: which data sets count as neighbours.
        false_positive_rates: for which detection is bounded.
        priors: beliefs to start from.

    Raises:
        DpvdError: if delta is out of range or the event has no account under this relation.

    >>> from dpvd.privacy import poisson_event
    >>> one = interpret(poisson_event(1.0, 1.0, 1), 1e-5)
    >>> round(one.true_positive_rates[0.01], 3), round(one.mu, 3)
    (0.092, 1.0)
    """
    in_unit_interval(delta=delta)
    pairs = Relation.parse(relation)
    lowest = min(LOWEST_DELTA, delta / 100)
    curve = privacy_curve(event, relation=pairs, lowest=lowest)
    bound = _mu_without_sampling(event)
    sampled = any(step.sampling_prob < 1 for step in count_steps(event))
    return Interpretation(
        delta=float(delta),
        true_positive_rates={rate: curve.true_positive_rate(rate) for rate in false_positive_rates},
        correct_guesses=curve.correct_guesses(),
        posteriors={prior: curve.posterior(prior, delta) for prior in priors},
        mu=None if math.isinf(bound) else gaussian_dp(event, relation=pairs, curve=curve),
        mu_slack=lowest if sampled else 0.0,
    )


def privacy_curve(
    event: DpEvent,
    *,
    relation: Relation | str = Relation.ADD_OR_REMOVE,
    lowest: float = LOWEST_DELTA,
) -> PrivacyCurve:
    """Return pairs (ε, δ) that the event satisfies, by the accountant of privacy losses.

    The first has ε = 0; those after it stand evenly in standard deviations of the loss of the
    Gaussian mechanism with the same δ(0), and the last has δ = ``lowest``.
    """
    in_unit_interval(lowest=lowest)

    def spent(delta: float) -> float:
        return epsilon(event, delta, relation=relation)

    most = spent(lowest)
    if math.isinf(most):
        return PrivacyCurve(np.zeros(1), np.ones(1))
    if most > _LARGEST_EPSILON:  # next to no privacy: nothing between the ends is worth its time
        return PrivacyCurve(np.array([0.0, most]), np.array([1.0, lowest]))
    largest = _largest_delta(spent, lowest)
    if largest <= lowest:
        return PrivacyCurve(np.zeros(1), np.array([largest]))
    below_one = min(largest, _NEAREST_TO_ONE)
    mu = 2 * float(ndtri((1 + below_one) / 2))
    # δ of μ-GDP is below Φ(μ/2 - ε/μ), which is at most ``lowest`` at the last of these.
    furthest = mu / 2 - float(ndtri(lowest))
    deviations = np.linspace(0.0, furthest, _POINTS + 1)[1:]
    log_deltas = gaussian_log_delta(1 / mu, mu * deviations)
    deltas = np.exp(log_deltas)
    between = deltas[(deltas > lowest) & (deltas < largest)]
    kept = np.append(between, lowest)
    epsilons = np.array([spent(float(delta)) for delta in kept])
    rising = np.maximum.accumulate(epsilons)
    return PrivacyCurve(np.append(0.0, rising), np.append(largest, kept))


def _largest_delta(spent: Callable[[float], float], lowest: float) -> float:
    """Return δ(0), the distance in total variation, from above.

    Edge cases: 1 if no δ below ``_NEAREST_TO_ONE`` is enough.
    """
    low = math.log(lowest)
    high = math.log(_NEAREST_TO_ONE)
    if spent(math.exp(high)) > 0:
        return 1.0
    if spent(lowest) == 0:
        return lowest
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if spent(math.exp(middle)) > 0:
            low = middle
        else:
            high = middle
    return math.exp(high)


def gaussian_dp(
    event: DpEvent,
    *,
    relation: Relation | str = Relation.ADD_OR_REMOVE,
    curve: PrivacyCurve | None = None,
) -> float:
    """Return a μ, as small as the curve allows, for which the event is μ-Gaussian private.

    Without sampling it is √(Σ 1/z²), exactly and at every ε. With sampling no smaller μ covers
    every ε: far enough out the loss of a sampled step has the tail of the step that is not
    sampled. μ is then the smallest whose curve lies above this one down to the curve's lowest δ,
    and says so: at every ε the event's δ is at most the larger of the two.

    Guarantees: between two pairs the event's δ is below the straight line that joins them, since
        δ is convex in e^ε; the curve of μ is held against these lines, not against the pairs.
        Never above √(Σ 1/z²), as sampling does not cost privacy.

    References: Dong, Roth and Su (2022), arXiv 1905.02383v3, Corollary 1 for the curve of μ and
    Corollary 2 for the sum; reporting μ: Gomez et al. (2025), arXiv 2503.10945.

    Raises:
        DpvdError: if no finite μ holds, because a step has no noise.

    >>> from dpvd.privacy import poisson_event
    >>> gaussian_dp(poisson_event(2.0, 1.0, 16))
    2.0
    """
    most = _mu_without_sampling(event)
    if math.isinf(most):
        raise DpvdError("no finite μ holds: a step of this event adds no noise")
    if most == 0 or all(step.sampling_prob == 1 for step in count_steps(event)):
        return most
    known = privacy_curve(event, relation=relation) if curve is None else curve
    if known.epsilons[-1] > _LARGEST_EPSILON:
        return most
    if not _covers(most, known):  # where rounding in the account exceeds what sampling saves
        return most
    low = 0.0
    high = most
    while high - low > 1e-5 * high:
        middle = (low + high) / 2
        if _covers(middle, known):
            high = middle
        else:
            low = middle
    return high


def _covers(mu: float, curve: PrivacyCurve) -> bool:
    """Whether δ of μ-GDP is at least the line between every two neighbouring pairs.

    The line's slope in e^ε is -s; δ of μ-GDP is closest to it where its own slope
    -Φ(-ε/μ - μ/2) is the same, or at an end.
    """
    ends = np.exp(curve.epsilons)
    widths = np.diff(ends)
    wide = widths > 0
    # Of every line that has a width: where it starts, and its slope.
    left = curve.epsilons[:-1][wide]
    right = curve.epsilons[1:][wide]
    start = ends[:-1][wide]
    height = curve.deltas[:-1][wide]
    falls = -np.diff(curve.deltas)[wide]
    slopes = falls / widths[wide]
    in_range = np.clip(slopes, 1e-300, 1.0)
    touch = -mu * (ndtri(in_range) + mu / 2)
    epsilons = np.clip(touch, left, right)
    lines = height - slopes * (np.exp(epsilons) - start)
    reached = _delta_of(mu, epsilons) * (1 - _MARGIN)
    at_zero = float(_delta_of(mu, 0.0)) * (1 - _MARGIN)
    return bool((reached >= lines).all()) and at_zero >= curve.deltas[0]


def _delta_of(mu: float, epsilon: Array | float) -> Array:
    """Return δ of μ-GDP at these ε."""
    log_delta = gaussian_log_delta(1 / mu, epsilon)
    delta: Array = np.exp(log_delta)
    return delta


def _mu_without_sampling(event: DpEvent) -> float:
    """Return √(Σ 1/z²) over all steps, infinite if one has no noise."""
    steps = count_steps(event)
    if any(step.noise_multiplier == 0 for step in steps):
        return math.inf
    precisions = [count / step.noise_multiplier**2 for step, count in steps.items()]
    return math.sqrt(sum(precisions))
