"""Statistical checks of noise and samplers, as p-values.

A p-value here is Bonferroni's: the smallest of k single ones times k. So a correct mechanism falls
below ``ALARM`` with probability ``ALARM`` at most (up to the accuracy of normal approximations to
large sums), however the single checks depend on each other. That is small enough for tests on truly
random bits not to be flaky; sample sizes are chosen so that the faults the tests list fall far
below it.
"""

import itertools

import numpy as np
import torch
from scipy import stats

ALARM = 1e-6


def normal_p_value(sample: torch.Tensor, std: float) -> float:
    """How well a long sample agrees with independent draws from N(0, std²)."""
    x = sample.detach().double().flatten().numpy() / std
    n = len(x)
    half = n // 2
    return _bonferroni(
        _two_sided(x.mean() * np.sqrt(n)),
        _chi2_two_sided(np.square(x).sum(), n),
        stats.kstest(x, "norm").pvalue,
        *(_tail_p_value(x, threshold) for threshold in (3.0, 4.0)),
        *(_uncorrelated_p_value(x[:-lag], x[lag:]) for lag in (1, 2, 3)),
        _uncorrelated_p_value(x[:half], x[half : 2 * half]),
    )


def independence_p_value(first: torch.Tensor, second: torch.Tensor) -> float:
    """How well two samples of N(0, 1), paired by position, agree with being independent."""
    return _uncorrelated_p_value(
        first.double().flatten().numpy(), second.double().flatten().numpy()
    )


def poisson_p_value(taken: np.ndarray, prob: float) -> float:
    """How well draws (steps x examples, true where taken) agree with Poisson sampling at
    ``prob``.
    """
    steps, examples = taken.shape
    centred = taken - prob
    unit = prob * (1 - prob)
    frequencies = np.square(centred.sum(axis=0)).sum() / (steps * unit)
    return _bonferroni(
        _two_sided(centred.sum() / np.sqrt(steps * examples * unit)),
        _chi2_two_sided(frequencies, examples),
        _binomial_sizes_p_value(taken.sum(axis=1), examples, prob),
        _two_sided(
            (centred[:, 1:] * centred[:, :-1]).sum() / (unit * np.sqrt(steps * (examples - 1)))
        ),
        _two_sided((centred[1:] * centred[:-1]).sum() / (unit * np.sqrt((steps - 1) * examples))),
    )


def fixed_size_p_value(taken: np.ndarray, batch_size: int) -> float:
    """How well draws (steps x examples) agree with fresh uniform subsets of ``batch_size``."""
    steps, examples = taken.shape
    if (taken.sum(axis=1) != batch_size).any():
        return 0.0
    prob = batch_size / examples
    unit = prob * (1 - prob)
    # The covariance of one step's indicators is unit * N / (N - 1) * (I - 1/N).
    frequencies = (
        np.square(taken.sum(axis=0) - steps * prob).sum()
        / (steps * unit)
        * (examples - 1)
        / examples
    )
    overlap = (taken[1:] & taken[:-1]).sum() - (steps - 1) * batch_size * prob
    overlap_var = (steps - 1) * batch_size * unit * (examples - batch_size) / (examples - 1)
    return _bonferroni(
        _chi2_two_sided(frequencies, examples - 1), _two_sided(overlap / np.sqrt(overlap_var))
    )


def subsets_p_value(taken: np.ndarray, weights: dict[tuple[bool, ...], float]) -> float:
    """Compare the whole distribution over subsets of a tiny data set with the given
    probabilities.
    """
    seen, counts = np.unique(taken, axis=0, return_counts=True)
    observed = dict(zip(map(tuple, seen.tolist()), counts, strict=True))
    if any(subset not in weights for subset in observed):
        return 0.0
    expected = np.array(list(weights.values())) * len(taken)
    return float(stats.chisquare([observed.get(subset, 0) for subset in weights], expected).pvalue)


def poisson_weights(examples: int, prob: float) -> dict[tuple[bool, ...], float]:
    """Probability of every subset under Poisson sampling."""
    subsets = itertools.product([False, True], repeat=examples)
    return {
        subset: prob ** sum(subset) * (1 - prob) ** (examples - sum(subset)) for subset in subsets
    }


def fixed_size_weights(examples: int, batch_size: int) -> dict[tuple[bool, ...], float]:
    """Probability of every subset under uniform sampling of a fixed size."""
    subsets = [s for s in itertools.product([False, True], repeat=examples) if sum(s) == batch_size]
    return dict.fromkeys(subsets, 1 / len(subsets))


def _bonferroni(*p_values: float) -> float:
    return min(1.0, len(p_values) * float(min(p_values)))


def _two_sided(z: float) -> float:
    return 2 * float(stats.norm.sf(abs(z)))


def _chi2_two_sided(value: float, freedom: int) -> float:
    return 2 * min(float(stats.chi2.cdf(value, freedom)), float(stats.chi2.sf(value, freedom)))


def _tail_p_value(x: np.ndarray, threshold: float) -> float:
    beyond = int((np.abs(x) > threshold).sum())
    return float(stats.binomtest(beyond, len(x), 2 * stats.norm.sf(threshold)).pvalue)


def _uncorrelated_p_value(x: np.ndarray, y: np.ndarray) -> float:
    """Correlation of the values, and of their squares (which sees dependence without
    correlation).
    """
    products = _two_sided((x * y).sum() / np.sqrt(len(x)))
    squares = _two_sided(((x**2 - 1) * (y**2 - 1)).sum() / (2 * np.sqrt(len(x))))
    return _bonferroni(products, squares)


def _binomial_sizes_p_value(sizes: np.ndarray, examples: int, prob: float) -> float:
    """Chi-square of batch sizes against Binomial(examples, prob), in cells of about equal
    probability.
    """
    edges = np.unique(stats.binom.ppf(np.linspace(0, 1, 11)[1:-1], examples, prob))
    cells = np.diff(np.concatenate([[0], stats.binom.cdf(edges, examples, prob), [1]]))
    observed = np.bincount(np.searchsorted(edges, sizes), minlength=len(cells))
    return float(stats.chisquare(observed, cells * len(sizes)).pvalue)
