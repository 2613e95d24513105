"""What a gradient rule is given and what it returns: read this to add a rule for a layer.

A rule is given a layer, one recorded `Call` of it and the gradient that arrives at its output. It
returns terms. The gradient of a weight for one example is a sum of terms S ∘ (l ⊗ r): an outer
product of the gradient at the layer's output with the layer's input, times a matrix S that the
examples share (absent for plain weights).

No term may share memory with a parameter: norms are measured from the terms, and sums are made
from them later.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor

from dpvd.errors import DpvdError
from dpvd.grads.clipping import Unit
from dpvd.grads.per_example import blocks

__all__ = [
    "HALF",
    "Call",
    "CannotFactor",
    "Convolved",
    "CustomForwardRule",
    "Deferred",
    "Direct",
    "ForwardTrace",
    "Geometry",
    "HiddenGraph",
    "Lookup",
    "MultiOutputRule",
    "Outer",
    "Record",
    "Rule",
    "Term",
    "Terms",
    "in_full",
    "leaves",
    "rows",
    "sum_to_channels",
    "sum_to_last",
    "variance_gradient",
    "variance_share",
    "with_positions",
]


HALF = (torch.bfloat16, torch.float16)
"""Too coarse for norms and sums: see `in_full`."""


class CannotFactor(Exception):
    """The factored engine cannot treat this model; the message says why. Another one does."""


class HiddenGraph(DpvdError):
    """A part of what the model computes cannot be differentiated by any engine."""


# What a rule is given


@dataclass
class Call:
    """One call of a unit in one forward pass.

    Attributes:
        unit: the module that was called.
        args: its positional arguments.
        kwargs: its keyword arguments.
        draws: the random numbers the unit drew, each with the batch first.
        aux: what the layer recorded with each draw: the standard deviation it was multiplied by.
        edges: where the gradient of each output arrives in the graph.
        saved: what the rule's own forward pass saved for its terms.
        layout: where the batch is, if that is not where the rule expects it.
    """

    unit: Unit
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    draws: list[Tensor]
    aux: list[Tensor | None]
    edges: list[Any] = field(default_factory=list)
    saved: Any = None
    layout: Any = None

    def __post_init__(self) -> None:
        self._versions_at_call = self._versions()

    def input(self) -> Tensor:
        """The single tensor the unit was called with."""
        if not self._has_one_tensor():
            raise CannotFactor(f"{self.unit.name!r} was called with more than one input")
        (tensor,) = self.args
        assert isinstance(tensor, Tensor)
        return tensor

    def check_unchanged(self) -> None:
        """Raise if an input was overwritten in place after the call: its gradient is lost."""
        if self._versions_at_call != self._versions():
            raise CannotFactor(
                f"an input of {self.unit.name!r} was changed in place after the call"
            )

    def check_batch(
        self, grads: tuple[Tensor | None, ...], batch_dims: tuple[int, ...], count: int
    ) -> None:
        """Raise if an output does not have ``count`` examples where they should be."""
        for grad, dim in zip(grads, batch_dims, strict=True):
            if grad is None or (grad.dim() > dim and grad.shape[dim] == count):
                continue
            where = "its first dimension" if dim == 0 else f"dimension {dim}"
            raise CannotFactor(
                f"the output of {self.unit.name!r} does not have the batch as {where}"
            )

    def _has_one_tensor(self) -> bool:
        if len(self.args) != 1 or self.kwargs:
            return False
        (only,) = self.args
        return isinstance(only, Tensor)

    def _versions(self) -> list[int]:
        """How often each input has been written to."""
        if self._has_one_tensor():  # as most are called
            return [self.args[0]._version]
        inputs = leaves((*self.args, *self.kwargs.values()))
        return [value._version for value in inputs if isinstance(value, Tensor)]


@dataclass(frozen=True, eq=False)
class Record:
    """A place in the graph at which the gradients of some parameters are taken.

    Attributes:
        edge: where the gradient arrives that they are taken from.
        taken: identities of these parameters.
        inputs: what else gradients flow to from there: edges as pairs of node and number.
    """

    edge: Any
    taken: frozenset[int]
    inputs: frozenset[tuple[Any, int]]


def leaves(value: Any) -> list[Any]:
    """What a nest of tuples and lists contains, in order.

    >>> leaves((1, (2, [None])))
    [1, 2, None]
    """
    if not isinstance(value, tuple | list):
        return [value]
    found = []
    for part in value:
        found += leaves(part)
    return found


# What a rule returns


@dataclass(frozen=True)
class Outer:
    """S ∘ Σ_t (left_t ⊗ right_t) for each example.

    Args:
        left: [B, out] or [B, T, out].
        right: [B, in] or [B, T, in].
        scale: [out, in / groups] or absent.
        groups: both factors fall into this many blocks, and only blocks at the same index are
            multiplied: the gradient is [out, in / groups].
    """

    left: Tensor
    right: Tensor
    scale: Tensor | None = None
    groups: int = 1

    @property
    def count(self) -> int:
        return len(self.left)

    @property
    def positions(self) -> int:
        if self.left.dim() == 3:
            return self.left.shape[1]
        return 1

    @property
    def block(self) -> tuple[int, int]:
        """The shape of one group's gradient."""
        return self.left.shape[-1] // self.groups, self.right.shape[-1] // self.groups

    @property
    def entries(self) -> int:
        """How many entries the gradient of one example has."""
        return self.groups * prod(self.block)

    def outer(self, examples: slice | Tensor) -> "Outer":
        """The gradients of some examples in full precision, without their scale."""
        left = in_full(self.left[examples])
        right = in_full(self.right[examples])
        return replace(self, left=left, right=right, scale=None)

    def materialised(self) -> Tensor:
        """[B, out, in / groups]: the per-example gradients."""
        left = blocks(with_positions(in_full(self.left)), self.groups)  # [B, G, T, out / G]
        right = blocks(with_positions(in_full(self.right)), self.groups)  # [B, G, T, in / G]
        product = (left.mT @ right).flatten(1, 2)
        if self.scale is None:
            return product
        return product * self.scale

    def divided_by(self, divisor: Tensor) -> "Outer":
        """The same gradients over a divisor of the parameter's shape."""
        divisor = divisor.flatten(1)  # a convolution's weight has more than two dimensions
        scale = self.scale
        if scale is None:
            scale = torch.ones_like(divisor)
        divided = scale / divisor
        return replace(self, scale=divided)

    def only(self, examples: slice | Tensor) -> "Outer":
        """The gradients of some examples."""
        left = self.left[examples]
        right = self.right[examples]
        return replace(self, left=left, right=right)


@dataclass(frozen=True)
class Direct:
    """Per-example gradients, scale ∘ values.

    Args:
        values: [B, *shape of the parameter].
        scale: of the parameter's shape, shared by all examples; or absent.
    """

    values: Tensor
    scale: Tensor | None = None

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def entries(self) -> int:
        return prod(self.values.shape[1:])

    def materialised(self) -> Tensor:
        values = in_full(self.values)
        if self.scale is None:
            return values
        return values * self.scale

    def only(self, examples: slice | Tensor) -> "Direct":
        return replace(self, values=self.values[examples])

    def divided_by(self, divisor: Tensor) -> "Direct":
        if self.scale is None:
            return replace(self, scale=divisor.reciprocal())
        scale = self.scale / divisor
        return replace(self, scale=scale)


@dataclass(frozen=True)
class Lookup:
    """Σ_t e(index_t) ⊗ values_t for each example: gradients of looked-up rows of a table.

    Args:
        index: [B, T], which rows.
        values: [B, T, d].
        rows: how many rows the table has.
    """

    index: Tensor
    values: Tensor
    rows: int

    @property
    def count(self) -> int:
        return len(self.index)

    @property
    def entries(self) -> int:
        return self.rows * self.values.shape[-1]

    def only(self, examples: slice | Tensor) -> "Lookup":
        return replace(self, index=self.index[examples], values=self.values[examples])

    def materialised(self) -> Tensor:
        """[B, rows, d]."""
        values = in_full(self.values)
        count, _, width = values.shape
        example = torch.arange(count, device=self.index.device)
        first_row = example.unsqueeze(1) * self.rows  # [B, 1]: where an example's table begins
        row = first_row + self.index  # [B, T]
        table = values.new_zeros(count * self.rows, width)
        table.index_add_(0, row.flatten(), values.flatten(0, 1))
        return table.view(count, self.rows, width)

    def divided_by(self, divisor: Tensor) -> "Lookup":
        own = divisor[self.index]  # of the rows looked up
        values = self.values / own
        return replace(self, values=values)


@dataclass(frozen=True)
class Deferred:
    """Gradients too large to be stored: recomputed for a few examples whenever they are needed.

    Args:
        count: B.
        compute: the gradients of some examples, [b, *shape of the parameter]; the same bits
            whenever it is called.
        scale: of the parameter's shape: the gradients are scale ∘ what is computed.
    """

    count: int
    compute: Callable[[slice | Tensor], Tensor]
    scale: Tensor

    @property
    def entries(self) -> int:
        return self.scale.numel()

    def only(self, examples: slice | Tensor) -> "Deferred":
        chosen = torch.arange(self.count, device=self.scale.device)[examples]

        def compute(part: slice | Tensor) -> Tensor:
            return self.compute(chosen[part])

        return replace(self, count=len(chosen), compute=compute)

    def materialised(self) -> Tensor:
        values = self.compute(slice(None))
        return values * self.scale

    def divided_by(self, divisor: Tensor) -> "Deferred":
        scale = self.scale / divisor
        return replace(self, scale=scale)


class Geometry(Protocol):
    """How a convolution lays its kernel over its input, or a transposed one over its output."""

    @property
    def groups(self) -> int: ...

    @property
    def shape(self) -> torch.Size:
        """Of the weight, [out, in / groups, *kernel]."""
        ...

    def positions(self, x: Tensor, grad: Tensor) -> Tensor:
        """[B, T, out]: the left factor, a view."""
        ...

    def patches(self, x: Tensor, grad: Tensor) -> Tensor:
        """[B, T, groups · kernel · in / groups]: the right factor, a copy."""
        ...

    def total(self, x: Tensor, grad: Tensor) -> Tensor:
        """The gradient of the weight, summed over all examples, by the library's own kernel."""
        ...


@dataclass(frozen=True)
class Convolved:
    """Gradients of a convolution's weight: Σ_t left_t ⊗ patch_t for each example.

    Patches are many times as large as the inputs that they are cut from: they are cut for a few
    examples at a time, whenever they are needed. They have the channels last, since runs of them
    can be copied as they are, and so have the gradients that are made of them.

    Args:
        x: [B, channels, *].
        grad: [B, channels, *], the gradient at the output.
        geometry: how patches are cut.
        scale: of the parameter's shape, or absent.
    """

    x: Tensor
    grad: Tensor
    geometry: Geometry
    scale: Tensor | None = None

    @property
    def count(self) -> int:
        return len(self.x)

    @property
    def groups(self) -> int:
        return self.geometry.groups

    @property
    def positions(self) -> int:
        return self.geometry.positions(self.x[:1], self.grad[:1]).shape[1]

    @property
    def block(self) -> tuple[int, int]:
        out, *rest = self.geometry.shape
        return out // self.groups, prod(rest)

    @property
    def entries(self) -> int:
        return prod(self.geometry.shape)

    def only(self, examples: slice | Tensor) -> "Convolved":
        return replace(self, x=self.x[examples], grad=self.grad[examples])

    def outer(self, examples: slice | Tensor) -> Outer:
        """The gradients of some examples in full precision, channels last, without their scale."""
        x = in_full(self.x[examples])
        grad = in_full(self.grad[examples])
        left = self.geometry.positions(x, grad)
        right = self.geometry.patches(x, grad)
        return Outer(left, right, groups=self.groups)

    def materialised(self) -> Tensor:
        """[B, *shape of the parameter]."""
        out, channels, *kernel = self.geometry.shape
        values = self.outer(slice(None)).materialised()
        values = values.view(self.count, out, *kernel, channels).movedim(-1, 2)
        return values if self.scale is None else values * self.scale

    def divided_by(self, divisor: Tensor) -> "Convolved":
        if self.scale is None:
            return replace(self, scale=divisor.reciprocal())
        return replace(self, scale=self.scale / divisor)


Term = Outer | Direct | Lookup | Deferred | Convolved
Terms = dict[str, list[Term]]
"""The terms of each parameter's gradient, by the parameter's name in the layer."""


# What a rule is

Rule = Callable[[Any, Call, Tensor], Terms]
"""``rule(layer, call, grad)`` for a layer that returns one tensor with the batch first."""


@dataclass(frozen=True)
class MultiOutputRule:
    """A rule for a module that does not simply return one tensor with the batch first.

    Args:
        terms: ``terms(layer, call, *grads)``, with one gradient for each output, None where none
            arrived.
        batch_dims: for a layer, where the batch is in each of its outputs, in the order in which
            they are nested.
    """

    terms: Callable[..., Terms]
    batch_dims: Callable[[Any], tuple[int, ...]]

    def __call__(self, layer: Any, call: Call, *grads: Tensor | None) -> Terms:
        return self.terms(layer, call, *grads)


@dataclass(frozen=True)
class ForwardTrace:
    """What a forward pass run by a rule leaves for the rule's terms.

    Args:
        edges: where in the graph the gradients arrive that the rule needs.
        saved: what else it needs.
    """

    edges: list[Any]
    saved: Any


@dataclass(frozen=True)
class CustomForwardRule(MultiOutputRule):
    """A rule that needs gradients from inside a module, and so runs its forward pass itself.

    Args:
        terms: ``terms(layer, call, *grads)``, with the gradient at each of the edges, None where
            none arrived.
        batch_dims: for a layer, where the batch is in the gradient at each edge.
        forward: ``forward(unit, *args, **kwargs)``: what the module returns, and the trace.
    """

    forward: Callable[..., tuple[Any, ForwardTrace]]


# Steps that several rules share


def in_full(values: Tensor) -> Tensor:
    """The same numbers in a type that norms and sums can be made in: float32 for half precision."""
    if values.dtype in HALF:
        return values.float()
    return values


def with_positions(factor: Tensor) -> Tensor:
    """[B, T, d] as it is; [B, d] with one position."""
    if factor.dim() == 3:
        return factor
    return factor.unsqueeze(1)


def rows(factor: Tensor) -> Tensor:
    """[B, d] as it is; [B, ..., d] with all positions in one dimension."""
    if factor.dim() == 2:
        return factor
    return factor.flatten(1, -2)


def sum_to_last(values: Tensor, dims: int = 1) -> Tensor:
    """[B, *last] from [B, ..., *last]: the sum over all positions of an example."""
    if values.dim() == dims + 1:
        return in_full(values)
    return _summed(values.flatten(1, -dims - 1), 1)


def sum_to_channels(values: Tensor) -> Tensor:
    """[B, C] from [B, C, ...]: the sum over all positions of an example."""
    if values.dim() == 2:
        return in_full(values)
    return _summed(values.flatten(2), 2)


def _summed(values: Tensor, dim: int) -> Tensor:
    """The sum over a dimension, of half precision in float32."""
    full = torch.promote_types(values.dtype, torch.float32)
    return values.sum(dim, dtype=full)


def variance_gradient(call: Call, grad: Tensor) -> Tensor:
    """u = dL/dv = g ε / (2√v), zero where there is no variance."""
    (noise,) = call.draws
    (std,) = call.aux
    assert std is not None  # every layer that samples its outputs passes it
    if std.numel() and std.min() > 0:
        return (grad * noise).div_(std).mul_(0.5)
    return torch.where(std > 0, grad * noise / (2 * std), 0.0)


def variance_share(call: Call, grad: Tensor) -> Tensor:
    """u v = g ε √v / 2: by how much each output moves with the logarithm of its variance."""
    (noise,) = call.draws
    (std,) = call.aux
    assert std is not None  # every layer that samples its outputs passes it
    return grad * noise * std / 2
