"""Per-example gradients of a parameter as terms: what a layer's rule says of them, before anything
is computed.

The gradient of a weight for one example is a sum of terms S ∘ (l ⊗ r): an outer product of what
flows back to the layer's output with what came into it, times a matrix S that the examples share
(absent for plain weights).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "Direct",
    "Formed",
    "Lookup",
    "Outer",
    "Term",
    "blocks",
    "gram_is_cheaper",
    "materialised",
    "with_positions",
]

ENTRY_COST = 8  # multiplications in the time that an entry of a stored gradient takes; measured


@dataclass(frozen=True)
class Outer:
    """S ∘ Σ_t (left_t ⊗ right_t) for each example.

    Args:
        left: [B, out] or [B, T, out].
        right: [B, in] or [B, T, in].
        scale: [out, in / groups] or absent.
        groups: both factors fall into this many blocks, and only blocks of the same place are
            multiplied: the gradient is [out, in / groups].
    """

    left: Tensor
    right: Tensor
    scale: Tensor | None = None
    groups: int = 1

    @property
    def positions(self) -> int:
        return self.left.shape[1] if self.left.dim() == 3 else 1


@dataclass(frozen=True)
class Direct:
    """Per-example gradients as they are, or all times the same.

    Args:
        values: [B, *shape of the parameter].
        scale: of the parameter's shape: the gradients are scale ∘ values. Or absent.
    """

    values: Tensor
    scale: Tensor | None = None


@dataclass(frozen=True)
class Lookup:
    """Σ_t e(index_t) ⊗ values_t for each example: gradients of the rows of a table that were looked
    up.

    Args:
        index: [B, T], which rows.
        values: [B, T, d].
        rows: how many rows the table has.
    """

    index: Tensor
    values: Tensor
    rows: int


@dataclass(frozen=True)
class Formed:
    """Gradients that would take too much memory to be kept: formed whenever they are needed, of a
    few examples.

    Args:
        count: B.
        form: the gradients of some examples, [b, *shape of the parameter]; the same bits whenever
            it is called.
        scale: of the parameter's shape: the gradients are scale ∘ what is formed.
    """

    count: int
    form: Callable[[slice | Tensor], Tensor]
    scale: Tensor


Term = Outer | Direct | Lookup | Formed


def gram_is_cheaper(term: Outer, *, left_is_common: bool = False) -> bool:
    """Whether the factors should be kept, or the gradients that they make up.

    Both cost one product of the factors: for the sum, or for the gradients. Beside it, inner
    products of T positions cost T² (out + in) operations, and gradients out · in entries to be
    written and read, each as slow as eight.
    """
    out, into = term.left.shape[-1] // term.groups, term.right.shape[-1] // term.groups
    return term.positions**2 * (into if left_is_common else out + into) <= ENTRY_COST * out * into


def materialised(term: Term) -> Tensor:
    """[B, ...]: the per-example gradients that a term stands for, as [out, in / G] for a
    product.
    """
    if isinstance(term, Direct):
        return term.values if term.scale is None else term.values * term.scale
    if isinstance(term, Formed):
        return term.form(slice(None)) * term.scale
    if isinstance(term, Lookup):
        count, _, width = term.values.shape
        first = torch.arange(count, device=term.index.device).unsqueeze(1) * term.rows
        table = term.values.new_zeros(count * term.rows, width)
        table.index_add_(0, (first + term.index).flatten(), term.values.flatten(0, 1))
        return table.view(count, term.rows, width)
    left, right = (
        blocks(with_positions(factor), term.groups) for factor in (term.left, term.right)
    )
    product = (left.mT @ right).flatten(1, 2)  # [B, out, in / G]
    return product if term.scale is None else product * term.scale


def blocks(factor: Tensor, groups: int) -> Tensor:
    """[B, G, T, d / G] of a factor [B, T, d]."""
    return factor.reshape(*factor.shape[:2], groups, -1).transpose(1, 2)


def with_positions(factor: Tensor) -> Tensor:
    return factor if factor.dim() == 3 else factor.unsqueeze(1)
