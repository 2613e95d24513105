"""An account that shares nothing with the library: a lower bound that no accountant may fall below."""

import math
from collections.abc import Callable

import numpy as np
from scipy.stats import norm

Mixture = list[tuple[float, float]]  # (weight, mean) of normals that share one standard deviation


def sampled(mean: float, sampling_prob: float) -> Mixture:
    return [(1 - sampling_prob, 0.0), (sampling_prob, mean)]


def cdf(mixture: Mixture, deviation: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: sum(weight * norm.cdf(x, mean, deviation) for weight, mean in mixture)


def log_density(mixture: Mixture, deviation: float, x: np.ndarray) -> np.ndarray:
    parts = [math.log(weight) + norm.logpdf(x, mean, deviation) for weight, mean in mixture if weight]
    return np.logaddexp.reduce(parts)


def divergence(upper: Mixture, lower: Mixture, deviation: float, epsilon: float) -> float:
    """Hockey-stick divergence by summing (p - e^eps q)+ over a fine grid."""
    x = np.linspace(-14 * deviation - 2, 14 * deviation + 2, 2_000_001)
    p, q = (np.exp(log_density(side, deviation, x)) for side in (upper, lower))
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * (x[1] - x[0]))


def epsilon_below(
    upper: Mixture, lower: Mixture, deviation: float, steps: int, delta: float, spacing: float
) -> float:
    """Return an epsilon that the ``steps``-fold composition of the pair exceeds: losses rounded down.

    The privacy loss must grow with x. Mass is taken cell by cell, each cell at the loss of its lower end.
    """
    x = np.linspace(-12 * deviation - 1, 12 * deviation + 1, 400_001)
    mass = np.diff(cdf(upper, deviation)(x))
    loss = (log_density(upper, deviation, x) - log_density(lower, deviation, x))[:-1]
    index = np.floor(loss / spacing).astype(int)
    first = index.min()
    pmf = np.bincount(index - first, weights=mass)
    size = 2 ** math.ceil(math.log2(40 * len(pmf)))
    # Centre the one-step distribution, so that the composition fits the circle of the transform.
    mean = round(float((pmf * np.arange(len(pmf))).sum()))
    total = np.fft.irfft(np.fft.rfft(np.roll(np.pad(pmf, (0, size - len(pmf))), -mean)) ** steps, size)
    losses = (np.fft.fftfreq(size, 1 / size) + steps * (first + mean)) * spacing

    def reached(epsilon: float) -> float:
        over = losses > epsilon
        return float((total[over] * -np.expm1(epsilon - losses[over])).sum())

    low, high = 0.0, float(losses.max())
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if reached(middle) > delta else (low, middle)
    return low
