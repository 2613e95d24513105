"""Per-example gradients kept as factors: their norms and weighted sums, without forming them.

The gradient of a weight for one example is a sum of terms S ∘ (l ⊗ r): an outer product of what flows back to
the layer's output with what came into it, times a matrix S that the examples share (absent for plain weights).
Norms and sums follow from the factors:

    ‖Σ_k S_k ∘ (l_k ⊗ r_k)‖² = Σ_(k,m) Σ_o (l_k l_m)_o [(r_k r_m) (S_k ∘ S_m)ᵀ]_o
    Σ_i c_i S ∘ (l_i ⊗ r_i)  = S ∘ (diag(c) l)ᵀ r

Terms with several positions per example (sequences) use the Gram form or are materialised, whichever is cheaper.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations_with_replacement
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Direct", "Outer", "PerExample", "Term", "prepare"]

# Cross terms can cancel; the norm is over-estimated by this many units of rounding of what cancelled.
ROUNDING_UNITS = 8


@dataclass(frozen=True)
class Outer:
    """S ∘ Σ_t (left_t ⊗ right_t) for each example.

    Args:
        left: [B, out] or [B, T, out].
        right: [B, in] or [B, T, in].
        scale: [out, in] or absent.
    """

    left: Tensor
    right: Tensor
    scale: Tensor | None = None

    @property
    def positions(self) -> int:
        return self.left.shape[1] if self.left.dim() == 3 else 1


@dataclass(frozen=True)
class Direct:
    """Per-example gradients as they are: [B, *shape of the parameter]."""

    values: Tensor


Term = Outer | Direct


class PerExample(Protocol):
    """The per-example gradients of one parameter, in whatever form."""

    def squared_norm(self) -> Tensor:
        """[B] squared norms, never below the true ones by more than rounding."""
        ...

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σ_i weights_i · gradient_i for weights [B]; examples of weight zero take no part, whatever they hold."""
        ...


def prepare(terms: Sequence[Term], divisor: Tensor | None = None) -> PerExample:
    """Choose the cheapest form for the sum of these terms, each divided elementwise by ``divisor``."""
    if divisor is not None:
        terms = [_divide(term, divisor) for term in terms]
    outers = [term for term in terms if isinstance(term, Outer)]
    if len(outers) < len(terms):
        return Materialised(sum_materialised(terms))
    if all(term.positions == 1 for term in outers):
        return Factored([_flatten(term) for term in outers])
    if any(term.scale is not None for term in outers):
        return Materialised(sum_materialised(terms))
    left = torch.cat([_with_positions(term.left) for term in outers], dim=1)
    right = torch.cat([_with_positions(term.right) for term in outers], dim=1)
    if 2 * left.shape[1] ** 2 <= left.shape[2] * right.shape[2]:
        return Gram(left, right)
    return Materialised(sum_materialised([Outer(left, right)]))


@dataclass(frozen=True)
class Factored:
    """Terms with one position per example."""

    terms: list[Outer]

    def squared_norm(self) -> Tensor:
        if len(self.terms) == 1 and self.terms[0].scale is None:
            (term,) = self.terms
            return term.left.square().sum(1) * term.right.square().sum(1)
        total = magnitude = torch.zeros_like(self.terms[0].left[:, 0])
        for first, second in combinations_with_replacement(self.terms, 2):
            product = _inner(first, second) * (1 if first is second else 2)
            total = total + product
            magnitude = magnitude + product.abs()
        return total.clamp_min(0) + ROUNDING_UNITS * torch.finfo(total.dtype).eps * magnitude

    def weighted_sum(self, weights: Tensor) -> Tensor:
        parts = []
        for term in self.terms:
            product = _scaled_rows(term.left, weights).T @ _kept_rows(term.right, weights)
            parts.append(product if term.scale is None else product * term.scale)
        return _add(parts)


@dataclass(frozen=True)
class Gram:
    """Unscaled terms with several positions: ‖Σ_t l_t ⊗ r_t‖² = Σ_(s,t) (l_s·l_t)(r_s·r_t)."""

    left: Tensor  # [B, T, out]
    right: Tensor  # [B, T, in]

    def squared_norm(self) -> Tensor:
        product = (self.left @ self.left.mT) * (self.right @ self.right.mT)  # [B, T, T]
        total, magnitude = product.sum((1, 2)), product.abs().sum((1, 2))
        return total.clamp_min(0) + ROUNDING_UNITS * torch.finfo(total.dtype).eps * magnitude

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return _scaled_rows(self.left, weights).flatten(0, 1).T @ _kept_rows(self.right, weights).flatten(0, 1)


@dataclass(frozen=True)
class Materialised:
    """Gradients that are small enough, or too irregular, to be kept as factors."""

    values: Tensor  # [B, *shape]

    def squared_norm(self) -> Tensor:
        return self.values.flatten(1).square().sum(1) if self.values.dim() > 1 else self.values.square()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        total: Tensor = torch.tensordot(weights, _kept_rows(self.values, weights), dims=1)
        return total


def sum_materialised(terms: Sequence[Term]) -> Tensor:
    """[B, *shape]: the per-example gradients that these terms stand for."""
    parts = []
    for term in terms:
        if isinstance(term, Direct):
            parts.append(term.values)
            continue
        product = torch.einsum("bto,bti->boi", _with_positions(term.left), _with_positions(term.right))
        parts.append(product if term.scale is None else product * term.scale)
    return _add(parts)


def _add(parts: list[Tensor]) -> Tensor:
    return reduce(torch.add, parts)


def _divide(term: Term, divisor: Tensor) -> Term:
    if isinstance(term, Direct):
        return Direct(term.values / divisor)
    scale = torch.ones_like(divisor) if term.scale is None else term.scale
    return Outer(term.left, term.right, scale / divisor)


def _inner(first: Outer, second: Outer) -> Tensor:
    """[B] inner products of two terms' gradients."""
    left, right = first.left * second.left, first.right * second.right
    scales = [term.scale for term in (first, second) if term.scale is not None]
    if not scales:
        return left.sum(1) * right.sum(1)
    scale = scales[0] if len(scales) == 1 else scales[0] * scales[1]
    return (left * (right @ scale.T)).sum(1)


def _flatten(term: Outer) -> Outer:
    return term if term.left.dim() == 2 else Outer(term.left.squeeze(1), term.right.squeeze(1), term.scale)


def _with_positions(factor: Tensor) -> Tensor:
    return factor if factor.dim() == 3 else factor.unsqueeze(1)


def _column(weights: Tensor, like: Tensor) -> Tensor:
    return weights.view(-1, *[1] * (like.dim() - 1))


def _kept_rows(rows: Tensor, weights: Tensor) -> Tensor:
    """The rows, with those of weight zero set to zero: 0 · inf would be NaN and poison the sum."""
    if bool((weights != 0).all()):
        return rows
    return torch.where(_column(weights != 0, rows), rows, torch.zeros_like(rows))


def _scaled_rows(rows: Tensor, weights: Tensor) -> Tensor:
    return _kept_rows(rows, weights) * _column(weights, rows)
