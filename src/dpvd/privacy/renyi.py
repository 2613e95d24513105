"""Renyi divergences of one Gaussian release, on all the data or on a sample of it.

All sums and integrals here have positive terms only, so nothing cancels however small q/z is: the
usual forms lose every digit once a divergence falls below 1e-16, which many steps then multiply.
"""

import math
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp

from dpvd.privacy.bounds import Array
from dpvd.privacy.enums import SamplingKind
from dpvd.privacy.events import Step

__all__ = ["FRACTIONAL_ORDERS", "INTEGER_ORDERS", "fractional_rdp", "integer_rdp"]

# Above 64 the integer orders thin out: only tiny epsilons of very noisy plans are decided there.
INTEGER_ORDERS: Array = np.unique(
    np.concatenate([np.arange(2, 65), np.geomspace(64, 2048, 48).round()])
)
# The best order is below 11 where epsilon is large, and then its fraction matters.
FRACTIONAL_ORDERS: Array = np.array([1 + tenth / 10 for tenth in range(1, 100) if tenth % 10])

# Time and memory grow with its square; higher orders are skipped.
_HIGHEST_FIXED_SIZE_ORDER = 256
# With less noise quadrature would need long arrays; epsilon is vast there, and coarser bounds do.
_LEAST_NOISE = 0.2
# Standard deviations that quadrature covers on either side; beyond lies less than 1e-32.
_TAIL = 12.0
# Of quadrature points; the trapezoidal rule on Gaussian integrands is exact to 1e-15.
_SPACING = 1 / 20


@lru_cache(maxsize=256)
def integer_rdp(step: Step) -> Array:
    """Return the Renyi divergence of one step at each of ``INTEGER_ORDERS``.

    Edge cases: infinite where it is not computed (fixed-size samples, orders above 256).
    """
    z = step.noise_multiplier
    q = step.sampling_prob
    if q == 1:
        return INTEGER_ORDERS / (2 * z**2)
    if step.sampling is SamplingKind.POISSON:
        return _poisson_integer(z, q)
    return _fixed_size_integer(z, q)


@lru_cache(maxsize=256)
def fractional_rdp(step: Step) -> Array:
    """Return the Renyi divergence of one step, or a bound, at each of ``FRACTIONAL_ORDERS``."""
    z = step.noise_multiplier
    q = step.sampling_prob
    if q == 1:
        return FRACTIONAL_ORDERS / (2 * z**2)
    if step.sampling is SamplingKind.POISSON and z >= _LEAST_NOISE:
        return _poisson_fractional(z, q)
    return _between_orders(integer_rdp(step))


def _poisson_integer(noise_multiplier: float, sampling_prob: float) -> Array:
    """Poisson sampling, add-or-remove, integer orders.

    RDP(a) = log(1 + sum_{k=2..a} C(a,k) q^k (1-q)^(a-k) (e^{(k^2-k)/2z^2} - 1)) / (a - 1)

    References: Mironov, Talwar and Zhang (2019), arXiv 1908.10530v1, Section 3.3; the "- 1" takes
    the leading 1 = sum C(a,k) q^k (1-q)^(a-k) out of the sum.
    """
    a, k, log_binomial = _binomial_table()
    log_in = math.log(sampling_prob)
    log_out = math.log1p(-sampling_prob)
    growth = (k * k - k) / (2 * noise_multiplier**2)
    log_terms = log_binomial + a * log_out  # [orders, k]
    log_terms += k * (log_in - log_out)
    log_terms += growth + np.log(-np.expm1(-growth))
    log_moments = _log_one_plus_sum(log_terms)
    return log_moments / (INTEGER_ORDERS - 1)


def _poisson_fractional(noise_multiplier: float, sampling_prob: float) -> Array:
    """Poisson sampling, add-or-remove, fractional orders, by quadrature.

        RDP(a) = log(1 + E[w^a - 1 - a (w - 1)]) / (a - 1)
        w = 1 - q + q e^{x/z - 1/2z^2},  x ~ N(0, 1)

    References: Mironov, Talwar and Zhang (2019), arXiv 1908.10530v1, Theorem 4; E[w] = 1, and the
    integrand is positive because powers above 1 are convex.
    """
    reach = FRACTIONAL_ORDERS[-1] / noise_multiplier
    x, log_weight = _quadrature(reach, min(1.0, noise_multiplier))
    log_ratio = x / noise_multiplier - 0.5 / noise_multiplier**2
    log_out = math.log1p(-sampling_prob)
    log_in = math.log(sampling_prob) + log_ratio
    log_w = np.logaddexp(log_out, log_in)  # [points]
    log_gap = _log_convex_gap(FRACTIONAL_ORDERS[:, None], log_w)  # [orders, points]
    log_moments = _log_one_plus_sum(log_gap + log_weight)
    return log_moments / (FRACTIONAL_ORDERS - 1)


def _log_convex_gap(a: Array, log_w: Array) -> Array:
    """Return log(w^a - 1 - a (w - 1)) for w > 0, accurately near w = 1 and without overflow."""
    # Near w = 1, for |u| < 1e-3, the Taylor series: terms from u^7 on are below 1e-12 for a < 11.
    u = np.expm1(np.minimum(log_w, 1.0))
    series = 1 + (a - 5) / 6 * u
    series = 1 + (a - 4) / 5 * u * series
    series = 1 + (a - 3) / 4 * u * series
    series = 1 + (a - 2) / 3 * u * series
    series = a * (a - 1) / 2 * u**2 * series
    # Below 1 as it stands: w^a + (a - 1) - a w.
    under = np.minimum(log_w, 0.0)
    power = np.exp(a * under)
    below = power + (a - 1) - a * np.exp(under)
    # Above 1 with the largest term, w^a, taken out.
    over = np.maximum(log_w, 5e-4)
    constant = (a - 1) * np.exp(-a * over)
    linear = a * np.exp((1 - a) * over)
    above = a * over + np.log1p(constant - linear)
    with np.errstate(divide="ignore"):
        log_below = np.log(np.maximum(below, 0.0))
        log_series = np.log(series)
    exact = np.where(log_w > 0, above, log_below)
    return np.where(np.abs(u) < 1e-3, log_series, exact)


def _fixed_size_integer(noise_multiplier: float, sampling_prob: float) -> Array:
    """Fixed-size sampling without replacement, replace-one, integer orders (a bound).

        RDP(a) <= log(1 + sum_{j=2..a} C(a,j) q^j m_j) / (a - 1)
        m_j = min(4 sqrt(B(j') B(j'')), 2 e^{j(j-1)/2z^2})

    with j', j'' the even numbers next to j (both j itself if even) and B(l) the l-th central moment
    of the likelihood ratio e^{x/z - 1/2z^2}, x ~ N(0, 1).

    References: Wang, Balle and Kasiviswanathan (2019), arXiv 1808.00087v2, Theorem 27.
    """
    orders = INTEGER_ORDERS[INTEGER_ORDERS <= _HIGHEST_FIXED_SIZE_ORDER]
    highest = int(orders[-1])
    j = np.arange(2, highest + 1)
    log_bound = math.log(2) + j * (j - 1) / (2 * noise_multiplier**2)
    if noise_multiplier >= _LEAST_NOISE:
        moments = _log_even_central_moments(noise_multiplier, highest + 1)
        below = moments[j // 2]
        above = moments[(j + 1) // 2]
        log_bound = np.minimum(log_bound, math.log(4) + 0.5 * (below + above))
    a = orders[:, None]
    log_binomial = _log_binomial(a, j.astype(np.float64))
    log_terms = log_binomial + j * math.log(sampling_prob) + log_bound  # [orders, j]
    log_terms = np.where(j <= a, log_terms, -np.inf)
    rdp = np.full(INTEGER_ORDERS.shape, np.inf)
    rdp[: len(orders)] = _log_one_plus_sum(log_terms) / (orders - 1)
    return rdp


def _log_even_central_moments(noise_multiplier: float, highest: int) -> Array:
    """Return log E[(e^{x/z - 1/2z^2} - 1)^l] for l = 0, 2, 4, ... up to at least ``highest``."""
    even = np.arange(0, highest + 2, 2)[:, None]
    reach = float(even[-1, 0]) / noise_multiplier
    x, log_weight = _quadrature(reach, 1.0)
    log_ratio = x / noise_multiplier - 0.5 / noise_multiplier**2
    # log |e^r - 1| = max(r, 0) + log(1 - e^-|r|)
    with np.errstate(divide="ignore"):
        log_rest = np.log(-np.expm1(-np.abs(log_ratio)))
    log_gap = np.maximum(log_ratio, 0.0) + log_rest
    log_gap = np.maximum(log_gap, -1e6)  # a point that hits r = 0 exactly must not make 0 * inf
    log_terms = even * log_gap + log_weight  # [moments, points]
    moments: Array = logsumexp(log_terms, axis=1)
    return moments


def _between_orders(rdp: Array) -> Array:
    """Bound the divergence at fractional orders: a -> (a - 1) RDP(a) is convex, and 0 at 1.

    References: Wang, Balle and Kasiviswanathan (2019), arXiv 1808.00087v2, Corollary 10.
    """
    orders = np.concatenate([[1.0], INTEGER_ORDERS])
    cumulants = np.concatenate([[0.0], (INTEGER_ORDERS - 1) * rdp])
    between = np.interp(FRACTIONAL_ORDERS, orders, cumulants)
    bound: Array = between / (FRACTIONAL_ORDERS - 1)
    return bound


def _quadrature(reach: float, fineness: float) -> tuple[Array, Array]:
    """Return points and log weights for E[f(x)], x ~ N(0, 1), f growing at most like e^{reach x}.

    Both are of shape [points].
    """
    spacing = _SPACING * fineness
    x = np.arange(-_TAIL, reach + _TAIL, spacing)
    root = math.sqrt(2 * math.pi)
    log_weight = -0.5 * x * x + math.log(spacing / root)
    return x, log_weight


@lru_cache(maxsize=1)
def _binomial_table() -> tuple[Array, Array, Array]:
    """Return orders a [orders, 1], k = 2, 3, ... [k], and log C(a, k), -inf for k > a."""
    a = INTEGER_ORDERS[:, None]
    k = np.arange(2, INTEGER_ORDERS[-1] + 1)
    log_binomial = _log_binomial(a, k)
    return a, k, np.where(k <= a, log_binomial, -np.inf)


def _log_binomial(n: Array, k: Array) -> Array:
    rest = np.maximum(n - k, 0)
    log_chosen = gammaln(k + 1)
    log_rest = gammaln(rest + 1)
    coefficient: Array = gammaln(n + 1) - log_chosen - log_rest
    return coefficient


def _log_one_plus_sum(log_terms: Array) -> Array:
    """Return log(1 + sum of e^term) over the last axis."""
    log_sum = logsumexp(log_terms, axis=-1)
    total: Array = np.logaddexp(0.0, log_sum)
    return total
