"""The recurrence of ``nn.RNN``, ``nn.GRU`` and ``nn.LSTM`` written out, with its linear maps left to the caller."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["LinearMap", "State", "as_sequence", "directions", "unroll"]

State: TypeAlias = tuple[Tensor, ...]
"""The hidden state h, and for an LSTM also the cell c."""

LinearMap: TypeAlias = Callable[[str, Tensor], Tensor]
"""``linear_map(name, value)``: the pre-activations that the weight of this name gives (its bias included)."""

_Cell: TypeAlias = Callable[[Tensor, Tensor, State], State]


def unroll(layer: nn.RNNBase, x: Tensor, state: State, linear_map: LinearMap) -> tuple[Tensor, State]:
    """What the layer computes, step by step, with ``linear_map`` in place of its matrix products.

    At depth l every gate sees a = W_ih x_t + b_ih and b = W_hh h_(t-1) + b_hh. The first is asked for once for the
    whole sequence, ``linear_map("weight_ih_l0", x [T, B, in])``, the second once for each step,
    ``linear_map("weight_hh_l0", h [B, hidden])``; "_reverse" is added for the backward direction. An LSTM with
    ``proj_size`` also asks for ``linear_map("weight_hr_l0", h)``, which has no bias.

    Edge cases: dropout between the layers is drawn from torch's generator, in the order of the layer itself.

    Args:
        layer: any of the three.
        x: [T, B, in], time first.
        state: one tensor [depth · directions, B, hidden], two for an LSTM.
        linear_map: the pre-activations of a weight.

    Returns:
        The outputs [T, B, directions · hidden] and the last state, shaped like ``state``.

    >>> layer = nn.GRU(3, 2)
    >>> x, start = torch.randn(4, 5, 3), torch.zeros(1, 5, 2)
    >>> plain = lambda name, v: F.linear(v, getattr(layer, name), getattr(layer, name.replace("weight", "bias")))
    >>> torch.allclose(unroll(layer, x, (start,), plain)[0], layer(x)[0], atol=1e-6)
    True
    """
    ends: list[State] = []
    for depth in range(layer.num_layers):
        outputs = []
        for suffix in directions(layer):
            start = tuple(part[len(ends)] for part in state)
            inputs = linear_map(f"weight_ih_l{depth}{suffix}", x)
            hidden, end = _scan(layer, inputs, start, linear_map, f"l{depth}{suffix}")
            outputs.append(hidden)
            ends.append(end)
        x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
        if depth < layer.num_layers - 1:
            x = F.dropout(x, layer.dropout, layer.training)
    return x, tuple(torch.stack(parts) for parts in zip(*ends, strict=True))


def directions(layer: nn.RNNBase) -> tuple[str, ...]:
    """What the names of the weights of each direction end in."""
    return ("", "_reverse") if layer.bidirectional else ("",)


def as_sequence(layer: nn.RNNBase, x: Tensor, state: Tensor | State | None) -> tuple[Tensor, State]:
    """The arguments of a layer as :func:`unroll` takes them: time first, a tuple, zeros where no state is given."""
    x = x.transpose(0, 1) if layer.batch_first else x
    if state is None:
        sizes = (layer.proj_size or layer.hidden_size, layer.hidden_size)[: 2 if layer.mode == "LSTM" else 1]
        return x, tuple(x.new_zeros(layer.num_layers * len(directions(layer)), x.shape[1], size) for size in sizes)
    return x, state if isinstance(state, tuple) else (state,)


def _scan(layer: nn.RNNBase, inputs: Tensor, state: State, linear_map: LinearMap, end: str) -> tuple[Tensor, State]:
    """One layer in one direction: all hidden states in the order of time, and the state it ends in."""
    cell, backward = _CELLS[layer.mode], end.endswith("_reverse")
    hidden = []
    for step in reversed(list(inputs)) if backward else inputs:
        state = cell(step, linear_map(f"weight_hh_{end}", state[0]), state)
        if layer.proj_size:
            state = (linear_map(f"weight_hr_{end}", state[0]), *state[1:])
        hidden.append(state[0])
    return torch.stack(hidden[::-1] if backward else hidden), state


def _lstm(a: Tensor, b: Tensor, state: State) -> State:
    i, f, g, o = (a + b).chunk(4, -1)
    cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def _gru(a: Tensor, b: Tensor, state: State) -> State:
    (a_r, a_z, a_n), (b_r, b_z, b_n) = a.chunk(3, -1), b.chunk(3, -1)
    update = (a_z + b_z).sigmoid()
    candidate = (a_n + (a_r + b_r).sigmoid() * b_n).tanh()
    return ((1 - update) * candidate + update * state[0],)


def _rnn_tanh(a: Tensor, b: Tensor, state: State) -> State:
    return ((a + b).tanh(),)


def _rnn_relu(a: Tensor, b: Tensor, state: State) -> State:
    return ((a + b).relu(),)


_CELLS: dict[str, _Cell] = {"LSTM": _lstm, "GRU": _gru, "RNN_TANH": _rnn_tanh, "RNN_RELU": _rnn_relu}
