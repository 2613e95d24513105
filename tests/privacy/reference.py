"""An account that shares nothing with the library: a lower bound that no accountant may fall
below.
"""

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
    parts = [
        math.log(weight) + norm.logpdf(x, mean, deviation) for weight, mean in mixture if weight
    ]
    return np.logaddexp.reduce(parts)


def divergence(upper: Mixture, lower: Mixture, deviation: float, epsilon: float) -> float:
    """Hockey-stick divergence by summing (p - e^eps q)+ over a fine grid."""
    x = np.linspace(-14 * deviation - 2, 14 * deviation + 2, 400_001)
    p, q = (np.exp(log_density(side, deviation, x)) for side in (upper, lower))
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * (x[1] - x[0]))


def epsilon_below(
    upper: Mixture, lower: Mixture, deviation: float, steps: int, delta: float, spacing: float
) -> float:
    """Return an epsilon that the ``steps``-fold composition of the pair exceeds: losses rounded
    down.

    The privacy loss must grow with x. Mass is taken cell by cell, each cell at the loss of its
    lower end.
    """
    x = np.linspace(-9 * deviation - 1, 9 * deviation + 1, 200_001)
    mass = np.diff(cdf(upper, deviation)(x))
    loss = (log_density(upper, deviation, x) - log_density(lower, deviation, x))[:-1]
    kept = loss < 8.0  # mass left out only lowers the result
    index = np.floor(loss[kept] / spacing).astype(int)
    first, size = index.min(), 2**20
    pmf = np.bincount(index - first, weights=mass[kept], minlength=size)
    # Centre the one-step distribution, so that the composition fits the circle of the transform.
    mean = round(float((pmf * np.arange(size)).sum()))
    total = np.fft.irfft(np.fft.rfft(np.roll(pmf, -mean)) ** steps, size)
    losses = (np.fft.fftfreq(size, 1 / size) + steps * (first + mean)) * spacing

    def reached(epsilon: float) -> float:
        over = losses > epsilon
        return float((total[over] * -np.expm1(epsilon - losses[over])).sum())

    low, high = 0.0, 20.0
    for _ in range(25):
        middle = (low + high) / 2
        low, high = (middle, high) if reached(middle) > delta else (low, middle)
    return low


def exact_delta(
    upper: Mixture, lower: Mixture, deviation: float, steps: int, epsilon: float
) -> float:
    """Return delta at ``epsilon`` of the composed pair, without any grid of losses, for any number
    of steps.

    delta = 1/(2 pi i) int E[e^{sL}]^T e^{-s eps} / (s (s+1)) ds over a line Re s > 0, placed at the
    saddle point; the expectation of expm1(sL) by the trapezoidal rule keeps its digits for losses
    however small.
    """
    x = np.linspace(-12 * deviation - 1, 12 * deviation + 1, 1501)
    weight = np.exp(log_density(upper, deviation, x)) * (x[1] - x[0])
    loss = log_density(upper, deviation, x) - log_density(lower, deviation, x)
    weight, loss = weight[weight > 1e-40], loss[weight > 1e-40]

    def exponent(s: np.ndarray) -> np.ndarray:
        return steps * np.log1p(np.expm1(np.multiply.outer(s, loss)) @ weight) - s * epsilon

    spread = math.sqrt(steps * float(weight @ (loss - weight @ loss) ** 2))
    lines = np.geomspace(0.1, 30, 60) / spread
    line = lines[np.argmin(exponent(lines) - np.log(lines * (lines + 1)))]
    width = 12 / spread
    t = np.linspace(-width, width, 501)
    s = line + 1j * t
    values = np.exp(exponent(s)) / (s * (s + 1))
    return float(values.sum().real * (t[1] - t[0]) / (2 * math.pi))
