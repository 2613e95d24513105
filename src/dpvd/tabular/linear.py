"""A linear model from noisy moments that knows their noise: arithmetic on released numbers."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpvd.statistics import Moments

__all__ = ["Calibration", "LinearSolution", "calibrate", "solve", "whitened_start", "whitening"]

SPREAD = 2.0  # scores are divided by this many of their standard deviations, then kept below 1
# What is believed of scores before their moments are seen: mean and standard deviation of beliefs.
_CORRELATION = (0.5, 0.2)
_VARIANCE = (1 / SPREAD**2, 0.1)  # of all coordinates of a score together
_SCORE_MEAN = (0.0, 0.2)
_TARGET_MEAN = (0.0, 0.4)
_CORRELATION_RANGE = (0.1, 0.9)
_LEAST_VARIANCE = 0.05
_MOST_EXPLAINED = 0.9  # of the targets' variance, as far as noisy moments are believed


@dataclass(frozen=True)
class LinearSolution:
    """Weights of a linear model, and the standard deviation that the noise gives them.

    Attributes:
        weights: [d, k], scaled so that scores have a length of about 1/2.
        std: [d, k].
    """

    weights: Tensor
    std: Tensor


def _spectrum(moments: Moments, ridge: float) -> tuple[Tensor, Tensor]:
    """Eigenvalues of the second moments, made positive, and eigenvectors."""
    values, vectors = torch.linalg.eigh(moments.second)
    # The norm of a symmetric matrix of noise grows with √d.
    floor = ridge * moments.second_std * math.sqrt(len(values))
    return values.clamp_min(0.0) + floor, vectors


def whitening(moments: Moments, ridge: float) -> Tensor:
    """(A + λI)^(-1/2), A the second moments and λ of the size of their noise: [d, d]."""
    values, vectors = _spectrum(moments, ridge)
    return (vectors * values.rsqrt()) @ vectors.T


def whitened_start(moments: Moments, ridge: float, *, is_regression: bool) -> Tensor:
    """Weights for whitened rows of length 1 that noisy products with the target suggest: [d, k].

    With W = (A + λI)^(-1/2), rows uW have second moments near I, and b = WB are the weights of a
    least-squares regression on them. In the directions of A's eigenvectors they have noise of
    variance σ²/(λᵢ + λ), and are shrunk by τ²/(τ² + noise), τ² what their length leaves after the
    noise. Rows are of length √m, m = Σ λᵢ/(λᵢ + λ), before they are scaled to 1. A classifier's
    logits are 2k/(1 - R²) times the regression's scores, as for normal classes.

    Args:
        moments: of centred rows and targets.
        ridge: λ in units of the norm of the noise on A.
        is_regression: whether scores are the target itself.
    """
    assert moments.cross is not None  # released together
    values, vectors = _spectrum(moments, ridge)
    weights = (vectors.T @ moments.cross) * values.rsqrt()[:, None]  # [d, k]
    noise = moments.cross_std**2 / values  # [d]
    entries = weights.numel()
    outputs = weights.shape[1]
    left = (weights.square().sum() - outputs * noise.sum()).item() / entries
    spread = max(left, 1e-12)
    weights = weights * (spread / (spread + noise))[:, None]
    floor = ridge * moments.second_std * math.sqrt(len(values))
    length = math.sqrt(max((1 - floor / values).sum().item(), 1.0))
    explained = min(weights.square().sum().item(), _MOST_EXPLAINED)
    gain = 1.0 if is_regression else 2 * outputs / (1 - explained)
    return gain * length * (vectors @ weights)


def solve(moments: Moments, groups: Tensor | None, ridge: float) -> LinearSolution:
    """Ridge regression, with those groups of weights shrunk that might as well be noise.

    With M = (A + λI)⁻¹ the weights are b = MB; the noise of B gives them covariance σ²M². The
    weights of a group, such as the categories of one column, are multiplied by James and Stein's

        max(0, 1 - trace of their noise covariance / squared length).

    Args:
        moments: of rows and targets.
        groups: int64 [d], which group each feature belongs to; None takes all as one.
        ridge: λ in units of the norm of the noise on A.
    """
    assert moments.cross is not None  # released together
    values, vectors = _spectrum(moments, ridge)
    weights = (vectors / values) @ (vectors.T @ moments.cross)
    variance = moments.cross_std**2 * (vectors.square() @ values.reciprocal().square())  # [d]
    outputs = weights.shape[1]
    members = torch.zeros(len(weights), dtype=torch.int64) if groups is None else groups
    count = int(members.max()) + 1
    noise = torch.zeros(count, dtype=torch.float64).index_add_(0, members, variance) * outputs
    length = torch.zeros(count, dtype=torch.float64).index_add_(0, members, weights.square().sum(1))
    kept = (1 - noise / length.clamp_min(1e-300)).clamp_min(0.0)[members, None]
    shrunk = weights * kept
    std = variance.sqrt()[:, None] * kept
    scale = _score_scale(shrunk, moments)
    return LinearSolution(shrunk / scale, std / scale)


def _score_scale(weights: Tensor, moments: Moments) -> float:
    """What scores are divided by: `SPREAD` of their standard deviations, as far as moments tell."""
    told = (weights * (moments.second @ weights)).sum().item()
    least = weights.square().sum().item() / len(weights)
    return SPREAD * math.sqrt(max(told, least, 1e-300))


@dataclass(frozen=True)
class Calibration:
    """How scores s relate to targets t: t = target_mean + slope (s - score_mean) + noise.

    Attributes:
        score_mean: [k].
        target_mean: [k].
        slope: of the targets on the scores.
        residual: variance of the targets that the scores leave, per coordinate.
        within: variance of the scores among rows with the same target, per coordinate.
        shift: how far the mean score of rows with target t lies along t: μ.
    """

    score_mean: Tensor
    target_mean: Tensor
    slope: float
    residual: float
    within: float
    shift: float


def calibrate(found: Moments) -> Calibration:
    """From noisy moments of the rows (s, 1) / √2 with targets t; noise is shrunk by what is known.

    Each number is the mean of what the release says and of what is believed without it, weighted by
    one over their variances; the noise of the release is known exactly.
    """
    assert found.cross is not None  # released together
    outputs = found.cross.shape[1]
    second = 2 * found.second  # [k + 1, k + 1]: means of s sᵀ, s, and 1
    cross = math.sqrt(2) * found.cross
    second_std = 2 * found.second_std
    cross_std = math.sqrt(2) * found.cross_std
    mean_std = second_std / math.sqrt(2)
    score_mean = _believed(second[:outputs, outputs], mean_std, _SCORE_MEAN)
    target_mean = _believed(cross[outputs], cross_std, _TARGET_MEAN)
    target_mean = target_mean * min(1.0, 0.9 / max(target_mean.norm().item(), 1e-9))
    total = (second.diagonal()[:outputs] - score_mean.square()).sum()
    variance = _believed(total, second_std * math.sqrt(outputs), _VARIANCE).item()
    variance = max(variance, _LEAST_VARIANCE) / outputs
    square = 1.0
    if found.square is not None:
        square = min(max(found.square, 1e-3 + target_mean.square().sum().item()), 1.0)
    target_variance = max((square - target_mean.square().sum().item()) / outputs, 1e-4)
    # The covariance of s and t, mean over coordinates, and with it their correlation.
    both = (cross[:outputs].diagonal() - score_mean * target_mean).mean()
    root = math.sqrt(variance * target_variance)
    noise = cross_std * math.sqrt(1 / outputs)
    correlation = _believed(both / root, noise / root, _CORRELATION).item()
    correlation = min(max(correlation, _CORRELATION_RANGE[0]), _CORRELATION_RANGE[1])
    return Calibration(
        score_mean=score_mean,
        target_mean=target_mean,
        slope=correlation * math.sqrt(target_variance / variance),
        residual=target_variance * (1 - correlation**2),
        within=variance * (1 - correlation**2),
        shift=correlation * math.sqrt(variance / target_variance),
    )


def _believed(told: Tensor, std: float, belief: tuple[float, float]) -> Tensor:
    """The mean of two independent normal witnesses."""
    mean, spread = belief
    trust = spread**2 / (spread**2 + std**2)
    return trust * told + (1 - trust) * mean
