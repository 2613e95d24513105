"""A recurrence over a whole sequence, one layer in one direction, with a backward pass of its own.

Autograd over the steps would keep a dozen tensors for each and add up weight gradients step by
step. Here the backward pass stops at the pre-activations of the gates; what weights get follows
from them in one product.

Sizes in comments: T steps, B examples; "gates" is blocks · size with "size" units in a gate;
"hidden" is that of h, which is size, or less behind a projection.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from dpvd.nn.noise import noise_std
from dpvd.nn.recurrent.cells import Cell, State

__all__ = ["Noise", "before", "half_inverse", "scan", "variance_gradient"]


@dataclass(frozen=True)
class Noise:
    """Noise on one weight matrix by local reparameterisation: it gives √(x²σ²) ε more.

    Args:
        variance: σ², [gates, in], or [1, in] where all gates share it.
        draw: ε, [B, gates].
    """

    variance: Tensor
    draw: Tensor

    def std(self, value: Tensor) -> Tensor:
        """√(x²σ²) for inputs [..., in]: [..., gates] or [..., 1]."""
        squares = value.square()
        variance = F.linear(squares, self.variance)
        return noise_std(variance)

    def detach(self) -> "Noise":
        """The same as constants."""
        variance = self.variance.detach()
        return Noise(variance, self.draw)


def half_inverse(std: Tensor) -> Tensor:
    """1 / (2√v), the derivative of √v; 0 where v is."""
    inverse = 0.5 / std
    return torch.where(std > 0, inverse, 0.0)


def variance_gradient(delta: Tensor, draw: Tensor, slope: Tensor) -> Tensor:
    """u = dL/dv = δ ε / (2√v), summed over the gates that share v.

    Args:
        delta: δ, [..., B, gates].
        draw: ε, [B, gates].
        slope: 1 / (2√v), [..., B, gates] or [..., B, 1]; u has this shape.
    """
    product = delta * draw
    if slope.shape[-1] == 1:
        product = product.sum(-1, keepdim=True)
    return product * slope


def before(hidden: Tensor, start: Tensor, reverse: bool) -> Tensor:
    """h_(t-1) for all t, [T, B, hidden], from h_t and the state at the start."""
    first = start.unsqueeze(0)
    if reverse:
        later = hidden[1:]
        return torch.cat([later, first])
    earlier = hidden[:-1]
    return torch.cat([first, earlier])


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

    Guarantees: differentiable once in every tensor but ε. The gradients of ``a``, ``offset`` and
    ``projected`` are those that arrive at the pre-activations of each step; those of weights are
    only formed if asked for.

    Edge cases: ``a`` is *overwritten*, without autograd being told: by activations, then by
    gradients. Whatever made it must not need its own result to go back (a linear map does not), and
    nobody else may read it. Going back a second time over the same pass is refused by autograd,
    since activations are gone.

    Args:
        cell: the recurrence.
        a: [T, B, gates], W_ih x_t + b_ih.
        offset: [T, B, gates], b_hh for each step; None if the cell sums a and b, and a holds b_hh.
        weight: W_hh, [gates, hidden].
        start: the state before the first step: h [B, hidden], and for an LSTM also c [B, size].
        reverse: whether to go from the last step to the first.
        noise: that of W_hh.
        projection: W_hr of an LSTM with ``proj_size``, [hidden, size].
        projected: [T, B, hidden], zeros: its gradient is the one that arrives at the projections.

    Returns:
        - all h_t, [T, B, hidden], in the order of time;
        - the state at the end;
        - 1 / (2√v) of the noise, [T, B, gates] or [T, B, 1], without gradients; None without noise;
        - all h_t before their projection, [T, B, size], without gradients; None without one.
    """
    variance = None if noise is None else noise.variance
    draw = None if noise is None else noise.draw
    apply: Any = _Scan.apply  # untyped in torch
    hidden, slope, raw, *end = apply(
        cell,
        reverse,
        a,
        offset,
        weight,
        variance,
        draw,
        projection,
        projected,
        *start,
    )
    return hidden, tuple(end), slope, raw


class _Saved(NamedTuple):
    """What the backward pass needs of the forward pass, beside the state at the start."""

    gates: Tensor  # [T, B, gates], activations; dL/da is written over them
    weight: Tensor  # W_hh, [gates, hidden]
    variance: Tensor | None  # σ² of W_hh, [gates, hidden] or [1, hidden]
    draw: Tensor | None  # ε, [B, gates]
    projection: Tensor | None  # W_hr, [hidden, size]
    hidden: Tensor  # h_t, [T, B, hidden]
    kept: Tensor  # what the cell keeps of each step, [T, B, size], or [T, B, 0]
    raw: Tensor  # h_t before their projection, [T, B, size]
    slope: Tensor | None  # 1 / (2√v), [T, B, gates] or [T, B, 1]


class _Scan(torch.autograd.Function):
    """:func:`scan` with the parts of the noise, and the state, as arguments of their own."""

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
        steps, count, _ = a.shape
        size = len(weight) // cell.blocks
        width = weight.shape[1]  # of h
        gates = a.detach()  # [T, B, gates]; the cell writes activations over it
        hidden = a.new_empty(steps, count, width)
        kept = a.new_empty(steps, count, size if cell.keeps else 0)
        raw = hidden
        if projection is not None:
            raw = a.new_empty(steps, count, size)
        noise = None
        std = None  # √v, [T, B, gates], or [T, B, 1] where all gates share it
        if variance is not None and draw is not None:
            noise = Noise(variance, draw)
            std = a.new_empty(steps, count, len(variance))

        state = start
        for t in _order(steps, reverse):
            h = state[0]  # [B, hidden]
            step_offset = None if offset is None else offset[t]
            b = _recurrent_part(gates[t], step_offset, h, weight)  # [B, gates]
            if noise is not None and std is not None:
                std[t] = noise.std(h)
                b.addcmul_(std[t], noise.draw)
            cell.forward(gates[t], b, state, kept[t], raw[t])
            if projection is not None:
                torch.mm(raw[t], projection.T, out=hidden[t])
            state = (hidden[t], kept[t])[: len(start)]

        slope = None if std is None else half_inverse(std)
        saved = _Saved(gates, weight, variance, draw, projection, hidden, kept, raw, slope)
        ctx.cell = cell
        ctx.reverse = reverse
        ctx.save_for_backward(*saved, *start)
        ctx.set_materialize_grads(False)
        unprojected = None if projection is None else raw
        constants = [value for value in (slope, unprojected) if value is not None]
        ctx.mark_non_differentiable(*constants)
        end = [part.clone() for part in state]
        return hidden, slope, unprojected, *end

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        fields = len(_Saved._fields)
        saved = _Saved(*ctx.saved_tensors[:fields])
        start = ctx.saved_tensors[fields:]
        d_hidden, _, _, *d_end = grads
        arriving = [
            torch.zeros_like(part) if gradient is None else gradient.clone()
            for part, gradient in zip(start, d_end, strict=True)
        ]
        deltas, at_projection = _go_back(ctx.cell, ctx.reverse, saved, start, d_hidden, arriving)

        _, _, _, _, wants_weight, wants_variance, _, wants_projection, *_ = ctx.needs_input_grad
        d_weight = None
        d_variance = None
        d_projection = None
        if wants_weight or wants_variance:
            came_in = before(saved.hidden, start[0], ctx.reverse)  # h_(t-1), [T, B, hidden]
            if wants_weight:
                d_weight = _summed_outer(deltas, came_in)
            if wants_variance and saved.draw is not None and saved.slope is not None:
                u = variance_gradient(deltas, saved.draw, saved.slope)
                d_variance = _summed_outer(u, came_in.square())
        if wants_projection and at_projection is not None:
            d_projection = _summed_outer(at_projection, saved.raw)
        return (
            None,  # cell
            None,  # reverse
            saved.gates,  # a
            None if ctx.cell.sums else deltas,  # offset
            d_weight,
            d_variance,
            None,  # draw
            d_projection,
            at_projection,  # projected
            *arriving,  # start
        )


def _recurrent_part(a: Tensor, offset: Tensor | None, h: Tensor, weight: Tensor) -> Tensor:
    """b = W h + offset, [B, gates]; without an offset it is a + b, written over ``a``."""
    if offset is None:
        return a.addmm_(h, weight.T)
    return offset.addmm(h, weight.T)


def _go_back(
    cell: type[Cell],
    reverse: bool,
    saved: _Saved,
    start: State,
    d_hidden: Tensor | None,
    arriving: list[Tensor],
) -> tuple[Tensor, Tensor | None]:
    """From the last step to the first: what arrives at b_t, and at the projections, of all steps.

    Writes dL/da over ``saved.gates``.

    Args:
        cell, reverse: as for :func:`scan`.
        saved: of the forward pass.
        start: the state before the first step.
        d_hidden: dL/dh_t from outside of the recurrence, [T, B, hidden], or None for none.
        arriving: the gradients of the state at the end, overwritten by those of the start.

    Returns:
        δ = dL/db, [T, B, gates]; and dL/dh_t before it goes through the projections, [T, B,
        hidden], or None without projections.
    """
    gates = saved.gates  # [T, B, gates]
    projection = saved.projection
    deltas = gates if cell.sums else torch.empty_like(gates)
    at_projection = None
    if projection is not None:
        at_projection = torch.empty_like(saved.hidden)
    order = _order(len(gates), reverse)
    for position in reversed(range(len(order))):
        t = order[position]
        before_step = start
        if position > 0:
            previous = order[position - 1]
            before_step = (saved.hidden[previous], saved.kept[previous])
        if d_hidden is not None:
            arriving[0] += d_hidden[t]
        if at_projection is not None and projection is not None:
            at_projection[t] = arriving[0]
            arriving[0] = arriving[0] @ projection  # [B, size]
        delta = cell.backward(gates[t], saved.kept[t], before_step, arriving)  # [B, gates]
        if not cell.sums:
            deltas[t] = delta
        if cell.carries:
            arriving[0] = torch.addmm(arriving[0], delta, saved.weight)  # [B, hidden]
        else:
            arriving[0] = delta @ saved.weight  # [B, hidden]
        _add_through_variance(saved, t, delta, before_step[0], arriving[0])
    return deltas, at_projection


def _add_through_variance(
    saved: _Saved, t: int, delta: Tensor, h_before: Tensor, total: Tensor
) -> None:
    """Add to ``total`` [B, hidden] what reaches h_(t-1) through the variance of its noise."""
    if saved.variance is None or saved.draw is None or saved.slope is None:
        return
    u = variance_gradient(delta, saved.draw, saved.slope[t])
    total.addcmul_(h_before, u @ saved.variance, value=2)  # dv/dh = 2 h σ²


def _order(steps: int, reverse: bool) -> range:
    """The steps in the order in which they are taken."""
    forwards = range(steps)
    return forwards[::-1] if reverse else forwards


def _summed_outer(left: Tensor, right: Tensor) -> Tensor:
    """Σ over steps and examples of left ⊗ right, from [T, B, out] and [T, B, in]."""
    left_rows = left.flatten(0, 1)  # [T B, out]
    right_rows = right.flatten(0, 1)  # [T B, in]
    return left_rows.T @ right_rows
