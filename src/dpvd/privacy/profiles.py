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

# Standard deviations of noise that are kept; the mass beyond, below e^-50, counts as infinite loss.
_TAIL = 10.2


def remove_profile(z: float, q: float, epsilon: Array) -> Array:
    """Return H of (1-q) N(0) + q N(1) over N(0): q G(y) with e^eps = 1 - q + q e^y, or 1 - e^eps.

    The second form holds where no such y exists, at eps <= log(1-q).
    """
    solvable = epsilon > _log_rest(q)
    y = _unsampled_loss(q, np.where(solvable, epsilon, 0.0))
    log_gaussian = gaussian_log_delta(z, y)
    sampled = q * np.exp(log_gaussian)
    otherwise = -np.expm1(np.minimum(epsilon, 0.0))
    return np.where(solvable, sampled, otherwise)


def add_profile(z: float, q: float, epsilon: Array) -> Array:
    """Return H of N(0) over (1-q) N(0) + q N(1): q e^(eps+y) G(-y), or 0.

    Here e^-eps = 1 - q + q e^y. It is 0 where no such y exists, at eps >= -log(1-q).
    """
    solvable = epsilon < -_log_rest(q)
    eps = np.where(solvable, epsilon, 0.0)
    y = _unsampled_loss(q, -eps)
    log_gaussian = gaussian_log_delta(z, -y)
    sampled = q * np.exp(eps + y + log_gaussian)
    return np.where(solvable, sampled, 0.0)


def fixed_size_profile(z: float, q: float, epsilon: Array) -> Array:
    """Return the larger of the two profiles above: the first for eps >= 0, the second below."""
    above = remove_profile(z, q, epsilon)
    below = add_profile(z, q, epsilon)
    return np.where(epsilon >= 0, above, below)


def replace_profile(z: float, q: float, epsilon: Array) -> Array:
    """Return H of (1-q) N(0) + q N(1/2) over (1-q) N(0) + q N(-1/2).

    The loss is eps at x = z^2 (eps + 2 asinh(sinh(eps/2) (1-q)/q e^{1/8z^2})), and grows with x.
    """
    log_odds = _log_rest(q) - math.log(q)
    factor = math.exp(log_odds + 1 / (8 * z**2))
    excess = 2 * np.arcsinh(np.sinh(epsilon / 2) * factor)
    x = z * (epsilon + excess)  # in standard deviations
    shift = 0.5 / z
    # Masses above x, each a mixture of unsampled and sampled.
    log_unsampled = log_ndtr(-x)
    log_raised = log_ndtr(shift - x)
    log_lowered = log_ndtr(-shift - x)
    upper = (1 - q) * np.exp(log_unsampled) + q * np.exp(log_raised)
    lower = (1 - q) * np.exp(epsilon + log_unsampled) + q * np.exp(epsilon + log_lowered)
    profile: Array = np.maximum(upper - lower, 0.0)
    return profile


def largest_loss(z: float, q: float) -> float:
    """Return the privacy loss beyond which a step has no mass worth keeping (all pairs above)."""
    log_sampled = math.log(q) + _TAIL / z + 0.5 / z**2
    log_ratio = np.logaddexp(_log_rest(q), log_sampled)
    return float(log_ratio)


def smallest_loss(z: float, q: float) -> float:
    """Return the loss below which the first pair has none."""
    log_sampled = math.log(q) - _TAIL / z - 0.5 / z**2
    log_ratio = np.logaddexp(_log_rest(q), log_sampled)
    return float(log_ratio)


def _log_rest(q: float) -> float:
    """Return log(1 - q), also for q = 1: no sampling."""
    if q == 1:
        return -math.inf
    return math.log1p(-q)


def _unsampled_loss(q: float, epsilon: Array) -> Array:
    """Return y with e^eps = 1 - q + q e^y."""
    # Each form is evaluated at an epsilon that suits it, and chosen below.
    decay = np.exp(-np.maximum(epsilon, 1.0))
    large = epsilon - math.log(q) + np.log1p((q - 1) * decay)
    growth = np.expm1(np.minimum(epsilon, 1.0))
    small = np.log1p(growth / q)
    return np.where(epsilon > 1, large, small)
