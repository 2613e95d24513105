"""KL divergence from N(θ, αθ²) to the log-uniform prior as a function of log α: exact and fitted.

All are normalised to 0 as α → ∞ (the prior is improper: only differences mean something) and
elementwise.
"""

from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import dawsn
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F

__all__ = ["exact_kl", "kingma_kl", "molchanov_kl"]

# Molchanov, Ashukha and Vetrov (arXiv:1701.05369v3), "Approximation of the KL divergence".
_MOLCHANOV = (0.63576, 1.87320, 1.48695)
# Kingma, Salimans and Welling (arXiv:1506.02557v2), appendix. The constant is ours: smallest error.
_KINGMA = (1.161451241083230, -1.502041176441722, 0.586299206427007)
_KINGMA_CONSTANT = 0.6554

_LIMIT = 24.0  # the table spans log α in [-24, 24]; outside the limits are met to 2e-11
_CELLS_PER_UNIT = 64
_CHUNK = 65_536  # entries looked up at a time: their temporaries fit the cache (3 times as fast)

_Array: TypeAlias = npt.NDArray[np.float64]


def exact_kl(log_alpha: Tensor) -> Tensor:
    """KL = 2∫₀ˣ D(s) ds with x = 1/√(2α) and D the Dawson function, elementwise.

    Guarantees: absolute error below 1e-9 in float64, in the value and in the gradient -x·D(x); both
    finite for every finite log α. Differentiable once.

    Edge cases: log α = ∞ gives 0; log α = -∞ gives ∞ with gradient -1/2; NaN stays NaN.

    >>> f"{exact_kl(torch.tensor(0.0, dtype=torch.float64)).item():.7f}"
    '0.4266856'

    References: Hron, Matthews and Ghahramani (arXiv:1807.01969v1).
    """
    value: Tensor = _ExactKL.apply(log_alpha)[0]  # type: ignore[no-untyped-call]
    return value


def molchanov_kl(log_alpha: Tensor) -> Tensor:
    """Molchanov's approximation, for all α.

    It is within 0.0094 of the exact value, its gradient within 0.014:

    -KL ≈ k₁ sigmoid(k₂ + k₃ log α) - ½ log(1 + 1/α) - k₁
    """
    k1, k2, k3 = _MOLCHANOV
    # k₁ - k₁ sigmoid(z) = k₁ sigmoid(-z), which does not cancel for large α.
    z = k2 + k3 * log_alpha
    fit = k1 * torch.sigmoid(-z)
    inverse = -log_alpha  # log 1/α
    tail = 0.5 * F.softplus(inverse)
    return fit + tail


def kingma_kl(log_alpha: Tensor) -> Tensor:
    """Kingma's cubic, for α ≤ 1 only: within 0.0203 of the exact value there.

    -KL ≈ const + ½ log α + c₁α + c₂α² + c₃α³

    Edge cases: the cubic is useless above α = 1, so log α is projected to at most 0: a larger α has
    the value at 1 and gradient 0.
    """
    c1, c2, c3 = _KINGMA
    log_alpha = log_alpha.clamp_max(0.0)
    alpha = log_alpha.exp()
    cubic = c2 + alpha * c3
    cubic = alpha * (c1 + alpha * cubic)
    linear = _KINGMA_CONSTANT - 0.5 * log_alpha
    return linear - cubic


class _ExactKL(torch.autograd.Function):
    """Value and slope of the exact KL from one table lookup, with the slope kept to go back.

    For autograd, on any device and inside transforms. Where only the gradient is wanted,
    ``dpvd.nn.kl_term.gradient`` has it in closed form.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(log_alpha: Tensor) -> tuple[Tensor, Tensor]:
        table = _table_like(log_alpha.dtype, log_alpha.device)
        flat = log_alpha.reshape(-1)
        values = []
        slopes = []
        for chunk in torch.split(flat, _CHUNK):
            value, slope = _look_up(table, chunk)
            values.append(value)
            slopes.append(slope)
        all_values = torch.cat(values)
        all_slopes = torch.cat(slopes)
        shape = log_alpha.shape
        return all_values.reshape(shape), all_slopes.reshape(shape)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        _, slope = output
        ctx.mark_non_differentiable(slope)
        ctx.save_for_backward(slope)

    @staticmethod
    def backward(ctx: Any, grad_value: Tensor, _grad_slope: Tensor) -> Tensor:
        slope: Tensor = ctx.saved_tensors[0]
        return grad_value * slope


def _look_up(table: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """The KL and its slope at t = log α, [n] each, from a table [8, cells]."""
    position = t.clamp(-_LIMIT, _LIMIT) + _LIMIT
    position = position * _CELLS_PER_UNIT
    last = table.shape[1] - 1
    cell = position.to(torch.int32).clamp(0, last)
    u = position - cell  # position within the cell, 0..1; NaN if t is
    columns = [column.index_select(0, cell) for column in table]
    value = _cubic(u, columns[:4])
    slope = _cubic(u, columns[4:])
    # Beyond the table: KL → -½ log α + const as α → 0, and → 0 as α → ∞.
    short_of = (-_LIMIT - t).clamp_min(0.0)
    value = value + 0.5 * short_of
    beyond = t > _LIMIT
    value = value.masked_fill(beyond, 0.0)
    slope = slope.masked_fill(beyond, 0.0)
    return value, slope


def _cubic(u: Tensor, coefficients: list[Tensor]) -> Tensor:
    c0, c1, c2, c3 = coefficients
    value = torch.addcmul(c2, u, c3)
    value = torch.addcmul(c1, u, value)
    return torch.addcmul(c0, u, value)


@lru_cache(maxsize=8)
def _table_like(dtype: torch.dtype, device: torch.device) -> Tensor:
    table = torch.from_numpy(_table())
    return table.to(dtype=dtype, device=device)


@lru_cache(maxsize=1)
def _table() -> _Array:
    """Coefficients of cubic Hermite interpolants on a grid of log α.

    [8, cells]: four for the KL and four for its slope in each cell of the grid.

    With t = log α, F the KL and x = e^(-t/2)/√2: F' = -x D(x) and F'' = ½ x (D + x - 2x² D), which
    cancels for large x: there F'' = -α/2 - 3α² + O(α³), from the asymptotic series of D.
    """
    width = 1 / _CELLS_PER_UNIT
    cells = int(2 * _LIMIT * _CELLS_PER_UNIT)
    t = np.linspace(-_LIMIT, _LIMIT, cells + 1)
    slope = _slope(t)
    curvature = _curvature(t)
    # F by Gauss-Legendre quadrature of its slope, cell by cell, from the far end, where
    # F = x² - x⁴/3 + ...
    nodes, weights = np.polynomial.legendre.leggauss(5)
    inner = t[:-1, None] + width * (nodes + 1) / 2  # [cells, nodes]
    weighted = _slope(inner) * weights
    integrals = weighted.sum(axis=1) * width / 2  # [cells]
    from_the_end = np.cumsum(integrals[::-1])[::-1]
    value = np.append(-from_the_end, 0.0) + _x(t)[-1] ** 2
    of_value = _hermite(value, slope * width)
    of_slope = _hermite(slope, curvature * width)
    return np.concatenate([of_value, of_slope])


def _x(t: _Array) -> _Array:
    """1/√(2α) at t = log α."""
    x: _Array = np.exp(-t / 2) / np.sqrt(2)
    return x


def _slope(t: _Array) -> _Array:
    """F'."""
    x = _x(t)
    slope: _Array = -x * dawsn(x)
    return slope


def _curvature(t: _Array) -> _Array:
    """F''."""
    x = _x(t)
    dawson = dawsn(x)
    curvature = 0.5 * x * (dawson + x - 2 * x**2 * dawson)
    alpha = np.exp(t)
    series = -alpha / 2 - 3 * alpha**2
    bent: _Array = np.where(t < -10, series, curvature)
    return bent


def _hermite(value: _Array, slope: _Array) -> _Array:
    """[4, cells]: cubics in u ∈ [0, 1] with these values and slopes per cell width at the ends."""
    f0 = value[:-1]
    f1 = value[1:]
    d0 = slope[:-1]
    d1 = slope[1:]
    quadratic = 3 * (f1 - f0) - 2 * d0 - d1
    cubic = 2 * (f0 - f1) + d0 + d1
    return np.stack([f0, d0, quadratic, cubic])
