"""Privacy profiles of one step: delta as an exact function of epsilon, for epsilon of either sign.

Each profile is the hockey-stick divergence H(e^eps) of a pair of distributions that dominates the
step: whatever the data, no neighbouring pair has a larger divergence at any epsilon, so the profile
may be composed. All are in closed form in the profile G of the Gaussian mechanism.

*Poisson, add-or-remove*: the pair N(0) and (1-q) N(0) + q N(1), in both orders, each composed by
itself.
*Fixed size, replace-one*: the larger of those two at every epsilon, as one profile.
*Poisson, replace-one*: (1-q) N(0) + q N(1/2) against (1-q) N(0) + q N(-1/2).

All normals have standard deviation z; the unit is the sensitivity under the relation.

References: Zhu, Dong and Wang (2022), arXiv 2106.08567, adaptive composition of dominating pairs
and their amplification by sampling, for the first two. For the third, advanced joint convexity
(Balle, Barthe and Gaboardi 2018, arXiv 1807.01647v2, Theorem 2) reduces the divergence to the mean
of a convex function of a sum of two log-normal variables of mean 1, and by Kahane's inequality it
grows with each entry of their covariance; opposite contributions of full norm maximise all entries
at once. (The same argument, with contributions taken relative to the example that fills the place
otherwise, proves the second.)
"""

import math

import numpy as np
from scipy.special import log_ndtr

from dpvd.privacy.bounds import Array, gaussian_log_delta

__all__ = [
    "add_profile",
    "fixed_size_profile",
    "largest_loss",
    "remove_profile",
    "replace_profile",
    "smallest_loss",
]

_TAIL = (
    10.2  # standard deviations of noise kept; the mass beyond, below e^-50, counts as infinite loss
)


def remove_profile(z: float, q: float, epsilon: Array) -> Array:
    """Return H of (1-q) N(0) + q N(1) over N(0): q G(y) with e^eps = 1 - q + q e^y, or 1 - e^eps.

    The second form holds where no such y exists, at eps <= log(1-q).
    """
    solvable = epsilon > _log_rest(q)
    y = _unsampled_loss(q, np.where(solvable, epsilon, 0.0))
    sampled = q * np.exp(gaussian_log_delta(z, y))
    return np.where(solvable, sampled, -np.expm1(np.minimum(epsilon, 0.0)))


def add_profile(z: float, q: float, epsilon: Array) -> Array:
    """Return H of N(0) over (1-q) N(0) + q N(1): q e^(eps+y) G(-y) with e^-eps = 1 - q + q e^y, or
    0.

    The second form holds where no such y exists, at eps >= -log(1-q).
    """
    solvable = epsilon < -_log_rest(q)
    eps = np.where(solvable, epsilon, 0.0)
    y = _unsampled_loss(q, -eps)
    return np.where(solvable, q * np.exp(eps + y + gaussian_log_delta(z, -y)), 0.0)


def fixed_size_profile(z: float, q: float, epsilon: Array) -> Array:
    """Return the larger of the two profiles above: the first for eps >= 0, the second below."""
    return np.where(epsilon >= 0, remove_profile(z, q, epsilon), add_profile(z, q, epsilon))


def replace_profile(z: float, q: float, epsilon: Array) -> Array:
    """Return H of (1-q) N(0) + q N(1/2) over (1-q) N(0) + q N(-1/2).

    The loss is eps at x = z^2 (eps + 2 asinh(sinh(eps/2) (1-q)/q e^{1/8z^2})), and grows with x.
    """
    log_factor = _log_rest(q) - math.log(q) + 1 / (8 * z**2)
    x = z * (epsilon + 2 * np.arcsinh(np.sinh(epsilon / 2) * math.exp(log_factor)))  # in deviations
    shift = 0.5 / z
    upper = (1 - q) * np.exp(log_ndtr(-x)) + q * np.exp(log_ndtr(shift - x))
    lower = (1 - q) * np.exp(epsilon + log_ndtr(-x)) + q * np.exp(epsilon + log_ndtr(-shift - x))
    profile: Array = np.maximum(upper - lower, 0.0)
    return profile


def largest_loss(z: float, q: float) -> float:
    """Return the privacy loss beyond which a step has no mass worth keeping (all pairs above)."""
    return float(np.logaddexp(_log_rest(q), math.log(q) + _TAIL / z + 0.5 / z**2))


def smallest_loss(z: float, q: float) -> float:
    """Return the loss below which the first pair has none."""
    return float(np.logaddexp(_log_rest(q), math.log(q) - _TAIL / z - 0.5 / z**2))


def _log_rest(q: float) -> float:
    """Return log(1 - q), also for q = 1: no sampling."""
    return math.log1p(-q) if q < 1 else -math.inf


def _unsampled_loss(q: float, epsilon: Array) -> Array:
    """Return y with e^eps = 1 - q + q e^y."""
    large = epsilon - math.log(q) + np.log1p((q - 1) * np.exp(-np.maximum(epsilon, 1.0)))
    small = np.log1p(np.expm1(np.minimum(epsilon, 1.0)) / q)
    return np.where(epsilon > 1, large, small)
