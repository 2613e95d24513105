"""``nn.RNN``, ``nn.GRU`` and ``nn.LSTM`` written out: all layers, both directions."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional as F

from dpvd.nn.recurrent.cells import CELLS, State
from dpvd.nn.recurrent.scan import Noise, before, half_inverse, scan

__all__ = ["Pass", "Weights", "WeightsOf", "directions", "own_weights", "unroll"]


@dataclass(frozen=True)
class Weights:
    """What one layer multiplies with in one direction, and the noise on it."""

    ih: Tensor  # [gates, in]
    hh: Tensor  # [gates, hidden]
    bias_ih: Tensor | None = None  # [gates]
    bias_hh: Tensor | None = None  # [gates]
    hr: Tensor | None = None  # [proj_size, hidden_size], of an LSTM with projections
    noise_ih: Noise | None = None
    noise_hh: Noise | None = None

    def detach(self) -> "Weights":
        """The same as constants."""
        constants: dict[str, Any] = {}
        for name, value in vars(self).items():
            if value is not None:
                constants[name] = value.detach()
        return Weights(**constants)


WeightsOf: TypeAlias = Callable[[str], Weights]
"""``weights_of("l0_reverse")``: by what the names of the parameters end in."""


@dataclass
class Pass:
    """What one layer computed in one direction, for a reader who wants gradients by example.

    Attributes:
        end: what the names of the layer's parameters in this direction end in.
        weights: what it multiplied with.
        inputs: [T, B, in].
        hidden: h_t, [T, B, hidden].
        start: the first h.
        raw: h_t before their projection, or None.
        slopes: by matrix, "ih" and "hh", 1 / (2√v) of its noise at each step, [T, B, gates] or [T,
            B, 1].
        edges: by matrix, where in the graph the gradient [T, B, gates] of what it gave arrives;
            "hh" is left out where it is that of "ih".
    """

    end: str
    weights: Weights
    inputs: Tensor
    start: Tensor
    hidden: Tensor = field(init=False)
    raw: Tensor | None = None
    slopes: dict[str, Tensor] = field(default_factory=dict)
    edges: dict[str, Any] = field(default_factory=dict)

    @property
    def reverse(self) -> bool:
        return self.end.endswith("_reverse")

    def before(self) -> Tensor:
        """h_(t-1), [T, B, hidden]."""
        hidden = self.hidden.detach()
        return before(hidden, self.start, self.reverse)


def unroll(
    layer: nn.RNNBase,
    x: Tensor,
    state: Any,
    weights_of: WeightsOf,
    passes: list[Pass] | None = None,
) -> tuple[Tensor, Any]:
    """What ``layer(x, state)`` computes, with these weights in place of its own.

    Edge cases: dropout between the layers is drawn from torch's generator, in the order of the
    layer itself.

    Args:
        layer: any of the three.
        x: [T, B, in], or [B, T, in] if the layer has the batch first.
        state: as the layer takes it; None for zeros.
        weights_of: the weights of each layer and direction.
        passes: a list that is filled with what was computed. The weights are taken as constants
            then: gradients arrive at the edges of the passes, and go on to x and the state only.

    Returns:
        What the layer returns.

    >>> layer = nn.GRU(3, 2, num_layers=2, batch_first=True)
    >>> x = torch.randn(5, 4, 3)
    >>> torch.allclose(unroll(layer, x, None, own_weights(layer))[0], layer(x)[0], atol=1e-6)
    True
    """
    if layer.batch_first:
        x = x.transpose(0, 1)  # [T, B, in]
    starts = _start(layer, x, state)  # each [layers · directions, B, hidden]
    ends: list[State] = []
    for depth in range(layer.num_layers):
        outputs = []  # by direction, [T, B, hidden]
        for suffix in directions(layer):
            end = f"l{depth}{suffix}"
            start = tuple(part[len(ends)] for part in starts)
            first_hidden = start[0].detach()
            one = Pass(end, weights_of(end), x.detach(), first_hidden)
            hidden, last = _run(layer.mode, x, start, one, constant=passes is not None)
            outputs.append(hidden)
            ends.append(last)
            if passes is not None:
                passes.append(one)
        x = outputs[0]
        if len(outputs) > 1:
            x = torch.cat(outputs, -1)
        if depth < layer.num_layers - 1:
            x = F.dropout(x, layer.dropout, layer.training)
    if layer.batch_first:
        x = x.transpose(0, 1)
    last_state = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
    if len(last_state) == 1:
        return x, last_state[0]
    return x, last_state


def directions(layer: nn.RNNBase) -> tuple[str, ...]:
    """What the names of the weights of each direction end in."""
    if layer.bidirectional:
        return ("", "_reverse")
    return ("",)


def own_weights(layer: nn.RNNBase) -> WeightsOf:
    """Those that the layer has."""

    def weights_of(end: str) -> Weights:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        parts: list[Any] = [getattr(layer, f"{name}_{end}", None) for name in names]
        return Weights(*parts)

    return weights_of


def _run(mode: str, x: Tensor, start: State, one: Pass, *, constant: bool) -> tuple[Tensor, State]:
    """One layer in one direction; the pass is completed.

    Args:
        mode: of the torch layer.
        x: [T, B, in].
        start: the state before the first step, each [B, hidden].
        one: the pass, with its weights.
        constant: whether gradients stop at the pre-activations instead of going on to the weights.
    """
    cell = CELLS[mode]
    w = one.weights.detach() if constant else one.weights
    if cell.sums:
        bias = _sum(w.bias_ih, w.bias_hh)
        offset = None
    else:
        bias = w.bias_ih
        offset = _offset(w, x)
    a = F.linear(x, w.ih, bias)  # [T, B, gates]
    if w.noise_ih is not None:
        std = w.noise_ih.std(x)
        a.addcmul_(std, w.noise_ih.draw)
        one.slopes["ih"] = half_inverse(std.detach())
    projected = None
    if w.hr is not None:
        projected = w.hr.new_zeros(1).expand(*x.shape[:2], len(w.hr))  # [T, B, proj_size]
    if constant:
        for name, value in {"ih": a, "hh": offset, "hr": projected}.items():
            if value is not None:
                one.edges[name] = get_gradient_edge(value.requires_grad_())
    hidden, last, slope, raw = scan(
        cell,
        a,
        offset,
        w.hh,
        start,
        reverse=one.reverse,
        noise=w.noise_hh,
        projection=w.hr,
        projected=projected,
    )
    one.hidden = hidden
    one.raw = raw
    if slope is not None:
        one.slopes["hh"] = slope
    return hidden, last


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    if first is None or second is None:
        return None
    return first + second


def _offset(weights: Weights, x: Tensor) -> Tensor:
    """b_hh, or zero, for each step and example, without being written out."""
    bias = weights.bias_hh
    if bias is None:
        bias = weights.hh.new_zeros(1)
    steps, count, _ = x.shape
    return bias.expand(steps, count, len(weights.hh))


def _start(layer: nn.RNNBase, x: Tensor, state: Any) -> State:
    """The state as a tuple, zeros where none is given; each [layers · directions, B, hidden]."""
    if state is not None:
        if isinstance(state, tuple):
            return state
        return (state,)
    passes = layer.num_layers * len(directions(layer))
    count = x.shape[1]
    width = layer.proj_size or layer.hidden_size
    h = x.new_zeros(passes, count, width)
    if layer.mode != "LSTM":
        return (h,)
    c = x.new_zeros(passes, count, layer.hidden_size)
    return h, c
