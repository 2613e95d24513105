"""One step of the recurrences of ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN``, forwards and backwards, in place.

Every gate sees a = W_ih x_t + b_ih and b = W_hh h_(t-1) + b_hh. A cell turns a into what its backward step needs,
and that into δ = dL/da, in one and the same buffer: of a sequence [T, B, gates] only one such buffer is ever held.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

__all__ = ["CELLS", "Cell", "State"]

State: TypeAlias = tuple[Tensor, ...]
"""The hidden state h, and for an LSTM also the cell c."""

# Gradients of the activations from their values y, g y (1 - y), g (1 - y²) and g (y > 0): one pass each, in place.
_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input
_relu_backward = torch.ops.aten.threshold_backward.grad_input


class Cell(ABC):
    """A recurrence h_t = cell(a_t, b_t, state before).

    Attributes:
        blocks: how many gates of the hidden size there are.
        sums: whether a and b matter by their sum only. Then δ is the gradient of both, and b has been added to the
            buffer of a already.
        keeps: whether a step needs a tensor [B, hidden] beside its gates to go back.
        carries: 1 if h_(t-1) also reaches h_t around the gates, else 0.
    """

    blocks: ClassVar[int]
    sums: ClassVar[bool]
    keeps: ClassVar[bool]
    carries: ClassVar[int]

    @staticmethod
    @abstractmethod
    def forward(gates: Tensor, b: Tensor, before: State, kept: Tensor, hidden: Tensor) -> None:
        """Write activations over a in ``gates`` [B, blocks · hidden], and what the step gives into the last two."""

    @staticmethod
    @abstractmethod
    def backward(gates: Tensor, kept: Tensor, before: State, arriving: list[Tensor]) -> Tensor:
        """Write dL/da over the activations in ``gates`` and return dL/db.

        Args:
            gates, kept: as the forward step left them.
            before: the state before the step.
            arriving: the gradients of the state after it, overwritten by those of the state before; what reaches
                h through b is left to the caller.
        """


class _LSTM(Cell):
    """c_t = σ(f) c_(t-1) + σ(i) tanh(g), h_t = σ(o) tanh(c_t); keeps c_t."""

    blocks, sums, keeps, carries = 4, True, True, 0

    @staticmethod
    def forward(gates: Tensor, b: Tensor, before: State, kept: Tensor, hidden: Tensor) -> None:
        i, f, g, o = gates.chunk(4, 1)
        gates[:, : 2 * i.shape[1]].sigmoid_()  # i and f
        g.tanh_()
        o.sigmoid_()
        torch.mul(f, before[1], out=kept).addcmul_(i, g)
        torch.tanh(kept, out=hidden).mul_(o)

    @staticmethod
    def backward(gates: Tensor, kept: Tensor, before: State, arriving: list[Tensor]) -> Tensor:
        i, f, g, o = gates.chunk(4, 1)
        (dh, dc), squashed = arriving, kept.tanh()
        spare = dh * o
        dc += _tanh_backward(spare, squashed, grad_input=spare)
        _sigmoid_backward(squashed.mul_(dh), o, grad_input=o)
        torch.mul(dc, g, out=spare)
        _tanh_backward(torch.mul(dc, i, out=squashed), g, grad_input=g)
        _sigmoid_backward(spare, i, grad_input=i)
        torch.mul(dc, before[1], out=spare)
        dc *= f
        _sigmoid_backward(spare, f, grad_input=f)
        return gates


class _GRU(Cell):
    """n = tanh(a_n + σ(r) b_n), h_t = (1 - σ(z)) n + σ(z) h_(t-1); keeps b_n."""

    blocks, sums, keeps, carries = 3, False, True, 1

    @staticmethod
    def forward(gates: Tensor, b: Tensor, before: State, kept: Tensor, hidden: Tensor) -> None:
        r, z, n = gates.chunk(3, 1)
        both = 2 * r.shape[1]  # r and z
        gates[:, :both].add_(b[:, :both]).sigmoid_()
        kept.copy_(b[:, both:])
        n.addcmul_(r, kept).tanh_()
        torch.lerp(n, before[0], z, out=hidden)

    @staticmethod
    def backward(gates: Tensor, kept: Tensor, before: State, arriving: list[Tensor]) -> Tensor:
        r, z, n = gates.chunk(3, 1)
        (dh,) = arriving
        to_z, to_n = (before[0] - n).mul_(dh), dh - dh * z
        dh *= z
        _sigmoid_backward(to_z, z, grad_input=z)
        _tanh_backward(to_n, n, grad_input=n)
        through_reset = n * r
        _sigmoid_backward(kept * n, r, grad_input=r)
        return torch.cat([gates[:, : 2 * r.shape[1]], through_reset], 1)


class _TanhRNN(Cell):
    """h_t = tanh(a + b)."""

    blocks, sums, keeps, carries = 1, True, False, 0

    @staticmethod
    def forward(gates: Tensor, b: Tensor, before: State, kept: Tensor, hidden: Tensor) -> None:
        hidden.copy_(gates.tanh_())

    @staticmethod
    def backward(gates: Tensor, kept: Tensor, before: State, arriving: list[Tensor]) -> Tensor:
        _tanh_backward(arriving[0], gates, grad_input=gates)
        return gates


class _ReluRNN(Cell):
    """h_t = max(a + b, 0)."""

    blocks, sums, keeps, carries = 1, True, False, 0

    @staticmethod
    def forward(gates: Tensor, b: Tensor, before: State, kept: Tensor, hidden: Tensor) -> None:
        hidden.copy_(gates.relu_())

    @staticmethod
    def backward(gates: Tensor, kept: Tensor, before: State, arriving: list[Tensor]) -> Tensor:
        _relu_backward(arriving[0], gates, 0, grad_input=gates)
        return gates


CELLS: dict[str, type[Cell]] = {"LSTM": _LSTM, "GRU": _GRU, "RNN_TANH": _TanhRNN, "RNN_RELU": _ReluRNN}
"""By ``mode`` of the torch layer."""
