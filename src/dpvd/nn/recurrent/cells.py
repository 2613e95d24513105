"""One step of the recurrences of ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN``, forwards and backwards.

Every gate sees a = W_ih x_t + b_ih and b = W_hh h_(t-1) + b_hh. A cell turns a into what its
backward step needs, and that into δ = dL/da, in one and the same buffer: of a sequence [T, B,
gates] only one such buffer is ever held.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

__all__ = ["CELLS", "Cell", "State"]

State: TypeAlias = tuple[Tensor, ...]
"""The hidden state h, and for an LSTM also the cell c."""

# Gradients of the activations from their values y, one pass each, in place:
# g y (1 - y), g (1 - y²) and g (y > 0).
_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input
_relu_backward = torch.ops.aten.threshold_backward.grad_input


class Cell(ABC):
    """A recurrence h_t = cell(a_t, b_t, state before).

    Attributes:
        blocks: how many gates of the hidden size there are.
        sums: whether a and b matter by their sum only. Then δ is the gradient of both, and b has
            been added to the buffer of a already.
        keeps: whether a step needs a tensor [B, hidden] beside its gates to go back.
        carries: whether h_(t-1) also reaches h_t around the gates.
    """

    blocks: ClassVar[int]
    sums: ClassVar[bool]
    keeps: ClassVar[bool]
    carries: ClassVar[bool]

    @staticmethod
    @abstractmethod
    def forward(gates: Tensor, b: Tensor, before: State, kept: Tensor, hidden: Tensor) -> None:
        """Take one step.

        Args:
            gates: a, [B, blocks · hidden], overwritten by the activations.
            b: [B, blocks · hidden].
            before: the state before the step, each [B, hidden].
            kept: [B, hidden], or [B, 0]; filled with what the cell keeps.
            hidden: [B, hidden], filled with h_t.
        """

    @staticmethod
    @abstractmethod
    def backward(gates: Tensor, kept: Tensor, before: State, arriving: list[Tensor]) -> Tensor:
        """Write dL/da over the activations in ``gates`` and return dL/db.

        Args:
            gates, kept: as the forward step left them.
            before: the state before the step.
            arriving: the gradients of the state after it, each [B, hidden], overwritten by those of
                the state before; what reaches h through b is left to the caller.
        """


class _LSTM(Cell):
    """c_t = σ(f) c_(t-1) + σ(i) tanh(g), h_t = σ(o) tanh(c_t); keeps c_t."""

    blocks = 4
    sums = True
    keeps = True
    carries = False

    @staticmethod
    def forward(gates: Tensor, b: Tensor, before: State, kept: Tensor, hidden: Tensor) -> None:
        i, f, g, o = gates.chunk(4, 1)  # views of [B, hidden]
        size = i.shape[1]
        i_and_f = gates[:, : 2 * size]
        i_and_f.sigmoid_()
        g.tanh_()
        o.sigmoid_()
        torch.mul(f, before[1], out=kept)
        kept.addcmul_(i, g)
        torch.tanh(kept, out=hidden)
        hidden.mul_(o)

    @staticmethod
    def backward(gates: Tensor, kept: Tensor, before: State, arriving: list[Tensor]) -> Tensor:
        i, f, g, o = gates.chunk(4, 1)  # views of [B, hidden]: what is written to them is in gates
        dh, dc = arriving
        squashed = kept.tanh()
        # h = σ(o) tanh(c): to c, which has a gradient from the next step already, and to o.
        spare = dh * o
        dc += _tanh_backward(spare, squashed, grad_input=spare)
        _sigmoid_backward(squashed.mul_(dh), o, grad_input=o)
        # c = σ(f) c before + σ(i) tanh(g): products first, since each activation is overwritten.
        torch.mul(dc, g, out=spare)
        torch.mul(dc, i, out=squashed)
        _tanh_backward(squashed, g, grad_input=g)
        _sigmoid_backward(spare, i, grad_input=i)
        torch.mul(dc, before[1], out=spare)
        dc *= f
        _sigmoid_backward(spare, f, grad_input=f)
        return gates


class _GRU(Cell):
    """n = tanh(a_n + σ(r) b_n), h_t = (1 - σ(z)) n + σ(z) h_(t-1); keeps b_n."""

    blocks = 3
    sums = False
    keeps = True
    carries = True

    @staticmethod
    def forward(gates: Tensor, b: Tensor, before: State, kept: Tensor, hidden: Tensor) -> None:
        r, z, n = gates.chunk(3, 1)  # views of [B, hidden]
        both = 2 * r.shape[1]
        r_and_z = gates[:, :both]
        r_and_z.add_(b[:, :both])
        r_and_z.sigmoid_()
        kept.copy_(b[:, both:])
        n.addcmul_(r, kept)
        n.tanh_()
        torch.lerp(n, before[0], z, out=hidden)

    @staticmethod
    def backward(gates: Tensor, kept: Tensor, before: State, arriving: list[Tensor]) -> Tensor:
        r, z, n = gates.chunk(3, 1)
        (dh,) = arriving
        # h = (1 - σ(z)) n + σ(z) h before
        to_z = (before[0] - n).mul_(dh)
        to_n = dh - dh * z
        dh *= z
        _sigmoid_backward(to_z, z, grad_input=z)
        _tanh_backward(to_n, n, grad_input=n)
        # n = tanh(a_n + σ(r) b_n): the gradient of a_n, in n by now, times σ(r) is that of b_n.
        of_b_n = n * r
        of_r = kept * n
        _sigmoid_backward(of_r, r, grad_input=r)
        size = r.shape[1]
        r_and_z = gates[:, : 2 * size]
        return torch.cat([r_and_z, of_b_n], 1)


class _TanhRNN(Cell):
    """h_t = tanh(a + b)."""

    blocks = 1
    sums = True
    keeps = False
    carries = False

    @staticmethod
    def forward(gates: Tensor, b: Tensor, before: State, kept: Tensor, hidden: Tensor) -> None:
        gates.tanh_()
        hidden.copy_(gates)

    @staticmethod
    def backward(gates: Tensor, kept: Tensor, before: State, arriving: list[Tensor]) -> Tensor:
        _tanh_backward(arriving[0], gates, grad_input=gates)
        return gates


class _ReluRNN(Cell):
    """h_t = max(a + b, 0)."""

    blocks = 1
    sums = True
    keeps = False
    carries = False

    @staticmethod
    def forward(gates: Tensor, b: Tensor, before: State, kept: Tensor, hidden: Tensor) -> None:
        gates.relu_()
        hidden.copy_(gates)

    @staticmethod
    def backward(gates: Tensor, kept: Tensor, before: State, arriving: list[Tensor]) -> Tensor:
        _relu_backward(arriving[0], gates, 0, grad_input=gates)
        return gates


CELLS: dict[str, type[Cell]] = {
    "LSTM": _LSTM,
    "GRU": _GRU,
    "RNN_TANH": _TanhRNN,
    "RNN_RELU": _ReluRNN,
}
"""By ``mode`` of the torch layer."""
