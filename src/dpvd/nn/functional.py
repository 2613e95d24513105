"""Sampling by local reparameterisation: noise on a layer's outputs instead of on its weights."""

import math
from typing import Any

import torch
from torch import Tensor

from dpvd.nn.noise import draw, inside_transform

__all__ = ["VARIANCE_FLOOR", "add_noise_", "gaussian_sample", "noise_std", "row_squares", "sum_of_squares"]

VARIANCE_FLOOR = 1e-20
"""Variances up to this are no noise at all. Its root, 1e-10, is below the resolution of float32."""

CACHED_ENTRIES = 1 << 18  # 1 MB in float32


def noise_std(var: Tensor) -> Tensor:
    """The standard deviation √var, whose gradient is finite everywhere.

    Guarantees: where var ≤ ``VARIANCE_FLOOR`` the result is exactly 0 and so is its gradient (that of √var
    is infinite at 0); elsewhere both are those of √var.

    Args:
        var: variances, at least 0, of any shape.

    >>> import torch
    >>> var = torch.tensor([0.0, 4.0], requires_grad=True)
    >>> std = noise_std(var)
    >>> std.sum().backward()
    >>> std.tolist(), var.grad.tolist()
    ([0.0, 2.0], [0.0, 0.25])
    """
    return var.clamp_min(VARIANCE_FLOOR).sqrt().masked_fill(var <= VARIANCE_FLOOR, 0.0)


def gaussian_sample(mean: Tensor, var: Tensor) -> Tensor:
    """Sample N(mean, var) as mean + √var·ε, ε drawn independently for every entry of ``mean``.

    Guarantees: one draw, of the shape of ``mean``, with √var as its auxiliary tensor; where var = 0 the
    result equals ``mean`` bit for bit.

    Args:
        mean: [B, ...], the batch first.
        var: at least 0, of a shape that broadcasts to that of ``mean``.

    References: Kingma, Salimans and Welling (arXiv:1506.02557v2), the local
    reparameterisation trick.
    """
    return add_noise_(mean.clone(), var)


def add_noise_(mean: Tensor, var: Tensor) -> Tensor:
    """:func:`gaussian_sample`, written over ``mean``: outputs are large, and nobody else has seen a layer's own yet.

    Guarantees: the values and gradients of mean + noise_std(var)·ε; differentiable once outside of transforms.
    """
    if inside_transform():
        std = noise_std(var)
        return torch.addcmul(mean, std, draw(mean.shape, mean, aux=std))
    std = torch.threshold(var.detach(), VARIANCE_FLOOR, 0.0).sqrt_()
    noise = draw(mean.shape, mean, aux=std)
    if not (torch.is_grad_enabled() and var.requires_grad):
        return mean.addcmul_(std, noise)
    result: Tensor = _AddNoise.apply(mean, var, std, noise)  # type: ignore[no-untyped-call]
    return result


class _AddNoise(torch.autograd.Function):
    """mean + std·noise, where std is √var: the gradients in as few passes over the outputs as torch allows.

    Autograd through :func:`noise_std` takes more than twice the time, most of it for masks and copies.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        ctx.save_for_backward(std, noise)
        if mean._is_view():  # autograd would copy the gradient several times to undo writing over a part of something
            return torch.addcmul(mean, std, noise)
        ctx.mark_dirty(mean)
        return mean.addcmul_(std, noise)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        std, noise = ctx.saved_tensors
        # ∂/∂var = noise / (2√var); dividing by infinity is 0, as it has to be where there is no variance.
        divisor = torch.threshold(std, 0.0, math.inf).mul_(2)
        slope = (grad * noise).sum_to_size(std.shape).div_(divisor)
        return grad if ctx.needs_input_grad[0] else None, slope, None, None


def sum_of_squares(x: Tensor, dim: int) -> Tensor:
    """Σ x² over a dimension, which stays with size 1; differentiable once outside of transforms.

    >>> sum_of_squares(torch.tensor([[3.0, 4.0]]), -1)
    tensor([[25.]])
    """
    if inside_transform():
        return (x * x).sum(dim, keepdim=True)
    if not (torch.is_grad_enabled() and x.requires_grad):
        return _sum_of_squares(x, dim)
    result: Tensor = _SumOfSquares.apply(x, dim)  # type: ignore[no-untyped-call]
    return result


def _sum_of_squares(x: Tensor, dim: int) -> Tensor:
    if x.dim() == 2 and dim == -1:
        return row_squares(x).unsqueeze(1)
    parts = _in_the_cache(x)
    return torch.cat([(part * part).sum(dim, keepdim=True) for part in parts])


def _in_the_cache(x: Tensor) -> tuple[Tensor, ...]:
    """x [B, ...] cut into so few rows that what is computed from them is still in the cache when it is used."""
    size = max(1, CACHED_ENTRIES * len(x) // max(1, x.numel()))
    return torch.split(x, size)


def row_squares(rows: Tensor, scale: Tensor | None = None) -> Tensor:
    """[B]: Σ_j (s_j x_ij)² of the rows of a matrix [B, d] and a scale [d], or 1 in its place.

    Guarantees: off by a few units of rounding, however long the rows are (which ``vector_norm`` is not: its running sum
    loses 18 units over 4,096 equal entries and 3,000 over a million).
    """
    if rows.numel() > CACHED_ENTRIES and len(rows) > 1:
        return torch.cat([row_squares(part, scale) for part in _in_the_cache(rows)])
    scaled = rows if scale is None else rows * scale
    found: Tensor = torch.linalg.vecdot(scaled, scaled)
    return found


class _SumOfSquares(torch.autograd.Function):
    """Autograd through x * x takes three passes over the inputs in the backward pass, this takes one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(x)
        return _sum_of_squares(x, dim)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return x * (2 * grad), None
