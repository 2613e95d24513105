"""What rules are made of: their types, and the steps that several of them share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dpvd.grads.terms import Term

if TYPE_CHECKING:
    from dpvd.grads.calls import Call

__all__ = [
    "Inside",
    "ManyOutputs",
    "OwnForward",
    "Rule",
    "Terms",
    "rows",
    "sum_to_channels",
    "sum_to_last",
    "variance_gradient",
    "variance_share",
]

Terms = dict[str, list[Term]]
Rule = Callable[[Any, "Call", Tensor], Terms]


@dataclass(frozen=True)
class ManyOutputs:
    """A rule for a module that does not simply return one tensor with the batch first.

    Args:
        terms: ``terms(layer, call, *grads)``, with one gradient for each output, None where none
            arrived.
        batch_dims: for a layer, where the batch is in each of its outputs, in the order in which
            they are nested.
    """

    terms: Callable[..., Terms]
    batch_dims: Callable[[Any], tuple[int, ...]]

    def __call__(self, layer: Any, call: "Call", *grads: Tensor | None) -> Terms:
        return self.terms(layer, call, *grads)


@dataclass(frozen=True)
class Inside:
    """What is left of a module's inside when a rule has run its forward pass.

    Args:
        edges: where in the graph the gradients arrive that the rule wants.
        memory: what else it needs for its terms.
    """

    edges: list[Any]
    memory: Any


@dataclass(frozen=True)
class OwnForward(ManyOutputs):
    """A rule that wants gradients from inside a module, and so runs the module's forward pass
    itself.

    Args:
        terms: ``terms(layer, call, *grads)``, with the gradient at each of the edges, None where
            none arrived.
        batch_dims: for a layer, where the batch is in the gradient at each edge.
        forward: ``forward(unit, *args, **kwargs)``: what the module returns, and what is left of
            its inside.
    """

    forward: Callable[..., tuple[Any, Inside]]


def rows(factor: Tensor) -> Tensor:
    """[B, d] as it is; [B, ..., d] with all positions in one dimension."""
    return factor if factor.dim() == 2 else factor.flatten(1, -2)


def sum_to_last(values: Tensor, dims: int = 1) -> Tensor:
    """[B, ..., *last]: the sum over all positions of an example, which lie between the batch and
    the last dims.
    """
    return values if values.dim() == dims + 1 else values.flatten(1, -dims - 1).sum(1)


def sum_to_channels(values: Tensor) -> Tensor:
    """[B, C] from [B, C, ...]: the sum over all positions of an example, which lie behind the
    channels.
    """
    return values if values.dim() == 2 else values.flatten(2).sum(2)


def variance_gradient(call: "Call", grad: Tensor) -> Tensor:
    """u = dL/dv = g ε / (2√v), zero where there is no variance."""
    (noise,), (std,) = call.draws, call.aux
    assert std is not None  # every layer that samples its outputs passes it
    if std.numel() and std.min() > 0:
        return (grad * noise).div_(std).mul_(0.5)
    return torch.where(std > 0, grad * noise / (2 * std), 0.0)


def variance_share(call: "Call", grad: Tensor) -> Tensor:
    """u v = g ε √v / 2: by how much each output moves with the logarithm of its variance."""
    (noise,), (std,) = call.draws, call.aux
    assert std is not None  # every layer that samples its outputs passes it
    return grad * noise * std / 2
