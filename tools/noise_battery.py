"""Test the draws that privacy noise is made of: a billion of them, in two streams.

    python -m tools.noise_battery --draws 1000000000

Every test gives a p-value, none of which is told smaller than it is. The battery fails if the least
of them, times their number, is below one in a million.

References: Anderson and Darling (1954), "A test of goodness of fit", for the law of A².
"""

import argparse
import sys
import time
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.special import ndtr

from dpvd.mechanisms import SystemBits, standard_normal

__all__ = ["ALARM", "Battery", "least"]

ALARM = 1e-6
_CHUNK = 1 << 19  # draws of one stream at a time
_BINS = 1 << 16  # of equal probability
_TAILS = (2.0, 3.0, 4.0, 4.5, 5.0)
_LAGS = (1, 2, 3, 7)
_MOMENTS = {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96)}  # order: mean, variance of the power
_TERMS = np.arange(1, 20_001, dtype=np.float64)

Array = npt.NDArray[np.float64]


class Battery:
    """Sums and counts of two streams of draws, and the p-values that follow from them."""

    def __init__(self) -> None:
        self.count = 0  # draws of both streams
        self._bins = np.zeros(_BINS, dtype=np.int64)
        self._beyond = dict.fromkeys(_TAILS, 0)
        self._powers = dict.fromkeys(_MOMENTS, 0.0)
        self._products: dict[str, tuple[float, float]] = {}

    def add(self, first: Array, second: Array) -> None:
        """Take in as many draws of either stream, [n] and [n]."""
        for stream in (first, second):
            self.count += len(stream)
            bins = np.minimum((ndtr(stream) * _BINS).astype(np.int64), _BINS - 1)
            self._bins += np.bincount(bins, minlength=_BINS)
            sizes = np.abs(stream)
            for threshold in _TAILS:
                self._beyond[threshold] += int((sizes > threshold).sum())
            power = np.ones_like(stream)
            for order, (mean, _) in _MOMENTS.items():
                power *= stream
                self._powers[order] += float((power - mean).sum())
            for lag in _LAGS:
                self._add_product(f"correlation at lag {lag}", stream[:-lag], stream[lag:])
        self._add_product("correlation of the streams", first, second)
        squares = [(np.square(stream) - 1) / np.sqrt(2) for stream in (first, second)]
        self._add_product("squares of the streams", *squares)

    def p_values(self) -> dict[str, float]:
        """By the name of the test, how likely such a deviation or a larger one is."""
        found = {}
        for order, (_, variance) in _MOMENTS.items():
            found[f"moment {order}"] = _two_sided(
                self._powers[order] / np.sqrt(variance * self.count)
            )
        for threshold, beyond in self._beyond.items():
            law = stats.binom(self.count, 2 * ndtr(-threshold))
            one_sided = min(law.cdf(beyond), law.sf(beyond - 1))
            found[f"beyond {threshold:g} deviations"] = min(1.0, 2 * float(one_sided))
        found["Kolmogorov and Smirnov"], found["Anderson and Darling"] = self._of_distribution()
        for name, (total, number) in self._products.items():
            found[name] = _two_sided(total / np.sqrt(number))
        return found

    def _add_product(self, name: str, first: Array, second: Array) -> None:
        total, number = self._products.get(name, (0.0, 0.0))
        self._products[name] = (total + float(first @ second), number + len(first))

    def _of_distribution(self) -> tuple[float, float]:
        """Of the largest and of the weighted mean square distance between distribution functions.

        Looked at between bins only, the largest distance is no larger than it is everywhere.
        """
        expected = np.arange(1, _BINS) / _BINS
        distance = np.cumsum(self._bins)[:-1] / self.count - expected
        largest = np.abs(distance).max() * np.sqrt(self.count)
        weighted = self.count * np.mean(np.square(distance) / (expected * (1 - expected)))
        return float(stats.kstwobign.sf(largest)), _anderson_darling(float(weighted))


def least(p_values: dict[str, float]) -> float:
    """The least p-value, corrected for their number."""
    return min(1.0, min(p_values.values()) * len(p_values))


def _two_sided(score: float) -> float:
    return float(2 * stats.norm.sf(abs(score)))


def _anderson_darling(statistic: float) -> float:
    """Chernoff's bound on P(A² > a), where A² = sum of χ²(1) / (j (j + 1)), j = 1, 2, ..."""
    tilts, logs = _log_generating()
    return float(np.exp(min(0.0, (logs - tilts * statistic).min())))


@lru_cache(1)
def _log_generating() -> tuple[Array, Array]:
    """Tilts t, and the logarithm of the mean of exp(t A²) for each."""
    tilts = np.linspace(0.01, 0.99, 99)
    logs = -0.5 * np.log1p(-2 * tilts[:, None] / (_TERMS * (_TERMS + 1))).sum(axis=1)
    return tilts, logs + 1.01 * tilts / _TERMS[-1]  # for the terms that were left out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=1_000_000_000)
    wanted = parser.parse_args().draws
    battery = Battery()
    streams = SystemBits(), SystemBits()
    started = time.monotonic()
    while battery.count < wanted:
        battery.add(*(standard_normal(_CHUNK, bits).double().numpy() for bits in streams))
    found = battery.p_values()
    for name, value in found.items():
        print(f"{name:28} {value:.4g}")
    seconds = time.monotonic() - started
    print(f"{battery.count:,} draws in {seconds:.0f} s; least p, corrected: {least(found):.4g}")
    if least(found) < ALARM:
        sys.exit("the draws are not standard normal, or not independent")


if __name__ == "__main__":
    main()
