"""Where the batch is in what a model computes.

Most layers return one tensor with the batch first. Position embeddings, class tokens, relative
biases and learned queries have no batch until they meet one; other layers see it in another
dimension, or flattened with positions ([B·T, d]). Which it is cannot be told from one shape: T may
happen to be B. So the model is run on three examples and on four (`survey`), and what changes its
size with their number is the batch. The outcome is a `ModelLayout`: it holds for every later batch,
since what a dimension means does not depend on how many examples there are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from dpvd.grads.clipping import Unit
from dpvd.grads.factored.rule import CannotFactor
from dpvd.grads.factored.rules import RULES

__all__ = [
    "IRREGULAR",
    "POSITIONAL",
    "CallLayout",
    "Dim",
    "ModelLayout",
    "OpKey",
    "OpLayout",
    "batch_dim",
    "batch_first",
    "find_units",
    "split_batch",
]

Dim = int | None
"""The dimension of a tensor that holds the examples; None if there is none."""

IRREGULAR = -1
"""In place of a dimension: sizes change with the number of examples in another way."""

POSITIONAL = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm)
"""Layers that treat every position alike: their rules take any layout once the batch is first."""


def batch_dim(few: torch.Size, more: torch.Size, counts: tuple[int, int]) -> Dim:
    """The dimension whose size is proportional to the number of examples.

    >>> batch_dim(torch.Size([3, 7]), torch.Size([4, 7]), (3, 4))
    0
    >>> batch_dim(torch.Size([5, 21]), torch.Size([5, 28]), (3, 4))
    1
    >>> batch_dim(torch.Size([1, 7]), torch.Size([1, 7]), (3, 4)) is None
    True
    """
    if len(few) != len(more):
        return IRREGULAR
    changed = [dim for dim, (a, b) in enumerate(zip(few, more, strict=True)) if a != b]
    if not changed:
        return None
    (dim, *others) = changed
    is_proportional = few[dim] * counts[1] == more[dim] * counts[0]
    if others or not is_proportional:
        return IRREGULAR
    return dim


def split_batch(tensor: Tensor, dim: int, count: int) -> Tensor:
    """[..., B, k, ...] of a tensor with k rows for each of B examples in one dimension."""
    size = tensor.shape[dim] if dim < tensor.dim() else -1
    if size % count:
        raise CannotFactor(
            f"a tensor of shape {list(tensor.shape)} does not hold {count} examples in dimension"
            f" {dim}, as it did when the model was surveyed"
        )
    shape = tensor.shape
    return tensor.reshape(*shape[:dim], count, size // count, *shape[dim + 1 :])


def batch_first(tensor: Tensor, dim: int, count: int) -> Tensor:
    """[B, ...] of a tensor with the examples in another dimension, or k rows for each of them."""
    if dim == 0 and len(tensor) == count:
        return tensor
    split = split_batch(tensor, dim, count)
    if split.shape[dim + 1] == 1:
        split = split.squeeze(dim + 1)
    return split.movedim(dim, 0)


@dataclass(frozen=True)
class CallLayout:
    """Where the batch is in one call of a unit.

    Attributes:
        into: in its first input.
        out: in its output.
        is_usual: whether that is where the rule expects it, one row for each example.
    """

    into: Dim
    out: Dim
    is_usual: bool = False

    @property
    def is_shared(self) -> bool:
        """Whether the call has nothing of the batch: all examples share its output."""
        return self.out is None


@dataclass(frozen=True)
class OpLayout:
    """Where the batch is in the tensors of one operation: in its operands and in its results."""

    operands: tuple[Dim, ...]
    results: tuple[Dim, ...]

    @property
    def is_irregular(self) -> bool:
        return IRREGULAR in self.operands or IRREGULAR in self.results

    @property
    def stays_shared(self) -> bool:
        return all(dim is None for dim in self.results)

    @property
    def is_expansion(self) -> bool:
        """Whether the batch comes in by a size alone, as in ``token.expand(len(x), -1, -1)``."""
        return all(dim is None for dim in self.operands)


OpKey = tuple[tuple[str, ...], str]
"""Names of what the shared operands were made from, and the name of the operation."""


@dataclass
class ModelLayout:
    """What the factored engine knows of a model; one for each structure of it.

    Attributes:
        units: the modules that are treated by their rules, and those whose own parameters are
            followed to where they meet the batch.
        calls: by unit, the layout of each of its calls, for units of which not all are usual.
        ops: the layout of each operation on something that examples share.
        why_not: why the model could not be surveyed; empty if it was, or has not been.
        is_surveyed: whether it was tried.
        is_proven: whether every path from the losses to a parameter was seen to be recorded.
    """

    units: list[Unit]
    calls: dict[str, list[CallLayout]] = field(default_factory=dict)
    ops: dict[OpKey, list[OpLayout]] = field(default_factory=dict)
    why_not: str = ""
    is_surveyed: bool = False
    is_proven: bool = False

    @classmethod
    def of(cls, model: nn.Module) -> "ModelLayout":
        """The layout of a model that has not been surveyed."""
        return cls(find_units(model))

    @property
    def loose(self) -> list[Unit]:
        """The modules without a rule: their own parameters are used by operations."""
        return [unit for unit in self.units if unit.rule is None]

    @property
    def needs_tracker(self) -> bool:
        """Whether something has to be followed to where it meets the batch."""
        return bool(self.calls) or any(unit.rule is None for unit in self.units)


def find_units(model: nn.Module, without_rule: Mapping[int, str] | None = None) -> list[Unit]:
    """The units of a model, in order.

    A module with a rule is a unit, with all that is inside. A module that owns trainable parameters
    but has no rule is one for these alone: its children are looked at like any other.

    Args:
        model: the model.
        without_rule: by identity, modules whose rule does not apply, and why.
    """
    unruled = without_rule or {}
    units: list[Unit] = []
    seen: set[int] = set()

    def visit(name: str, module: nn.Module) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        rule = None if id(module) in unruled else RULES.get(type(module))
        owned = module.parameters(recurse=rule is not None)
        if any(parameter.requires_grad for parameter in owned):
            units.append(Unit(name, module, rule))
        if rule is not None:
            return
        prefix = f"{name}." if name else ""
        for child_name, child in module.named_children():
            visit(prefix + child_name, child)

    visit("", model)
    return units
