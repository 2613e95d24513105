"""The formulas of the accountants: numbers in, numbers out.

Every function that returns an epsilon returns an upper bound: searches end on the safe side, and a
choice that is free in a theorem (an order, a split of delta) is optimised over a grid, each point
of which is sound by itself.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr

__all__ = [
    "advanced_composition",
    "amplify",
    "gaussian_epsilon",
    "gaussian_log_delta",
    "rdp_to_epsilon",
    "zcdp_to_epsilon",
]

Array: TypeAlias = npt.NDArray[np.float64]

_BISECTIONS = 80  # halves any bracket below the resolution of a double


def gaussian_log_delta(noise_multiplier: float | Array, epsilon: float | Array) -> Array:
    """Return log delta of one Gaussian mechanism at ``epsilon``, exactly.

    delta = Phi(1/(2z) - eps z) - e^eps Phi(-1/(2z) - eps z), evaluated in logarithms.

    Edge cases: -inf where the difference is below the resolution of a double.

    References: Balle and Wang (2018), arXiv 1805.06530v2, Theorem 8.

    >>> float(np.exp(gaussian_log_delta(1.0, 0.0)).round(6))
    0.382925
    """
    z = np.asarray(noise_multiplier, dtype=np.float64)
    eps = np.asarray(epsilon, dtype=np.float64)
    half = 0.5 / z
    first = log_ndtr(half - eps * z)
    second = eps + log_ndtr(-half - eps * z)
    # log(e^first - e^second) = first + log(1 - e^(second - first))
    log_ratio = np.minimum(second - first, 0.0)
    with np.errstate(divide="ignore"):
        log_rest = np.log(-np.expm1(log_ratio))
    log_delta: Array = first + log_rest
    return log_delta


def gaussian_epsilon(noise_multiplier: float, delta: float | Array) -> Array:
    """Return the epsilon of one Gaussian mechanism at each ``delta``.

    Guarantees: never below the exact value, above it by less than 1e-12 relatively.

    Edge cases: infinite for noise multiplier 0; 0 where (0, delta) already holds.

    References: Balle and Wang (2018), arXiv 1805.06530v2, Theorem 8, solved by bisection.

    >>> float(gaussian_epsilon(1.0, 1e-5).round(4))
    4.3772
    """
    deltas = np.asarray(delta, dtype=np.float64)
    if noise_multiplier == 0:
        return np.full(deltas.shape, np.inf)
    with np.errstate(divide="ignore"):
        log_delta = np.minimum(np.log(deltas), 0.0)
    low = np.zeros(deltas.shape)
    # Phi(1/(2z) - eps z) <= exp(-(eps z - 1/(2z))^2 / 2) is at most delta at this epsilon.
    tail = np.sqrt(np.maximum(-2 * log_delta, 0.0))
    high = (tail + 0.5 / noise_multiplier) / noise_multiplier
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        enough = gaussian_log_delta(noise_multiplier, middle) <= log_delta
        low = np.where(enough, low, middle)
        high = np.where(enough, middle, high)
    at_zero = gaussian_log_delta(noise_multiplier, np.zeros(deltas.shape))
    return np.where(at_zero <= log_delta, 0.0, high)


def rdp_to_epsilon(orders: Array, rdp: Array, delta: float) -> float:
    """Convert Renyi divergences to the smallest epsilon any of the orders gives at ``delta``.

        eps = RDP(a) + log((a-1)/a) - log(delta a) / (a-1)
        eps = 0                                              if sqrt(1 - e^{-RDP(a)}) <= delta

    References: Canonne, Kamath and Steinke (2020), arXiv 2004.00010v4, Proposition 12; the second
    bound is that of Bretagnolle and Huber on the total variation distance.

    >>> orders = np.arange(2.0, 64.0)
    >>> round(rdp_to_epsilon(orders, orders / 2, 1e-5), 4)
    4.7527
    """
    # expm1 keeps the comparison exact for divergences far below 1e-16.
    squared_distance = -np.expm1(-rdp)
    if np.any(squared_distance <= delta**2):
        return 0.0
    log_share = np.log1p(-1 / orders)
    penalty = np.log(delta * orders) / (orders - 1)
    candidates = rdp + log_share - penalty
    return max(0.0, float(candidates.min()))


def zcdp_to_epsilon(rho: float, delta: float) -> float:
    """Convert rho-zCDP (all orders) to epsilon at ``delta`` by the best real order.

    Edge cases: infinite rho gives infinity, zero gives 0.

    References: Canonne, Kamath and Steinke (2020), arXiv 2004.00010v4, Proposition 12 with
    RDP(a) = rho a.

    >>> round(zcdp_to_epsilon(1.0, 1e-5), 4)
    7.0772
    """
    if rho == 0 or math.isinf(rho):
        return rho
    # The best order of the simpler conversion is 1 + sqrt(log(1/delta)/rho); this one's is near.
    log_inverse = math.log(1 / delta)
    centre = math.sqrt(log_inverse / rho)
    factors = np.geomspace(1e-2, 1e2, 4001)
    orders = 1 + centre * factors
    return rdp_to_epsilon(orders, rho * orders, delta)


def amplify(epsilon: Array, sampling_prob: float) -> Array:
    """Return the epsilon of a mechanism on a sample, log(1 + q (e^eps - 1)).

    Its delta becomes q delta. Holds for Poisson sampling under add-or-remove, and for fixed-size
    sampling without replacement under replace-one with q = batch / examples.

    References: Balle, Barthe and Gaboardi (2018), arXiv 1807.01647v2, Theorems 8 and 9.

    >>> float(amplify(np.array(1.0), 0.01).round(6))
    0.017037
    """
    # log(1 - q + q e^eps) without overflow for large epsilon.
    unsampled = (1 - sampling_prob) * np.exp(-epsilon)
    large = epsilon + np.log(sampling_prob + unsampled)
    with np.errstate(over="ignore"):
        growth = sampling_prob * np.expm1(epsilon)
        small = np.log1p(growth)
    return np.where(epsilon > 1, large, small)


def advanced_composition(
    parts: Sequence[tuple[float | Array, float]], slack: float | Array
) -> Array:
    """Return the total epsilon of releases of several kinds, with delta slack ``slack``.

        sqrt(2 log(1/slack) sum_i k_i eps_i^2) + sum_i k_i eps_i (e^eps_i - 1)

    for k_i releases of eps_i each.

    References: Dwork and Roth (2014), The Algorithmic Foundations of Differential Privacy, Theorem
    3.20 for one kind; its proof (Azuma's inequality on a sum of losses, each of at most eps_i and
    of mean at most eps_i (e^eps_i - 1)) gives this form for several.

    Args:
        parts: pairs of an epsilon (or an array, one entry per slack) and how many releases have it.
        slack: the delta that composition itself costs, in (0, 1).

    >>> float(advanced_composition([(0.1, 100)], 1e-5).round(5))
    5.85024
    """
    squares: Array = np.zeros(np.shape(slack))
    drift: Array = np.zeros(np.shape(slack))
    for epsilon, count in parts:
        with np.errstate(over="ignore"):
            squares = squares + count * np.square(epsilon)
            mean_loss = count * epsilon * np.expm1(epsilon)
            drift = drift + mean_loss
    deviation = np.sqrt(-2 * np.log(slack) * squares)
    return deviation + drift
