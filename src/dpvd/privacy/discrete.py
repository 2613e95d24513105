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
_HIGHEST_TILT = (
    1e3  # in inverse standard deviations; the best tilt is looked for from 1e-7 of the highest one
)
_REACHES = (0.25, 0.5, 1.0, 2.0, 4.0)  # further tilts that are tried to bound the tails


class GridTooFine(Exception):
    """The composition spans more than ``MOST_CELLS`` grid points."""


@dataclass(frozen=True, eq=False)
class LossGrid:
    """The privacy loss of one step: ``probs[i]`` at loss ``(first + i) * spacing``, the rest
    infinite.
    """

    spacing: float
    first: int
    probs: Array
    infinite: float

    @cached_property
    def losses(self) -> Array:
        return self.spacing * (self.first + np.arange(len(self.probs), dtype=np.float64))

    @cached_property
    def log_probs(self) -> Array:
        with np.errstate(divide="ignore"):
            return np.log(self.probs)

    def log_tilted(self, tilt: float) -> Array:
        """Return the logarithms of p(x) e^{tilt x}."""
        return self.log_probs + tilt * self.losses


def loss_grid(
    profile: Callable[[Array], Array],
    reverse: Callable[[Array], Array],
    spacing: float,
    *,
    highest: float,
    lowest: float,
) -> LossGrid:
    """Return losses on multiples of ``spacing`` whose profile is the given one at grid points, and
    above it between.

    Losses above 0 follow from the profile, those below from the profile of the reversed pair: a
    mass m at loss x of that is a mass m e^{-x} at loss -x of this. So both sides are made of small
    numbers, which double precision holds to its last digit; what is left of 1 is the mass at loss
    0, so nothing is lost however many steps follow.

    Args:
        profile: delta at each epsilon >= 0 of the pair that dominates the step.
        reverse: the same for the two distributions in reversed order.
        spacing: distance of grid points.
        highest: loss above which all mass counts as infinite, at least 0.
        lowest: loss below which all mass counts as this one, at most 0.
    """
    above, infinite = _half(profile, spacing, highest)
    mirrored, _ = _half(reverse, spacing, -lowest)
    below = mirrored * np.exp(-spacing * np.arange(1, len(mirrored) + 1))
    zero = max(0.0, 1.0 - infinite - float(above.sum()) - float(below.sum()))
    return LossGrid(spacing, -len(below), np.concatenate([below[::-1], [zero], above]), infinite)


def _half(profile: Callable[[Array], Array], spacing: float, reach: float) -> tuple[Array, float]:
    """Return the masses at spacing, 2 spacing, ... and what lies beyond ``reach``.

    p_k = ((d_{k+1} - d_k) - e^h (d_k - d_{k-1})) / (e^h - 1), and for the last one (d_{k-1} - d_k)
    / (1 - e^-h).
    """
    points = max(1, math.ceil(reach / spacing))
    deltas = np.minimum.accumulate(
        np.clip(profile(spacing * np.arange(points + 1, dtype=np.float64)), 0.0, 1.0)
    )
    falls = -np.diff(deltas)
    masses = np.empty(points)
    masses[:-1] = (falls[:-1] * math.exp(spacing) - falls[1:]) / math.expm1(spacing)
    masses[-1] = falls[-1] / -math.expm1(-spacing)
    return np.maximum(masses, 0.0), float(deltas[-1])


def composed_epsilon(parts: Sequence[tuple[LossGrid, int]], delta: float) -> float:
    """Return the epsilon at ``delta`` of all parts together, each taken so many times.

    Guarantees: an upper bound on the epsilon of the composed grid losses: mass beyond the window of
        the transform
    counts in full, what wraps around only adds, and rounding is charged.

    Args:
        parts: losses on one and the same spacing, and how often each occurs, at least once.
        delta: in (0, 1).

    Raises:
        GridTooFine: if the window would have more than ``MOST_CELLS`` points.
    """
    infinite = -math.expm1(sum(count * math.log1p(-part.infinite) for part, count in parts))
    left = delta - infinite
    if left <= 0:
        return math.inf
    window = _window(parts, _best_tilt(parts, left))
    left -= window.truncated
    if left <= 0:
        return math.inf
    return max(0.0, _epsilon_in(window, _tilted_probs(parts, window), left))


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
    """Return the λ of the best Chernoff bound, (log M(λ) + log 1/delta) / λ: the tilted mean is
    that bound.
    """
    spread = math.sqrt(sum(count * _variance(part, 0.0) for part, count in parts))
    # Neighbours on the grid must not differ by more than e under the tilt, or sums over them would
    # underflow.
    highest = min(1 / parts[0][0].spacing, _HIGHEST_TILT / spread if spread > 0 else math.inf)

    def bound(log_tilt: float) -> float:
        tilt = highest * math.exp(log_tilt)
        return (_log_mgf(parts, tilt) - math.log(delta)) / tilt

    best = minimize_scalar(
        bound, bounds=(math.log(1e-7), 0.0), method="bounded", options={"xatol": 1e-3}
    ).x
    return highest * math.exp(best)


def _window(parts: Sequence[tuple[LossGrid, int]], tilt: float) -> _Window:
    """Choose the window by Chernoff bounds on the tails of the tilted composition."""
    spacing = parts[0][0].spacing
    log_mass = _log_mgf(parts, tilt)
    spread = math.sqrt(sum(count * _variance(part, tilt) for part, count in parts))
    lowest = spacing * sum(count * part.first for part, count in parts)
    highest = spacing * sum(count * (part.first + len(part.probs) - 1) for part, count in parts)
    for reach in _REACHES if spread > 0 else ():
        further = reach * math.sqrt(-2 * math.log(_TAIL)) / spread
        highest = min(
            highest, (_log_mgf(parts, tilt + further) - log_mass - math.log(_TAIL)) / further
        )
        lowest = max(
            lowest, (log_mass - _log_mgf(parts, tilt - further) + math.log(_TAIL)) / further
        )
    first, last = math.floor(lowest / spacing), math.ceil(highest / spacing)
    if last - first > MOST_CELLS:
        raise GridTooFine
    # P(x > U) = E_tilted[M e^{-λx}; x > U] <= M e^{-λU} P_tilted(x > U)
    truncated = math.exp(min(0.0, log_mass - tilt * last * spacing)) * _TAIL
    return _Window(spacing, tilt, log_mass, first, last - first + 1, truncated)


def _tilted_probs(parts: Sequence[tuple[LossGrid, int]], window: _Window) -> Array:
    """Return the probabilities of the tilted composition in the window, never too small."""
    size = next_fast_len(max(window.cells, *(len(part.probs) for part, _ in parts)), real=True)
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    start = 0
    for part, count in parts:
        log_probs = part.log_tilted(window.tilt)
        probs = np.exp(log_probs - _log_sum(log_probs))
        # Around its own mean a step hardly turns the phases, so that powers of them keep their
        # digits.
        middle = round(float(probs @ np.arange(len(probs))))
        spectrum *= rfft(np.roll(np.pad(probs, (0, size - len(probs))), -middle)) ** count
        start += count * (part.first + middle)
    probs = np.roll(irfft(spectrum, size), (start - window.first) % size)[: window.cells]
    rounding = _ROUNDING * (size + sum(count for _, count in parts))
    inflated: Array = np.maximum(probs, 0.0) * (1 + rounding) + rounding / 100 * probs.max()
    return inflated


def _epsilon_in(window: _Window, probs: Array, delta: float) -> float:
    """Return where the profile of the tilted probabilities, tilted back, falls to ``delta``.

    With S(r) = sum_{i>j} probs_i e^{-r (x_i - x_j)}, delta(x_j) = M e^{-λ x_j} (S(λ) - S(λ+1));
    between grid points delta(x_j + t) = M e^{-λ x_j} (S(λ) - e^t S(λ+1)).
    """
    plain, weighted = (
        _suffix_sums(probs, window.spacing * rate) for rate in (window.tilt, window.tilt + 1)
    )
    points = window.spacing * (window.first + np.arange(window.cells, dtype=np.float64))
    with np.errstate(divide="ignore"):
        log_deltas = (
            window.log_mass - window.tilt * points + np.log(np.maximum(plain - weighted, 0.0))
        )
    too_large = np.flatnonzero(log_deltas > math.log(delta))
    if len(too_large) == 0:
        return float(points[0])
    last = int(too_large[-1])
    scaled = delta * math.exp(min(700.0, window.tilt * points[last] - window.log_mass))
    return float(points[last] + math.log((plain[last] - scaled) / weighted[last]))


def _suffix_sums(probs: Array, decay: float) -> Array:
    """Return sum_{i>j} probs_i e^{-decay (i-j)} for every j."""
    ratio = math.exp(-decay)
    sums: Array = np.zeros_like(probs)
    sums[:-1] = ratio * lfilter([1.0], [1.0, -ratio], probs[::-1])[::-1][1:]
    return sums


def _log_mgf(parts: Sequence[tuple[LossGrid, int]], tilt: float) -> float:
    return sum(count * _log_sum(part.log_tilted(tilt)) for part, count in parts)


def _variance(part: LossGrid, tilt: float) -> float:
    """Return the variance of one step's tilted loss."""
    log_probs = part.log_tilted(tilt)
    probs = np.exp(log_probs - _log_sum(log_probs))
    mean = float(probs @ part.losses)
    return float(probs @ (part.losses - mean) ** 2)


def _log_sum(log_terms: Array) -> float:
    top = float(log_terms.max())
    return top + math.log(float(np.exp(log_terms - top).sum()))
