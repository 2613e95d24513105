"""Compact representations of per-example gradients: norms and sums without materialising them.

    ‖Σ_k S_k ∘ (l_k ⊗ r_k)‖² = Σ_(k,m) Σ_o (l_k l_m)_o [(r_k r_m) (S_k ∘ S_m)ᵀ]_o
    Σ_i c_i S ∘ (l_i ⊗ r_i)  = S ∘ (diag(c) l)ᵀ r

Shapes: B examples, T positions of each (sequences, convolutions), G groups of a convolution.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import combinations

import torch
from torch import Tensor

from dpvd.grads.factored.rule import Deferred, Direct, Lookup, Outer, Term, with_positions
from dpvd.grads.per_example import (
    GRAM_CHUNK,
    InnerProducts,
    Norms,
    PerExample,
    additions,
    product,
    rounded_up,
)
from dpvd.nn.sum_of_squares import row_squares

__all__ = [
    "Gram",
    "LookupRows",
    "Materialised",
    "RankOne",
    "Recomputed",
    "gram_is_cheaper",
    "represent",
]

ENTRY_COST = 8  # multiplications in the time that an entry of a stored gradient takes; measured
CHUNK_ENTRIES = 1 << 20  # 4 MB in float32: what is computed at a time
SAVED_ENTRIES = 1 << 24  # 64 MB in float32: recomputed gradients that are saved until the sum
SCALED_CHUNK = 1024  # largest chunk of an inner product with a scale; bounds its rounding error


def represent(
    terms: Sequence[Term],
    divisor: Tensor | None = None,
    shared_left: Collection[int] = frozenset(),
) -> PerExample:
    """Choose the cheapest representation for the sum of one parameter's terms.

    The first line that applies decides:

        all terms are lookups                              LookupRows    few rows of a table
        a single direct term                               Materialised  stored already
        a single deferred term                             Recomputed    too large to be stored
        a direct or deferred term among others             Materialised  the sum has no factors
        all outer products of one position and one group   RankOne       norms from the factors
        a single outer product with a scale                Recomputed    no Gram form with a scale
        several, any with a scale                          Materialised  no Gram form with a scale
        Gram matrices cheaper than the gradients           Gram          see `gram_is_cheaper`
        else                                               Materialised

    Args:
        terms: of one parameter, at least one.
        divisor: of the parameter's shape: the Jacobian that the gradients are divided by.
        shared_left: ids of left factors that terms of other parameters have too: their inner
            products cost nothing more.
    """
    if divisor is not None:
        terms = [term.divided_by(divisor) for term in terms]
    first = terms[0]
    single = len(terms) == 1
    lookups = [term for term in terms if isinstance(term, Lookup)]
    outers = [term for term in terms if isinstance(term, Outer)]
    if len(lookups) == len(terms):
        return LookupRows.joined(lookups)
    if single and isinstance(first, Direct):
        return Materialised(first.values, first.scale)
    if single and isinstance(first, Deferred):
        return Recomputed(first)
    if len(outers) < len(terms):
        return Materialised.summed(terms)
    if all(term.positions == term.groups == 1 for term in outers):
        return RankOne.of(outers)
    if single and outers[0].scale is not None:
        return Recomputed.of(outers[0])
    if any(term.scale is not None for term in outers):
        return Materialised.summed(terms)
    joined = _joined_in_time(outers)
    if gram_is_cheaper(joined, left_is_shared=id(joined.left) in shared_left):
        return Gram(joined)
    return Materialised.summed([joined])


def gram_is_cheaper(term: Outer, *, left_is_shared: bool = False) -> bool:
    """Whether to keep the factors of an outer product, or the gradients that they make up.

    Both cost one product of the factors: for the sum, or for the gradients. Beside it, inner
    products of T positions cost T² (out + in) operations, and gradients out · in entries to be
    written and read, each as slow as eight.
    """
    out = term.left.shape[-1] // term.groups
    into = term.right.shape[-1] // term.groups
    width = into
    if not left_is_shared:
        width += out
    gram_cost = term.positions**2 * width
    gradient_cost = ENTRY_COST * out * into
    return gram_cost <= gradient_cost


@dataclass(frozen=True)
class RankOne:
    """Outer products of one position per example: factors [B, out] and [B, in]."""

    terms: list[Outer]

    @classmethod
    def of(cls, terms: Sequence[Outer]) -> "RankOne":
        flat = []
        for term in terms:
            flat.append(_without_positions(term))
        return cls(flat)

    def norms(self, products: InnerProducts) -> Norms:
        lefts = [products.squares(term.left) for term in self.terms]  # [B] each
        rights = [products.squares(term.right) for term in self.terms]
        unscaled = list(map(torch.mul, lefts, rights))
        first_term = self.terms[0]
        if len(self.terms) == 1 and first_term.scale is None:
            return Norms(unscaled[0], (*lefts, *rights))
        sizes = (*lefts, *rights, *unscaled)
        squares = [_inner(term, term) for term in self.terms]
        total = reduce(torch.add, squares)
        for first, second in combinations(self.terms, 2):
            total = total + 2 * _inner(first, second)
        lengths = [square.sqrt() for square in squares]
        magnitude = reduce(torch.add, lengths).square()
        width = first_term.right.shape[1]
        count = additions(width, SCALED_CHUNK)
        return Norms(rounded_up(total, magnitude, count), sizes)

    def add_sum(self, weights: Tensor, out: Tensor) -> None:
        if out.dim() != 2:
            out = out.view(len(out), -1)
        for term in self.terms:
            left, right = _weighted(term, weights)
            if term.scale is None:
                out.addmm_(left.T, right)
                continue
            for part in _chunks(*term.scale.shape):  # some rows of [out, in]
                product_of_rows = left[:, part].T @ right
                out[part].addcmul_(product_of_rows, term.scale[part])

    def only(self, examples: Tensor) -> "RankOne":
        chosen = [term.only(examples) for term in self.terms]
        return RankOne(chosen)


@dataclass(frozen=True)
class Gram:
    """An unscaled outer product: ‖Σ_t l_t ⊗ r_t‖² = Σ_(s,t) (l_s·l_t)(r_s·r_t), block by block."""

    term: Outer

    def norms(self, products: InnerProducts) -> Norms:
        groups = self.term.groups
        left = with_positions(self.term.left)  # [B, T, out]
        right = with_positions(self.term.right)  # [B, T, in]
        left_gram = products.gram(left, groups)  # [B, G, T, T]
        right_gram = products.gram(right, groups)
        left_squares = left_gram.diagonal(dim1=2, dim2=3)  # [B, G, T]
        right_squares = right_gram.diagonal(dim1=2, dim2=3)
        lengths = (left_squares * right_squares).sqrt()  # of the outer products
        magnitude = lengths.sum(2).square().sum(1)
        count = additions(left.shape[-1] // groups, GRAM_CHUNK)
        count += additions(right.shape[-1] // groups, GRAM_CHUNK)
        total = (left_gram * right_gram).sum((1, 2, 3))
        sizes = (left_squares.sum((1, 2)), right_squares.sum((1, 2)))
        return Norms(rounded_up(total, magnitude, count), sizes)

    def add_sum(self, weights: Tensor, out: Tensor) -> None:
        groups = self.term.groups
        left, right = _weighted(self.term, weights)
        left = with_positions(left)
        right = with_positions(right)
        if left.stride(0) < left.stride(1):  # positions come first in memory: copy nothing
            left = left.transpose(0, 1)
            right = right.transpose(0, 1)
        left = left.reshape(-1, groups, left.shape[2] // groups)  # [B T, G, out / G]
        right = right.reshape(-1, groups, right.shape[2] // groups)  # [B T, G, in / G]
        left = left.permute(1, 2, 0)  # [G, out / G, B T]
        right = right.transpose(0, 1)  # [G, B T, in / G]
        out.view(groups, left.shape[1], right.shape[2]).baddbmm_(left, right)

    def only(self, examples: Tensor) -> "Gram":
        chosen = self.term.only(examples)
        return Gram(chosen)


@dataclass(frozen=True)
class LookupRows:
    """Looked-up rows of a table, so few of its entries that they are stored as they are."""

    index: Tensor  # [B, T]
    values: Tensor  # [B, T, d]
    rows: int

    @classmethod
    def joined(cls, lookups: Sequence[Lookup]) -> "LookupRows":
        """All lookups in one table."""
        index = torch.cat([lookup.index for lookup in lookups], dim=1)
        values = torch.cat([lookup.values for lookup in lookups], dim=1)
        return cls(index, values, lookups[0].rows)

    def norms(self, products: InnerProducts) -> Norms:
        """No sizes: nothing is multiplied, so nothing that matters can vanish."""
        count, positions = self.index.shape
        values = self.values.flatten(0, 1)  # [B · T, d]
        example = torch.arange(count, device=self.index.device)
        pair = example.unsqueeze(1) * self.rows + self.index  # [B, T]: one number for both
        # Lookups of one row by one example are added up: seen [U] has each such pair once.
        seen, position = torch.unique(pair, return_inverse=True)
        per_row = values.new_zeros(len(seen), values.shape[1])  # [U, d]
        per_row.index_add_(0, position.flatten(), values)
        total = per_row.new_zeros(count)
        total.index_add_(0, seen // self.rows, row_squares(per_row))
        # Rows that are looked up more than once are added to what the sum holds already: large
        # values that cancel each other would take digits of it along.
        lengths = row_squares(values).sqrt()
        per_example = lengths.view(count, positions)
        magnitude = per_example.sum(1).square()
        return Norms(rounded_up(total, magnitude, positions), ())

    def add_sum(self, weights: Tensor, out: Tensor) -> None:
        table = out.view(self.rows, -1)
        column = _column(weights, self.values)
        weighted = self.values * column  # [B, T, d]
        index = self.index.flatten()
        table.index_add_(0, index, weighted.flatten(0, 1))

    def only(self, examples: Tensor) -> "LookupRows":
        index = self.index[examples]
        values = self.values[examples]
        return LookupRows(index, values, self.rows)


@dataclass(frozen=True)
class Materialised:
    """Stored gradients, scale ∘ values: small ones, or those without factors."""

    values: Tensor  # [B, *shape]
    scale: Tensor | None = None  # of the parameter's shape

    @classmethod
    def summed(cls, terms: Sequence[Term]) -> "Materialised":
        """The sum of several terms."""
        total = terms[0].materialised()
        for term in terms[1:]:
            more = term.materialised()
            total = total + more.view_as(total)
        return cls(total)

    def norms(self, products: InnerProducts) -> Norms:
        rows = self.values
        if rows.dim() != 2:
            rows = rows.reshape(len(rows), -1)  # [B, entries]
        unscaled = products.squares(rows)
        if self.scale is None:
            return Norms(unscaled, (unscaled,))
        squared = row_squares(rows, self.scale.reshape(-1))
        return Norms(squared, (unscaled,))

    def add_sum(self, weights: Tensor, out: Tensor) -> None:
        rows = self.values.reshape(len(weights), -1)  # [B, entries]
        row_of_weights = weights.unsqueeze(0)  # a matrix product is faster than one with a vector
        if self.scale is None:
            out.view(1, -1).addmm_(row_of_weights, rows)
        else:
            total = (row_of_weights @ rows).view(-1)
            out.view(-1).addcmul_(total, self.scale.reshape(-1))

    def only(self, examples: Tensor) -> "Materialised":
        chosen = self.values[examples]
        return replace(self, values=chosen)


@dataclass(frozen=True)
class Recomputed:
    """Gradients computed twice, for norms and sum, so that those of all are never in memory.

    They are the same bits both times, so that no bound on rounding comes between norm and sum. Some
    are saved meanwhile, which saves a part of the time.
    """

    term: Deferred
    saved: dict[int, Tensor] = field(default_factory=dict)  # by index of a chunk: [b, entries]

    @classmethod
    def of(cls, term: Outer) -> "Recomputed":
        """A single outer product with a scale and several positions."""
        unscaled = replace(term, scale=None)
        assert term.scale is not None

        def compute(examples: slice | Tensor) -> Tensor:
            return unscaled.only(examples).materialised()

        return cls(Deferred(len(term.left), compute, term.scale))

    def norms(self, products: InnerProducts) -> Norms:
        scale = self.term.scale.reshape(-1)
        room = SAVED_ENTRIES
        unscaled = []
        squared = []
        self.saved.clear()
        for i, part in enumerate(self._parts()):
            rows = self.term.compute(part).flatten(1)  # [b, entries]
            if rows.numel() <= room:
                self.saved[i] = rows
                room -= rows.numel()
            unscaled.append(row_squares(rows))
            squared.append(row_squares(rows, scale))
        return Norms(torch.cat(squared), (torch.cat(unscaled),))

    def add_sum(self, weights: Tensor, out: Tensor) -> None:
        total = torch.zeros_like(out).view(-1)
        for i, part in enumerate(self._parts()):
            rows = self.saved.get(i)
            if rows is None:
                rows = self.term.compute(part).flatten(1)
            total.addmv_(rows.T, weights[part])
        scale = self.term.scale.reshape(-1)
        out.view(-1).addcmul_(total, scale)

    def only(self, examples: Tensor) -> "Recomputed":
        compute = self.term.compute

        def compute_chosen(part: slice | Tensor) -> Tensor:
            return compute(examples[part])

        return Recomputed(replace(self.term, count=len(examples), compute=compute_chosen))

    def _parts(self) -> Iterator[slice]:
        count = self.term.count
        entries = self.term.scale.numel()
        return _chunks(count, entries)


def _joined_in_time(terms: Sequence[Outer]) -> Outer:
    """Several unscaled outer products as one, with the positions of all."""
    if len(terms) == 1:
        return terms[0]
    left = torch.cat([with_positions(term.left) for term in terms], dim=1)
    right = torch.cat([with_positions(term.right) for term in terms], dim=1)
    return Outer(left, right, groups=terms[0].groups)


def _inner(first: Outer, second: Outer) -> Tensor:
    """[B] inner products of two terms' gradients, for factors [B, out] and [B, in]."""
    left = first.left * second.left
    right = first.right * second.right
    scales = [term.scale for term in (first, second) if term.scale is not None]
    if not scales:
        return left.sum(1) * right.sum(1)
    found = []
    for part in _chunks(*scales[0].shape):  # some rows of [out, in]
        scale = reduce(torch.mul, [scale[part] for scale in scales])
        per_output = product(right, scale.T, SCALED_CHUNK)  # [B, rows of the chunk]
        found.append(per_output.mul_(left[:, part]).sum(1))
    if len(found) == 1:
        return found[0]
    return torch.stack(found).sum(0)


def _chunks(count: int, entries: int) -> Iterator[slice]:
    """Slices of rows with at most CHUNK_ENTRIES entries in all, to bound memory."""
    fitting = CHUNK_ENTRIES // max(1, entries)
    step = max(1, fitting)
    for begin in range(0, count, step):
        end = begin + step
        yield slice(begin, end)


def _without_positions(term: Outer) -> Outer:
    if term.left.dim() == 2:
        return term
    left = term.left.squeeze(1)
    right = term.right.squeeze(1)
    return Outer(left, right, term.scale)


def _column(weights: Tensor, like: Tensor) -> Tensor:
    """[B, 1, ...] with as many dimensions as ``like``."""
    ones = [1] * (like.dim() - 1)
    return weights.view(-1, *ones)


def _weighted(term: Outer, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Both factors, the smaller of them with its rows multiplied by the weights."""
    left = term.left
    right = term.right
    if left.numel() <= right.numel():
        return left * _column(weights, left), right
    return left, right * _column(weights, right)
