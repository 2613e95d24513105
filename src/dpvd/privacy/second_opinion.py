"""ε computed a second time, by other means: for those who check an account, not for making one.

The privacy loss of a step is put on a grid by keeping its mean, composed by the fast Fourier
transform, and read off. Nothing is shared with the accountants but the description of the steps: a
mistake in one of them shows as a difference. It is an estimate from two sides, not a bound.

References: Koskela, Jälkö and Honkela (2020), arXiv 1906.03049v2, for composition by the transform.
"""

import math
from collections.abc import Mapping

import numpy as np
from dp_accounting import DpEvent
from scipy.fft import irfft, rfft
from scipy.special import ndtr

from dpvd.errors import in_unit_interval
from dpvd.privacy.bounds import Array
from dpvd.privacy.enums import Relation, SamplingKind
from dpvd.privacy.events import Step, count_steps

__all__ = ["second_opinion"]

_CELLS = 1 << 16  # of noise, for one step
_REACH = 14.0  # standard deviations: of the noise of a step, and of the loss of all of them
_MOST_POINTS = 1 << 22
_MOST_CELLS = 2**62  # of the grid, between a loss and the mean: whole numbers end there
_POINTS_PER_DEVIATION = 40.0


def second_opinion(
    event: DpEvent, delta: float, relation: Relation = Relation.ADD_OR_REMOVE
) -> float:
    """An estimate of ε at ``delta``, typically within 0.2 % of the exact value.

    Edge cases: no step at all costs 0; a step without noise costs an infinite ε. For batches of a
    fixed size it is that of the pairs which are known to occur, and so may lie below the bound of
    the account.

    Args:
        event: steps with Gaussian noise, on samples or not.
        delta: in (0, 1).
        relation: which data sets count as neighbours.

    >>> from dpvd.privacy import poisson_event
    >>> round(second_opinion(poisson_event(1.0, 0.01, 1000), 1e-5), 2)
    1.83
    """
    in_unit_interval(delta=delta)
    steps = count_steps(event)
    if not steps:
        return 0.0
    if any(step.noise_multiplier == 0 for step in steps):
        return math.inf
    orders = (False, True) if relation is Relation.ADD_OR_REMOVE else (False,)
    return max(_epsilon(steps, delta, relation, swapped) for swapped in orders)


def _epsilon(steps: Mapping[Step, int], delta: float, relation: Relation, swapped: bool) -> float:
    """ε of one order of the pair."""
    losses = {step: _losses(step, relation, swapped) for step in steps}
    mean = 0.0
    variance = 0.0
    narrowest = math.inf
    for step, count in steps.items():
        values, masses = losses[step]
        step_mean = float(masses @ values)
        step_variance = float(masses @ (values - step_mean) ** 2)
        mean += count * step_mean
        variance += count * step_variance
        narrowest = min(narrowest, math.sqrt(step_variance))
    spread = math.sqrt(variance)
    highest = max(float(values.max()) for values, _ in losses.values())
    half = max(_REACH * spread, 3 * highest)  # around the mean of the sum
    spacing = max(narrowest / _POINTS_PER_DEVIATION, 2 * half / _MOST_POINTS)
    points = 1 << math.ceil(math.log2(2 * half / spacing))
    spectrum = np.ones(points // 2 + 1, dtype=np.complex128)
    for step, count in steps.items():
        values, masses = losses[step]
        # Each step around its own mean: the sum then stays around 0, where the window is.
        centred = values - float(masses @ values)
        if not float(np.abs(centred).max()) < _MOST_CELLS * spacing:  # of numbers beyond reason
            return math.inf
        spectrum *= rfft(_on_grid(centred, masses, spacing, points)) ** count
    composed = np.maximum(irfft(spectrum, points), 0.0)
    masses = np.fft.fftshift(composed)  # from the order 0, 1, ..., -2, -1
    places = np.arange(points, dtype=np.float64) - points // 2
    return _read_off(mean + spacing * places, masses, delta)


def _losses(step: Step, relation: Relation, swapped: bool) -> tuple[Array, Array]:
    """Privacy losses of one step and the masses that they have, for many cells of noise."""
    z = step.noise_multiplier
    q = step.sampling_prob
    means = (0.0, 1.0)
    if relation is Relation.REPLACE_ONE and step.sampling is not SamplingKind.FIXED_SIZE:
        means = (-0.5, 0.5)
    edges = np.linspace(-_REACH * z - 1, _REACH * z + 1, _CELLS + 1)
    middles = (edges[:-1] + edges[1:]) / 2

    def mixture(mean: float) -> tuple[Array, Array]:
        """Cell masses and log densities, up to what both sides share, of (1-q) N(0) + q N(mean)."""
        cdf = (1 - q) * ndtr(edges / z) + q * ndtr((edges - mean) / z)
        ratio = math.log(q) + (2 * middles * mean - mean**2) / (2 * z**2)
        rest = math.log1p(-q) if q < 1 else -math.inf
        return np.diff(cdf), np.logaddexp(rest, ratio)

    low, high = means
    one = mixture(high)
    other = mixture(low) if low else (np.diff(ndtr(edges / z)), np.zeros(_CELLS))
    upper, lower = (other, one) if swapped else (one, other)
    masses = upper[0] / upper[0].sum()
    return upper[1] - lower[1], masses


def _on_grid(values: Array, masses: Array, spacing: float, points: int) -> Array:
    """Each mass on the two grid points around its value, so that its mean is kept."""
    scaled = values / spacing
    below = np.floor(scaled)
    share = scaled - below
    place = below.astype(np.int64)
    grid = np.zeros(points)
    np.add.at(grid, place % points, masses * (1 - share))
    np.add.at(grid, (place + 1) % points, masses * share)
    return grid


def _read_off(losses: Array, masses: Array, delta: float) -> float:
    """Where δ(ε) = Σ_{l > ε} (1 - e^{ε-l}) p(l) falls to ``delta``."""

    def spent(epsilon: float) -> float:
        above = losses > epsilon
        shares = -np.expm1(epsilon - losses[above])
        return float(masses[above] @ shares)

    if spent(0.0) <= delta:
        return 0.0
    low = 0.0
    high = float(losses.max())
    for _ in range(60):
        middle = (low + high) / 2
        if spent(middle) > delta:
            low = middle
        else:
            high = middle
    return high
