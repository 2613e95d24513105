"""A recurrence over a whole sequence, one layer in one direction, with its backward pass written out.

Autograd over the steps would keep a dozen tensors for each and add up weight gradients step by step. Here the
backward pass stops at the pre-activations of the gates; what weights get follows from them in one product.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from dpvd.nn.functional import noise_std
from dpvd.nn.recurrent.cells import Cell, State

__all__ = ["Noise", "before", "half_inverse", "scan", "variance_gradient"]


@dataclass(frozen=True)
class Noise:
    """Noise on one weight matrix by local reparameterisation: √(x²σ²) ε is added to what the matrix gives.

    Args:
        variance: σ², [gates, in], or [1, in] where all gates share it.
        draw: ε, [B, gates].
    """

    variance: Tensor
    draw: Tensor

    def std(self, value: Tensor) -> Tensor:
        """√(x²σ²) for inputs [..., in]: [..., gates] or [..., 1]."""
        return noise_std(F.linear(value.square(), self.variance))

    def detach(self) -> "Noise":
        """The same as constants."""
        return Noise(self.variance.detach(), self.draw)


def half_inverse(std: Tensor) -> Tensor:
    """1 / (2√v), what the gradient of √v is multiplied by to be that of v; 0 where v is."""
    return torch.where(std > 0, 0.5 / std, 0.0)


def variance_gradient(delta: Tensor, draw: Tensor, slope: Tensor) -> Tensor:
    """u = dL/dv = δ ε / (2√v), of the shape of ``slope`` = 1 / (2√v): summed over the gates that share v."""
    product = delta * draw
    return (product.sum(-1, keepdim=True) if slope.shape[-1] == 1 else product) * slope


def before(hidden: Tensor, start: Tensor, reverse: bool) -> Tensor:
    """h_(t-1) for all t, [T, B, hidden], from h_t and the state at the start."""
    parts = [hidden[1:], start.unsqueeze(0)] if reverse else [start.unsqueeze(0), hidden[:-1]]
    return torch.cat(parts)


def scan(
    cell: type[Cell],
    a: Tensor,
    offset: Tensor | None,
    weight: Tensor,
    start: State,
    *,
    reverse: bool = False,
    noise: Noise | None = None,
    projection: Tensor | None = None,
    projected: Tensor | None = None,
) -> tuple[Tensor, State, Tensor | None, Tensor | None]:
    """Run a cell over a sequence: b_t = W h_(t-1) + offset_t, h_t = cell(a_t, b_t, state).

    Guarantees: differentiable once in every tensor but ε. The gradients of ``a``, ``offset`` and ``projected`` are
    those that arrive at the pre-activations of each step; those of weights are only formed if asked for.

    Edge cases: ``a`` is *overwritten*, without autograd being told: by activations, then by gradients. Whatever made it
    must not need its own result to go back (a linear map does not), and nobody else may read it. Going back a second
    time over the same pass is refused by autograd, since activations are gone.

    Args:
        cell: the recurrence.
        a: [T, B, gates], W_ih x_t + b_ih.
        offset: [T, B, gates], b_hh for each step; None if the cell sums a and b, and a holds b_hh.
        weight: W_hh, [gates, hidden].
        start: the state before the first step, each [B, hidden].
        reverse: whether to go from the last step to the first.
        noise: that of W_hh.
        projection: W_hr of an LSTM with ``proj_size``, [projected, hidden].
        projected: [T, B, projected], zeros: its gradient is the one that arrives at the projections.

    Returns:
        All h_t [T, B, hidden], in the order of time; the state at the end; without gradients, 1 / (2√v) of the noise at
        each step, and all h_t before their projection, each None where there is none.
    """
    variance, draw = (None, None) if noise is None else (noise.variance, noise.draw)
    apply: Any = _Scan.apply  # untyped in torch
    hidden, slope, raw, *end = apply(cell, reverse, a, offset, weight, variance, draw, projection, projected, *start)
    return hidden, tuple(end), slope, raw


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        cell: type[Cell],
        reverse: bool,
        a: Tensor,
        offset: Tensor | None,
        weight: Tensor,
        variance: Tensor | None,
        draw: Tensor | None,
        projection: Tensor | None,
        projected: Tensor | None,
        *start: Tensor,
    ) -> tuple[Tensor | None, ...]:
        gates, (steps, count, _) = a.detach(), a.shape
        size = len(weight) // cell.blocks
        hidden = a.new_empty(steps, count, weight.shape[1])
        kept = a.new_empty(steps, count, size if cell.keeps else 0)
        raw = hidden if projection is None else a.new_empty(steps, count, size)
        std = None if variance is None else a.new_empty(steps, count, len(variance))
        state = start
        for t in _order(steps, reverse):
            b = gates[t].addmm_(state[0], weight.T) if offset is None else offset[t].addmm(state[0], weight.T)
            if variance is not None and draw is not None and std is not None:
                std[t] = Noise(variance, draw).std(state[0])
                b.addcmul_(std[t], draw)
            cell.forward(gates[t], b, state, kept[t], raw[t])
            if projection is not None:
                torch.mm(raw[t], projection.T, out=hidden[t])
            state = (hidden[t], kept[t])[: len(start)]
        slope = None if std is None else half_inverse(std)
        ctx.cell, ctx.reverse = cell, reverse
        ctx.save_for_backward(gates, weight, variance, draw, projection, hidden, kept, raw, slope, *start)
        ctx.set_materialize_grads(False)
        unprojected = None if projection is None else raw
        ctx.mark_non_differentiable(*(value for value in (slope, unprojected) if value is not None))
        return hidden, slope, unprojected, *(part.clone() for part in state)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        gates, weight, variance, draw, projection, hidden, kept, raw, slope, *start = ctx.saved_tensors
        cell, reverse, (d_hidden, _, _, *d_end) = ctx.cell, ctx.reverse, grads
        arriving = [torch.zeros_like(s) if d is None else d.clone() for s, d in zip(start, d_end, strict=True)]
        deltas = gates if cell.sums else torch.empty_like(gates)
        at_projection = None if projection is None else torch.empty_like(hidden)
        order = list(_order(len(gates), reverse))
        for t, previous in zip(order[::-1], [*order[-2::-1], None], strict=True):
            state = start if previous is None else (hidden[previous], kept[previous])
            if d_hidden is not None:
                arriving[0] += d_hidden[t]
            if at_projection is not None:
                at_projection[t] = arriving[0]
                arriving[0] = arriving[0] @ projection
            delta = cell.backward(gates[t], kept[t], state, arriving)
            if not cell.sums:
                deltas[t] = delta
            arriving[0] = torch.addmm(arriving[0], delta, weight) if cell.carries else delta @ weight
            if slope is not None:
                u = variance_gradient(delta, draw, slope[t])
                arriving[0].addcmul_(state[0], u @ variance, value=2)
        d_weight = d_variance = d_projection = None
        if ctx.needs_input_grad[4] or ctx.needs_input_grad[5]:
            came_in = before(hidden, start[0], reverse)
            d_weight = _summed_outer(deltas, came_in)
            if ctx.needs_input_grad[5]:
                d_variance = _summed_outer(variance_gradient(deltas, draw, slope), came_in.square())
        if at_projection is not None and ctx.needs_input_grad[7]:
            d_projection = _summed_outer(at_projection, raw)
        d_offset = None if cell.sums else deltas
        return None, None, gates, d_offset, d_weight, d_variance, None, d_projection, at_projection, *arriving


def _order(steps: int, reverse: bool) -> range:
    return range(steps)[::-1] if reverse else range(steps)


def _summed_outer(left: Tensor, right: Tensor) -> Tensor:
    """Σ over steps and examples of left ⊗ right, from [T, B, out] and [T, B, in]."""
    return left.flatten(0, 1).T @ right.flatten(0, 1)
