"""Sums of squares: variances of outputs and norms of gradients are made of them."""

from typing import Any

import torch
from torch import Tensor

from dpvd.native import row_squares as float32_row_squares
from dpvd.nn.noise import inside_transform

__all__ = ["row_squares", "sum_of_squares", "with_sum_of_squares"]

CACHED_ENTRIES = 1 << 18  # 1 MB in float32


def row_squares(rows: Tensor, scale: Tensor | None = None) -> Tensor:
    """[B]: Σ_j (s_j x_ij)² of the rows of a matrix [B, d], without gradients.

    s is a scale [d], or 1 for None.

    Guarantees: off by a few units of rounding, however long the rows are (which ``vector_norm`` is
    not: its running sum loses 18 units over 4,096 equal entries and 3,000 over a million).
    """
    if _is_for_kernels(rows) and (scale is None or _is_for_kernels(scale)):
        values = rows.detach().numpy()
        factor = None if scale is None else scale.detach().numpy()
        threads = torch.get_num_threads()
        squares = float32_row_squares(values, factor, threads=threads)
        return torch.from_numpy(squares)
    if rows.numel() > CACHED_ENTRIES and len(rows) > 1:
        parts = [row_squares(part, scale) for part in _in_the_cache(rows)]
        return torch.cat(parts)
    scaled = rows if scale is None else rows * scale
    found: Tensor = torch.linalg.vecdot(scaled, scaled)
    return found


def _is_for_kernels(values: Tensor) -> bool:
    on_cpu = values.device.type == "cpu"
    return on_cpu and values.dtype == torch.float32 and values.is_contiguous()


def _in_the_cache(x: Tensor) -> tuple[Tensor, ...]:
    """x [B, ...] in chunks of so few rows that what is computed from them is still in the cache."""
    entries = max(1, x.numel())
    rows = CACHED_ENTRIES * len(x) // entries
    return torch.split(x, max(1, rows))


def sum_of_squares(x: Tensor, dim: int) -> Tensor:
    """Σ x² over a dimension, which stays with size 1; differentiable once outside of transforms.

    >>> sum_of_squares(torch.tensor([[3.0, 4.0]]), -1)
    tensor([[25.]])
    """
    _, squares = with_sum_of_squares(x, dim)
    return squares


def with_sum_of_squares(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """x, to go on with, and :func:`sum_of_squares`.

    The gradients of both reach x together, in one pass over it.
    """
    if inside_transform():
        squares = (x * x).sum(dim, keepdim=True)
        return x, squares
    squares = _sum_of_squares(x, dim)
    if not (torch.is_grad_enabled() and x.requires_grad):
        return x, squares
    apply: Any = _WithSumOfSquares.apply  # untyped in torch
    both: tuple[Tensor, Tensor] = apply(x, squares)
    return both


def _sum_of_squares(x: Tensor, dim: int) -> Tensor:
    if x.dim() == 2 and dim == -1:
        squares = row_squares(x.detach())
        return squares.unsqueeze(1)
    parts = _in_the_cache(x.detach())
    sums = [(part * part).sum(dim, keepdim=True) for part in parts]
    return torch.cat(sums)


class _WithSumOfSquares(torch.autograd.Function):
    """x and Σ x², with one pass over x to go back.

    Autograd through x * x takes three, and one more to add up.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        ctx.set_materialize_grads(False)
        return x.view_as(x), squares.view_as(squares)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any,
        grad: Tensor | None,
        of_squares: Tensor | None,
    ) -> tuple[Tensor | None, None]:
        if of_squares is None:
            return grad, None
        (x,) = ctx.saved_tensors
        if grad is None:
            return x * (2 * of_squares), None
        return torch.addcmul(grad, x, 2 * of_squares), None
