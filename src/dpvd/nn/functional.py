"""Sampling by local reparameterisation: noise on a layer's outputs instead of on its weights."""

import math
from typing import Any

import torch
from torch import Tensor

from dpvd.nn.noise import draw, inside_transform

__all__ = ["VARIANCE_FLOOR", "add_noise_", "gaussian_sample", "noise_std"]

VARIANCE_FLOOR = 1e-20
"""Variances up to this are no noise at all. Its root, 1e-10, is below the resolution of float32."""


def noise_std(var: Tensor) -> Tensor:
    """The standard deviation √var, whose gradient is finite everywhere.

    Guarantees: where var ≤ ``VARIANCE_FLOOR`` the result is exactly 0 and so is its gradient (that
    of √var is infinite at 0); elsewhere both are those of √var.

    Args:
        var: variances, at least 0, of any shape.

    >>> import torch
    >>> var = torch.tensor([0.0, 4.0], requires_grad=True)
    >>> std = noise_std(var)
    >>> std.sum().backward()
    >>> std.tolist(), var.grad.tolist()
    ([0.0, 2.0], [0.0, 0.25])
    """
    root = var.clamp_min(VARIANCE_FLOOR).sqrt()
    return root.masked_fill(var <= VARIANCE_FLOOR, 0.0)


def gaussian_sample(mean: Tensor, var: Tensor) -> Tensor:
    """Sample N(mean, var) as mean + √var·ε, ε drawn independently for every entry of ``mean``.

    Guarantees: one draw, of the shape of ``mean``, with √var as its auxiliary tensor; where var = 0
    the result equals ``mean`` bit for bit.

    Args:
        mean: [B, ...], the batch first.
        var: at least 0, of a shape that broadcasts to that of ``mean``.

    References: Kingma, Salimans and Welling (arXiv:1506.02557v2), the local
    reparameterisation trick.
    """
    sample = mean.clone()
    return add_noise_(sample, var)


def add_noise_(mean: Tensor, var: Tensor) -> Tensor:
    """:func:`gaussian_sample`, written over ``mean``.

    Outputs are large, and nobody else has seen a layer's own yet.

    Guarantees: the values and gradients of mean + noise_std(var)·ε; differentiable once outside of
    transforms.
    """
    if inside_transform():
        std = noise_std(var)
        noise = draw(mean.shape, mean, aux=std)
        return torch.addcmul(mean, std, noise)
    std = torch.threshold(var.detach(), VARIANCE_FLOOR, 0.0)
    std = std.sqrt_()
    noise = draw(mean.shape, mean, aux=std)
    differentiable = torch.is_grad_enabled() and var.requires_grad
    if not differentiable:
        return mean.addcmul_(std, noise)
    result: Tensor = _AddNoise.apply(mean, var, std, noise)  # type: ignore[no-untyped-call]
    return result


class _AddNoise(torch.autograd.Function):
    """mean + std·noise with std = √var, in as few passes over the outputs as torch allows.

    Autograd through :func:`noise_std` takes more than twice the time, most of it for masks and
    copies.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        ctx.save_for_backward(std, noise)
        if mean._is_view():
            # Undoing a write over a part of a tensor costs autograd several copies.
            return torch.addcmul(mean, std, noise)
        ctx.mark_dirty(mean)
        return mean.addcmul_(std, noise)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        std, noise = ctx.saved_tensors
        # ∂/∂var = noise / (2√var); where there is no variance, dividing by infinity gives the 0
        # that it has to be.
        divisor = torch.threshold(std, 0.0, math.inf).mul_(2)
        of_std = (grad * noise).sum_to_size(std.shape)
        of_var = of_std.div_(divisor)
        of_mean = grad if ctx.needs_input_grad[0] else None
        return of_mean, of_var, None, None
