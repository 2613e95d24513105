"""Forms of per-example gradients, from which norms and weighted sums follow without forming them.

    ‖Σ_k S_k ∘ (l_k ⊗ r_k)‖² = Σ_(k,m) Σ_o (l_k l_m)_o [(r_k r_m) (S_k ∘ S_m)ᵀ]_o
    Σ_i c_i S ∘ (l_i ⊗ r_i)  = S ∘ (diag(c) l)ᵀ r

Terms with several positions per example (sequences, convolutions) use the Gram form or are
materialised, whichever is cheaper. Looked-up rows of a table touch so few of its entries that they
are kept as they are.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import combinations
from typing import Protocol

import torch
from torch import Tensor

from dpvd.grads.products import GRAM_PIECE, Products, additions, product, rounded_up
from dpvd.grads.terms import (
    Direct,
    Formed,
    Lookup,
    Outer,
    Term,
    gram_is_cheaper,
    materialised,
    with_positions,
)
from dpvd.nn.sum_of_squares import row_squares

__all__ = ["Factored", "FormedAgain", "Gram", "Materialised", "PerExample", "Rows", "prepare"]

HELD_ENTRIES = 1 << 20  # 4 MB
KEPT_ENTRIES = 1 << 24  # 64 MB
SCALED_PIECE = 1024  # products that are added up in one go where norms depend on it


class PerExample(Protocol):
    """The per-example gradients of one parameter, in whatever form."""

    def squared_norm(self, products: "Products") -> Tensor:
        """[B] squared norms, never below the true ones by more than rounding."""
        ...

    def add_sum(self, weights: Tensor, out: Tensor, scale: float) -> None:
        """out += scale · Σ_i weights_i · gradient_i, for weights [B].

        The result goes into a contiguous tensor of the parameter's shape. All gradients must be
        finite: 0 · ∞ would poison the sum.
        """
        ...

    def only(self, examples: Tensor) -> "PerExample":
        """The gradients of these examples, given by their places in the batch."""
        ...


def prepare(
    terms: Sequence[Term], divisor: Tensor | None = None, common: Collection[int] = frozenset()
) -> PerExample:
    """Choose the cheapest form for the sum of these terms, each divided elementwise by ``divisor``.

    Args:
        terms: of one parameter, at least one.
        divisor: of the parameter's shape.
        common: ids of left factors that terms of other parameters have too: their inner products
            cost nothing more.
    """
    if divisor is not None:
        terms = [_divide(term, divisor) for term in terms]
    lookups = [term for term in terms if isinstance(term, Lookup)]
    if len(lookups) == len(terms):
        index, values = (
            torch.cat(parts, dim=1)
            for parts in zip(*((t.index, t.values) for t in lookups), strict=True)
        )
        return Rows(index, values, lookups[0].rows)
    outers = [term for term in terms if isinstance(term, Outer)]
    if len(outers) < len(terms):
        if len(terms) == 1 and isinstance(terms[0], Direct):
            return Materialised(terms[0].values, terms[0].scale)
        if len(terms) == 1 and isinstance(terms[0], Formed):
            return FormedAgain(terms[0])
        return Materialised(_summed(terms))
    if all(term.positions == term.groups == 1 for term in outers):
        return Factored([_flatten(term) for term in outers])
    if len(outers) == 1 and outers[0].scale is not None:
        return FormedAgain(_formed(outers[0], outers[0].scale))
    if any(term.scale is not None for term in outers):
        return Materialised(_summed(terms))
    joined = outers[0]
    if len(outers) > 1:
        left, right = (
            [with_positions(f) for f in fs]
            for fs in zip(*((t.left, t.right) for t in outers), strict=True)
        )
        joined = Outer(torch.cat(left, dim=1), torch.cat(right, dim=1), groups=joined.groups)
    if gram_is_cheaper(joined, left_is_common=id(joined.left) in common):
        return Gram(joined)
    return Materialised(_summed([joined]))


@dataclass(frozen=True)
class Factored:
    """Terms with one position per example."""

    terms: list[Outer]

    def squared_norm(self, products: Products) -> Tensor:
        if len(self.terms) == 1 and self.terms[0].scale is None:
            (term,) = self.terms
            return products.squares(term.left) * products.squares(term.right)
        products.sizes += [
            products.squares(term.left) * products.squares(term.right) for term in self.terms
        ]
        squares = [_inner(term, term) for term in self.terms]
        total = _add(squares)
        for first, second in combinations(self.terms, 2):
            total = total + 2 * _inner(first, second)
        magnitude = _add([square.sqrt() for square in squares]).square()
        return rounded_up(total, magnitude, additions(self.terms[0].right.shape[1], SCALED_PIECE))

    def add_sum(self, weights: Tensor, out: Tensor, scale: float) -> None:
        if out.dim() != 2:
            out = out.view(len(out), -1)
        for term in self.terms:
            left, right = _weighted(term.left, term.right, weights)
            if term.scale is None:
                out.addmm_(left.T, right, alpha=scale)
                continue
            for part in _pieces(*term.scale.shape):
                out[part].addcmul_(left[:, part].T @ right, term.scale[part], value=scale)

    def only(self, examples: Tensor) -> "Factored":
        return Factored(
            [replace(t, left=t.left[examples], right=t.right[examples]) for t in self.terms]
        )


@dataclass(frozen=True)
class Gram:
    """An unscaled term with several positions: ‖Σ_t l_t ⊗ r_t‖² = Σ_(s,t) (l_s·l_t)(r_s·r_t), block
    by block.
    """

    term: Outer

    def squared_norm(self, products: Products) -> Tensor:
        left, right = (with_positions(factor) for factor in (self.term.left, self.term.right))
        own, other = (
            products.gram(left, self.term.groups),
            products.gram(right, self.term.groups),
        )  # [B, G, T, T]
        lengths = (
            own.diagonal(dim1=2, dim2=3) * other.diagonal(dim1=2, dim2=3)
        ).sqrt()  # of the outer products
        magnitude = lengths.sum(2).square().sum(1)
        count = sum(additions(f.shape[-1] // self.term.groups, GRAM_PIECE) for f in (left, right))
        return rounded_up((own * other).sum((1, 2, 3)), magnitude, count)

    def add_sum(self, weights: Tensor, out: Tensor, scale: float) -> None:
        left, right = _weighted(self.term.left, self.term.right, weights)
        left, right = with_positions(left), with_positions(right)
        if left.stride(0) < left.stride(
            1
        ):  # positions come first in memory: taken as it lies, nothing is copied
            left, right = left.transpose(0, 1), right.transpose(0, 1)
        left, right = (
            f.reshape(-1, self.term.groups, f.shape[2] // self.term.groups) for f in (left, right)
        )
        left, right = (
            left.permute(1, 2, 0),
            right.transpose(0, 1),
        )  # [G, out / G, B T] and [G, B T, in / G]
        out.view(self.term.groups, left.shape[1], right.shape[2]).baddbmm_(left, right, alpha=scale)

    def only(self, examples: Tensor) -> "Gram":
        return Gram(
            replace(self.term, left=self.term.left[examples], right=self.term.right[examples])
        )


@dataclass(frozen=True)
class Rows:
    """Looked-up rows: ‖Σ_t e(i_t) ⊗ v_t‖² = Σ_rows ‖Σ_(t: i_t = row) v_t‖², without a row that was
    not looked up.
    """

    index: Tensor  # [B, T]
    values: Tensor  # [B, T, d]
    rows: int

    def squared_norm(self, products: Products) -> Tensor:
        count = len(self.index)
        example = torch.arange(count, device=self.index.device).unsqueeze(1)
        seen, place = torch.unique(example * self.rows + self.index, return_inverse=True)
        per_row = self.values.new_zeros(len(seen), self.values.shape[2])
        per_row.index_add_(0, place.flatten(), self.values.flatten(0, 1))
        total = per_row.new_zeros(count).index_add_(0, seen // self.rows, row_squares(per_row))
        # Rows that are looked up more than once are added up in place, on what is there: large ones
        # that cancel each other would take digits of it along.
        magnitude = (
            row_squares(self.values.flatten(0, 1)).sqrt().view(self.index.shape).sum(1).square()
        )
        return rounded_up(total, magnitude, self.index.shape[1])

    def add_sum(self, weights: Tensor, out: Tensor, scale: float) -> None:
        values = (self.values * _column(weights, self.values)).flatten(0, 1)
        out.view(self.rows, -1).index_add_(0, self.index.flatten(), values, alpha=scale)

    def only(self, examples: Tensor) -> "Rows":
        return Rows(self.index[examples], self.values[examples], self.rows)


@dataclass(frozen=True)
class Materialised:
    """Gradients that are small enough, or too irregular, to be kept as factors."""

    values: Tensor  # [B, *shape]
    scale: Tensor | None = None  # the gradients are scale ∘ values

    def squared_norm(self, products: Products) -> Tensor:
        rows = self.values if self.values.dim() == 2 else self.values.reshape(len(self.values), -1)
        squares = products.squares(rows)
        return squares if self.scale is None else row_squares(rows, self.scale.reshape(-1))

    def add_sum(self, weights: Tensor, out: Tensor, scale: float) -> None:
        rows, weights = (
            self.values.reshape(len(weights), -1),
            weights.unsqueeze(0),
        )  # a matrix product: the faster one
        if self.scale is None:
            out.view(1, -1).addmm_(weights, rows, alpha=scale)
        else:
            out.view(-1).addcmul_((weights @ rows).view(-1), self.scale.reshape(-1), value=scale)

    def only(self, examples: Tensor) -> "Materialised":
        return replace(self, values=self.values[examples])


@dataclass(frozen=True)
class FormedAgain:
    """Gradients that are formed twice, for their norms and for their sum: never are those of all
    examples in memory.

    They are the same bits both times, so that no bound on rounding comes between norm and sum. Some
    are kept meanwhile, which saves a part of the time.
    """

    term: Formed
    kept: dict[int, Tensor] = field(
        default_factory=dict
    )  # by the number of a piece, its gradients [b, entries]

    def squared_norm(self, products: Products) -> Tensor:
        scale, found = self.term.scale.reshape(-1), []
        self.kept.clear()
        for place, part in enumerate(self._parts()):
            rows = self.term.form(part).flatten(1)
            if sum(held.numel() for held in self.kept.values()) + rows.numel() <= KEPT_ENTRIES:
                self.kept[place] = rows
            found.append(torch.stack([row_squares(rows), row_squares(rows, scale)]))
        size, squares = torch.cat(found, dim=1).unbind()
        products.sizes.append(size)
        return squares

    def add_sum(self, weights: Tensor, out: Tensor, scale: float) -> None:
        total = torch.zeros_like(out).view(-1)
        for place, part in enumerate(self._parts()):
            rows = self.kept[place] if place in self.kept else self.term.form(part).flatten(1)
            total.addmv_(rows.T, weights[part])
        out.view(-1).addcmul_(total, self.term.scale.reshape(-1), value=scale)

    def only(self, examples: Tensor) -> "FormedAgain":
        form = self.term.form
        return FormedAgain(
            replace(self.term, count=len(examples), form=lambda part: form(examples[part]))
        )

    def _parts(self) -> Iterator[slice]:
        return _pieces(self.term.count, self.term.scale.numel())


def _formed(term: Outer, scale: Tensor) -> Formed:
    """A term with a scale and several positions."""

    def form(examples: slice | Tensor) -> Tensor:
        return materialised(
            replace(term, left=term.left[examples], right=term.right[examples], scale=None)
        )

    return Formed(len(term.left), form, scale)


def _summed(terms: Sequence[Term]) -> Tensor:
    """[B, *shape]: the per-example gradients that these terms stand for."""
    parts = [materialised(term) for term in terms]
    if len(parts) == 1:
        return parts[0]
    return _add([part.view_as(parts[0]) for part in parts])


def _add(parts: list[Tensor]) -> Tensor:
    return reduce(torch.add, parts)


def _divide(term: Term, divisor: Tensor) -> Term:
    if isinstance(term, Direct):
        return Direct(
            term.values, divisor.reciprocal() if term.scale is None else term.scale / divisor
        )
    if isinstance(term, Formed):
        return replace(term, scale=term.scale / divisor)
    if isinstance(term, Lookup):
        return Lookup(term.index, term.values / divisor[term.index], term.rows)
    divisor = divisor.flatten(1)  # a convolution's weight has more than two dimensions
    scale = torch.ones_like(divisor) if term.scale is None else term.scale
    return replace(term, scale=scale / divisor)


def _inner(first: Outer, second: Outer) -> Tensor:
    """[B] inner products of two terms' gradients."""
    left, right = first.left * second.left, first.right * second.right
    scales = [term.scale for term in (first, second) if term.scale is not None]
    if not scales:
        return left.sum(1) * right.sum(1)
    found = []
    for part in _pieces(*scales[0].shape):
        scale = reduce(torch.mul, [scale[part] for scale in scales])
        found.append(product(right, scale.T, SCALED_PIECE).mul_(left[:, part]).sum(1))
    return found[0] if len(found) == 1 else torch.stack(found).sum(0)


def _pieces(count: int, entries: int) -> Iterator[slice]:
    """Rows with so many entries each, some at a time: what is computed of them is not held for all
    at once.
    """
    step = max(1, HELD_ENTRIES // max(1, entries))
    return (slice(begin, begin + step) for begin in range(0, count, step))


def _flatten(term: Outer) -> Outer:
    return (
        term
        if term.left.dim() == 2
        else Outer(term.left.squeeze(1), term.right.squeeze(1), term.scale)
    )


def _column(weights: Tensor, like: Tensor) -> Tensor:
    return weights.unsqueeze(1) if like.dim() == 2 else weights.view(-1, *[1] * (like.dim() - 1))


def _weighted(left: Tensor, right: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Both factors, the smaller of them with its rows multiplied by the weights."""
    if left.numel() <= right.numel():
        return left * _column(weights, left), right
    return left, right * _column(weights, right)
