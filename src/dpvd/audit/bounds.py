"""Lower bounds on ε from the scores of many trials, half of them with the canary and half without.

A score is any number computed from what a trial released; larger ones say "the canary was there".
Trials are independent of each other.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, chdtri, ndtri

from dpvd.audit.family import NoiseFamily, least_refuted_noise
from dpvd.errors import DpvdError, in_unit_interval

__all__ = [
    "Array",
    "Scores",
    "clopper_pearson",
    "epsilon_by_threshold",
    "epsilon_of_gaussian_scores",
    "mu_of_gaussian_scores",
]

Array = npt.NDArray[np.float64]

_SELECTING = 4  # one score in so many chooses the threshold; the others are judged by it
_CANDIDATES = 199  # thresholds that are looked at
_LEAST_TRIALS = 16  # with and without, each


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of independent trials.

    Args:
        inside: [trials] of those with the canary.
        outside: [trials] of those without.

    Raises:
        DpvdError: if there are too few, or one is not a finite number.
    """

    inside: Array
    outside: Array

    def __post_init__(self) -> None:
        for name in ("inside", "outside"):
            values = np.asarray(getattr(self, name), dtype=np.float64).reshape(-1)
            if len(values) < _LEAST_TRIALS or not np.isfinite(values).all():
                raise DpvdError(
                    f"an audit needs {_LEAST_TRIALS} finite scores with the canary and as many"
                    f" without, got {len(values)} {name}"
                )
            object.__setattr__(self, name, values)

    @property
    def trials(self) -> int:
        return len(self.inside) + len(self.outside)


def mu_of_gaussian_scores(scores: Scores, confidence: float) -> float:
    """Return μ that is, with this confidence, at most the true distance of normal scores.

    For scores from N(a, s²) without and N(a + μs, s²) with the canary, d the difference of the
    means, S² the pooled variance with k degrees of freedom, and c² = 1/n + 1/m,

        μ ≥ (d/S) √(χ²_k(p/2) / k) - c Φ⁻¹(1 - p/2),   p = 1 - ``confidence``,

    for d > 0: with d = s (μ + cZ) and S² = s² χ²_k / k, each of Z and χ²_k goes beyond its
    quantile with probability p/2. It is exact for every number of trials.

    Edge cases: 0 if the scores do not tell, or point the wrong way. That those with the canary are
    *smaller* is no sign of leakage that this test looked for: taking |d| would double the
    probability of a false verdict.
    """
    in_unit_interval(confidence=confidence)
    each = (1 - confidence) / 2
    counts = len(scores.inside), len(scores.outside)
    difference = float(scores.inside.mean() - scores.outside.mean())
    degrees = sum(counts) - 2
    squares = sum(
        float(np.square(part - part.mean()).sum()) for part in (scores.inside, scores.outside)
    )
    if difference <= 0:
        return 0.0
    if squares == 0:
        return math.inf
    standardised = difference / math.sqrt(squares / degrees)
    shrunk = standardised * math.sqrt(float(chdtri(degrees, 1 - each)) / degrees)
    error = math.sqrt(1 / counts[0] + 1 / counts[1])
    return max(0.0, shrunk + error * float(ndtri(each)))


def epsilon_of_gaussian_scores(
    scores: Scores, family: NoiseFamily, delta: float, confidence: float
) -> float:
    """Return a lower bound on ε at δ from scores that are normal, of a plan without sampling.

    Guarantees: if the claim is true and the scores are sums of the released values, the bound
        passes the claim with probability at most 1 - ``confidence``.

    Raises:
        DpvdError: if the plan samples: scores are mixtures of normals then.
    """
    if not family.is_gaussian:
        raise DpvdError("scores of a plan that samples are not normal: bound them by a threshold")
    mu = mu_of_gaussian_scores(scores, confidence)
    if mu == 0 or math.isinf(mu):
        return mu
    return family.epsilon(family.noise_of(mu), delta)


def clopper_pearson(errors: int, trials: int, significance: float) -> float:
    """Return what the probability of an error is at most, but with probability ``significance``.

    References: Clopper and Pearson (1934), "The use of confidence or fiducial limits illustrated
    in the case of the binomial".

    >>> round(clopper_pearson(0, 100, 0.05), 4)
    0.0295
    """
    if errors >= trials:
        return 1.0
    return float(betaincinv(errors + 1, trials - errors, 1 - significance))


def epsilon_by_threshold(
    scores: Scores, family: NoiseFamily, delta: float, confidence: float
) -> float:
    """Return a lower bound on ε at δ from how well a threshold tells the scores apart.

    The first quarter of the scores chooses the threshold; the others are judged by it. The rates
    of false alarms and of misses have upper bounds α and β by Clopper and Pearson, each at half of
    the significance. A noise multiplier z is refuted if its plan lets no test detect as much:

        1 - β > most detected at α under z.

    Guarantees: if the claim is true, the bound passes it with probability at most
        1 - ``confidence``, whatever the distribution of the scores.
    """
    in_unit_interval(confidence=confidence)
    each = (1 - confidence) / 2
    inside, outside = scores.inside, scores.outside
    first_inside = len(inside) // _SELECTING
    first_outside = len(outside) // _SELECTING
    threshold = _best_threshold(inside[:first_inside], outside[:first_outside], each)
    alarms, misses = _rates(inside[first_inside:], outside[first_outside:], threshold, each)
    if alarms >= 1 or misses >= 1:
        return 0.0

    def refutes(noise_multiplier: float) -> bool:
        return 1 - misses > family.detected(noise_multiplier, alarms)

    noise = least_refuted_noise(refutes, family.claimed_noise)
    return 0.0 if noise is None else family.epsilon(noise, delta)


def _rates(
    inside: Array, outside: Array, threshold: float, significance: float
) -> tuple[float, float]:
    """Upper bounds on the probabilities of a false alarm and of a miss."""
    alarms = int((outside >= threshold).sum())
    misses = int((inside < threshold).sum())
    return (
        clopper_pearson(alarms, len(outside), significance),
        clopper_pearson(misses, len(inside), significance),
    )


def _best_threshold(inside: Array, outside: Array, significance: float) -> float:
    """The threshold at which these scores would show the largest Gaussian distance."""
    levels = np.linspace(0, 1, _CANDIDATES + 2)[1:-1]
    candidates = np.quantile(np.concatenate([inside, outside]), levels)

    def distance(threshold: float) -> float:
        alarms, misses = _rates(inside, outside, threshold, significance)
        return float(-ndtri(alarms) - ndtri(misses))

    return max(map(float, candidates), key=distance)
