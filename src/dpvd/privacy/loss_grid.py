"""Privacy losses on a grid: one step's, and those of very many steps together.

A step's profile is put on a grid by connecting the dots, which is exact at grid points and on the
safe side between them. Steps are composed by the fast Fourier transform of a *tilted* distribution,
p(x) e^{λx} / M(λ), whose bulk lies where the answer is: the probabilities that decide about a delta
of 1e-10 are then as accurate as those around the mean, for ten million steps as for ten.

References: Doroshenko et al. (2022), arXiv 2207.04380v1, Algorithm 1, for the grid. Tilting is the
change of measure behind the Chernoff bound (Cramér 1938).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import minimize_scalar
from scipy.signal import lfilter

from dpvd.privacy.bounds import Array

__all__ = ["MOST_CELLS", "GridTooFine", "LossGrid", "composed_epsilon", "loss_grid"]

MOST_CELLS = 2**21
"""Grid points that a composition may span."""

_TAIL = 1e-12  # of the tilted distribution, left out above and charged in full
_ROUNDING = 1e-15  # bound on what floating point adds to a relative error with every step
# In inverse standard deviations; the best tilt is looked for from 1e-7 of the highest one.
_HIGHEST_TILT = 1e3
_REACHES = (0.25, 0.5, 1.0, 2.0, 4.0)  # further tilts that are tried to bound the tails


class GridTooFine(Exception):
    """The composition spans more than ``MOST_CELLS`` grid points."""


@dataclass(frozen=True, eq=False)
class LossGrid:
    """The privacy loss of one step: ``probs[i]`` at loss ``(first + i) * spacing``.

    What is missing from 1 is ``infinite``: mass at an infinite loss.
    """

    spacing: float
    first: int
    probs: Array
    infinite: float

    @cached_property
    def losses(self) -> Array:
        places = np.arange(len(self.probs), dtype=np.float64)
        return self.spacing * (self.first + places)

    @cached_property
    def log_probs(self) -> Array:
        with np.errstate(divide="ignore"):
            return np.log(self.probs)

    def log_tilted(self, tilt: float) -> Array:
        """Return the logarithms of p(x) e^{tilt x}."""
        exponents = tilt * self.losses
        return self.log_probs + exponents


def loss_grid(
    profile: Callable[[Array], Array],
    reverse: Callable[[Array], Array],
    spacing: float,
    *,
    highest: float,
    lowest: float,
) -> LossGrid:
    """Return losses on multiples of ``spacing`` whose profile is never below the given one.

    At grid points the two are equal. Losses above 0 follow from the profile, those below from the
    profile of the reversed pair: a mass m at loss x of that is a mass m e^{-x} at loss -x of this.
    So both sides are made of small numbers, which double precision holds to its last digit; what is
    left of 1 is the mass at loss 0, so nothing is lost however many steps follow.

    Args:
        profile: delta at each epsilon >= 0 of the pair that dominates the step.
        reverse: the same for the two distributions in reversed order.
        spacing: distance of grid points.
        highest: loss above which all mass counts as infinite, at least 0.
        lowest: loss below which all mass counts as this one, at most 0.
    """
    above, infinite = _half(profile, spacing, highest)
    mirrored, _ = _half(reverse, spacing, -lowest)
    losses = np.arange(1, len(mirrored) + 1)  # in units of the spacing
    below = mirrored * np.exp(-spacing * losses)
    mass_above = float(above.sum())
    mass_below = float(below.sum())
    zero = max(0.0, 1.0 - infinite - mass_above - mass_below)
    probs = np.concatenate([below[::-1], [zero], above])
    return LossGrid(spacing, -len(below), probs, infinite)


def _half(profile: Callable[[Array], Array], spacing: float, reach: float) -> tuple[Array, float]:
    """Return the masses at spacing, 2 spacing, ... and what lies beyond ``reach``.

    p_k = ((d_{k+1} - d_k) - e^h (d_k - d_{k-1})) / (e^h - 1)
    p_k = (d_{k-1} - d_k) / (1 - e^-h)                           the last one
    """
    points = max(1, math.ceil(reach / spacing))
    epsilons = spacing * np.arange(points + 1, dtype=np.float64)
    deltas = np.clip(profile(epsilons), 0.0, 1.0)
    deltas = np.minimum.accumulate(deltas)  # rounding must not let it rise
    falls = -np.diff(deltas)
    differences = falls[:-1] * math.exp(spacing) - falls[1:]
    masses = np.empty(points)
    masses[:-1] = differences / math.expm1(spacing)
    masses[-1] = falls[-1] / -math.expm1(-spacing)
    masses = np.maximum(masses, 0.0)
    return masses, float(deltas[-1])


def composed_epsilon(parts: Sequence[tuple[LossGrid, int]], delta: float) -> float:
    """Return the epsilon at ``delta`` of all parts together, each taken so many times.

    Guarantees: an upper bound on the epsilon of the composed grid losses: mass beyond the window of
    the transform counts in full, what wraps around only adds, and rounding is charged.

    Args:
        parts: losses on one and the same spacing, and how often each occurs, at least once.
        delta: in (0, 1).

    Raises:
        GridTooFine: if the window would have more than ``MOST_CELLS`` points.
    """
    log_finite = sum(count * math.log1p(-part.infinite) for part, count in parts)
    infinite = -math.expm1(log_finite)
    left = delta - infinite
    if left <= 0:
        return math.inf
    tilt = _best_tilt(parts, left)
    window = _window(parts, tilt)
    left -= window.truncated
    if left <= 0:
        return math.inf
    probs = _tilted_probs(parts, window)
    return max(0.0, _epsilon_in(window, probs, left))


@dataclass(frozen=True)
class _Window:
    """Where the tilted composition is computed: grid indices from ``first``, so many ``cells``."""

    spacing: float
    tilt: float
    log_mass: float  # sum of the log moment generating functions at the tilt
    first: int
    cells: int
    truncated: float  # mass above the window, untilted


def _best_tilt(parts: Sequence[tuple[LossGrid, int]], delta: float) -> float:
    """Return the λ of the best Chernoff bound, (log M(λ) + log 1/delta) / λ.

    The mean of the distribution that is tilted by it is that bound.
    """
    # Neighbours on the grid must not differ by more than e under the tilt, or sums over them would
    # underflow.
    highest = 1 / parts[0][0].spacing
    spread = _spread(parts, 0.0)
    if spread > 0:
        highest = min(highest, _HIGHEST_TILT / spread)

    log_delta = math.log(delta)

    def bound(log_tilt: float) -> float:
        tilt = highest * math.exp(log_tilt)
        log_mass = _log_mgf(parts, tilt)
        return (log_mass - log_delta) / tilt

    bounds = (math.log(1e-7), 0.0)
    best = minimize_scalar(bound, bounds=bounds, method="bounded", options={"xatol": 1e-3})
    return highest * math.exp(best.x)


def _window(parts: Sequence[tuple[LossGrid, int]], tilt: float) -> _Window:
    """Choose the window by Chernoff bounds on the tails of the tilted composition."""
    spacing = parts[0][0].spacing
    log_mass = _log_mgf(parts, tilt)
    lowest, highest = _support(parts)
    spread = _spread(parts, tilt)
    log_tail = math.log(_TAIL)
    deviations = math.sqrt(-2 * log_tail)  # of a normal distribution with such a tail
    for reach in _REACHES if spread > 0 else ():
        further = reach * deviations / spread
        log_mass_above = _log_mgf(parts, tilt + further)
        log_mass_below = _log_mgf(parts, tilt - further)
        highest = min(highest, (log_mass_above - log_mass - log_tail) / further)
        lowest = max(lowest, (log_mass - log_mass_below + log_tail) / further)
    first = math.floor(lowest / spacing)
    last = math.ceil(highest / spacing)
    if last - first > MOST_CELLS:
        raise GridTooFine
    # P(x > U) = E_tilted[M e^{-λx}; x > U] <= M e^{-λU} P_tilted(x > U)
    log_factor = min(0.0, log_mass - tilt * last * spacing)
    truncated = math.exp(log_factor) * _TAIL
    return _Window(spacing, tilt, log_mass, first, last - first + 1, truncated)


def _support(parts: Sequence[tuple[LossGrid, int]]) -> tuple[float, float]:
    """Return the least and the largest loss that the composition can have."""
    spacing = parts[0][0].spacing
    first = 0
    last = 0
    for part, count in parts:
        part_last = part.first + len(part.probs) - 1
        first += count * part.first
        last += count * part_last
    return spacing * first, spacing * last


def _tilted_probs(parts: Sequence[tuple[LossGrid, int]], window: _Window) -> Array:
    """Return the probabilities of the tilted composition in the window, never too small."""
    longest = max(len(part.probs) for part, _ in parts)
    size = next_fast_len(max(window.cells, longest), real=True)
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    start = 0  # the grid index of the composition's first entry
    for part, count in parts:
        probs = _tilted(part, window.tilt)
        # Around its own mean a step hardly turns the phases, so that powers of them keep their
        # digits.
        mean = float(probs @ np.arange(len(probs)))
        middle = round(mean)
        padded = np.pad(probs, (0, size - len(probs)))
        centred = np.roll(padded, -middle)
        spectrum *= rfft(centred) ** count
        start += count * (part.first + middle)
    composed = irfft(spectrum, size)
    probs = np.roll(composed, (start - window.first) % size)
    probs = probs[: window.cells]
    steps = sum(count for _, count in parts)
    rounding = _ROUNDING * (size + steps)
    relative = np.maximum(probs, 0.0) * (1 + rounding)
    absolute = rounding / 100 * probs.max()
    inflated: Array = relative + absolute
    return inflated


def _epsilon_in(window: _Window, probs: Array, delta: float) -> float:
    """Return where the profile of the tilted probabilities, tilted back, falls to ``delta``.

    With S(r) = sum_{i>j} probs_i e^{-r (x_i - x_j)}, delta(x_j) = M e^{-λ x_j} (S(λ) - S(λ+1));
    between grid points delta(x_j + t) = M e^{-λ x_j} (S(λ) - e^t S(λ+1)).
    """
    plain = _suffix_sums(probs, window.spacing * window.tilt)  # S(λ) [cells]
    weighted = _suffix_sums(probs, window.spacing * (window.tilt + 1))  # S(λ+1) [cells]
    places = np.arange(window.cells, dtype=np.float64)
    points = window.spacing * (window.first + places)
    difference = np.maximum(plain - weighted, 0.0)
    with np.errstate(divide="ignore"):
        log_difference = np.log(difference)
    log_deltas = window.log_mass - window.tilt * points + log_difference
    too_large = np.flatnonzero(log_deltas > math.log(delta))
    if len(too_large) == 0:
        return float(points[0])
    last = int(too_large[-1])
    point = points[last]
    log_scale = min(700.0, window.tilt * point - window.log_mass)  # cut against overflow
    scaled = delta * math.exp(log_scale)
    beyond = math.log((plain[last] - scaled) / weighted[last])
    return float(point + beyond)


def _suffix_sums(probs: Array, decay: float) -> Array:
    """Return sum_{i>j} probs_i e^{-decay (i-j)} for every j."""
    ratio = math.exp(-decay)
    # y_j = probs_j + ratio y_{j+1}: a recursive filter that runs backwards.
    filtered = lfilter([1.0], [1.0, -ratio], probs[::-1])
    forwards = filtered[::-1]
    sums: Array = np.zeros_like(probs)
    sums[:-1] = ratio * forwards[1:]
    return sums


def _log_mgf(parts: Sequence[tuple[LossGrid, int]], tilt: float) -> float:
    """Return the logarithm of E[e^{tilt x}], x the composed loss."""
    log_moments = [count * _log_sum(part.log_tilted(tilt)) for part, count in parts]
    return sum(log_moments)


def _spread(parts: Sequence[tuple[LossGrid, int]], tilt: float) -> float:
    """Return the standard deviation of the composed loss under the tilt."""
    variance = sum(count * _variance(part, tilt) for part, count in parts)
    return math.sqrt(variance)


def _variance(part: LossGrid, tilt: float) -> float:
    """Return the variance of one step's tilted loss."""
    probs = _tilted(part, tilt)
    mean = float(probs @ part.losses)
    deviations = part.losses - mean
    squares = deviations**2
    return float(probs @ squares)


def _tilted(part: LossGrid, tilt: float) -> Array:
    """Return the probabilities of one step's tilted loss; their sum is 1."""
    log_probs = part.log_tilted(tilt)
    log_mass = _log_sum(log_probs)
    return np.exp(log_probs - log_mass)


def _log_sum(log_terms: Array) -> float:
    top = float(log_terms.max())
    scaled = np.exp(log_terms - top)
    total = float(scaled.sum())
    return top + math.log(total)
