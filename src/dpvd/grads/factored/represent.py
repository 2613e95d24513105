"""Compact representations of per-example gradients: norms and sums without materialising them.

    ‖Σ_k S_k ∘ (l_k ⊗ r_k)‖² = Σ_(k,m) Σ_o (l_k l_m)_o [(r_k r_m) (S_k ∘ S_m)ᵀ]_o
    Σ_i c_i S ∘ (l_i ⊗ r_i)  = S ∘ (diag(c) l)ᵀ r

Shapes: B examples, T positions of each (sequences, convolutions), G groups of a convolution.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import reduce
from itertools import combinations

import torch
from torch import Tensor

from dpvd.grads.factored.rule import (
    Convolved,
    Deferred,
    Direct,
    Lookup,
    Outer,
    Term,
    in_full,
    with_positions,
)
from dpvd.grads.per_example import (
    GRAM_CHUNK,
    Allowance,
    InnerProducts,
    Norms,
    PerExample,
    additions,
    blocks,
    identity,
    product,
    rounded_up,
)
from dpvd.nn.sum_of_squares import row_squares

__all__ = [
    "Form",
    "Formed",
    "Gram",
    "LookupRows",
    "Materialised",
    "RankOne",
    "Recomputed",
    "Reordered",
    "allowance_for",
    "cheapest_form",
    "represent",
    "shared_factors",
]

# Multiplications of a matrix product in the time that an entry of a gradient takes; measured.
KEPT_ENTRY = 80  # one that is kept until the sum: written to memory that is new in every step, read
# The same of a convolution. The other forms cut patches for norms alone and leave the sum to a pass
# of the library, which cuts its own: an entry that is kept saves most of its price.
KEPT_KERNEL_ENTRY = 5
FORMED_ENTRY = 8  # one that is formed for its norm alone: written to the cache, read from there
CHUNK_ENTRIES = 1 << 20  # 4 MB in float32: what is computed at a time
CACHED_ENTRIES = 1 << 19  # 2 MB in float32: what is computed at a time, to stay in the cache
SCALED_CHUNK = 1024  # largest chunk of an inner product with a scale; bounds its rounding error
POSITIONS_CHUNK = 128  # most positions that a formed gradient adds up at a time; the same


def represent(
    terms: Sequence[Term],
    divisor: Tensor | None = None,
    shared: Collection[object] = frozenset(),
    allowance: Allowance | None = None,
) -> PerExample:
    """Choose the cheapest representation for the sum of one parameter's terms.

    The first line that applies decides:

        all terms are lookups                              LookupRows    few rows of a table
        a single direct term                               Materialised  stored already
        outer products of one position and one group       RankOne       norms from the factors
        a single product without a scale                   see `cheapest_form`
        else                                               Recomputed    no norm from factors

    What is kept beyond the factors themselves is taken from the allowance, here or when norms are
    computed; nothing is kept that it has no room for.

    Args:
        terms: of one parameter, at least one.
        divisor: of the parameter's shape: the Jacobian that the gradients are divided by.
        shared: as `shared_factors` finds them: their inner products cost nothing more.
        allowance: what may be kept; a new one if None.
    """
    if allowance is None:
        allowance = Allowance()
    if divisor is not None:
        terms = [term.divided_by(divisor) for term in terms]
    first = terms[0]
    lookups = [term for term in terms if isinstance(term, Lookup)]
    outers = [term for term in terms if isinstance(term, Outer)]
    if len(lookups) == len(terms):
        return LookupRows.joined(lookups)
    if len(terms) == 1 and isinstance(first, Direct):
        return Materialised(in_full(first.values), first.scale)
    if len(outers) == len(terms):
        if all(term.positions == term.groups == 1 for term in outers):
            return RankOne.of(outers)
        if all(term.scale is None for term in outers):
            return _product(_joined_in_time(outers), shared, allowance)
    if len(terms) == 1 and isinstance(first, Convolved):
        if first.scale is None:
            return _product(first, shared, allowance)
        return Reordered.of(first, allowance)
    return Recomputed.of(terms, allowance)


class Form(Enum):
    """How to go about a product of factors: see `cheapest_form`."""

    KEPT = "kept"
    """The gradients, formed once and kept for the sum."""
    GRAM = "gram"
    """The factors: norms from inner products."""
    FORMED = "formed"
    """The factors: norms from gradients that are formed and forgotten."""


def cheapest_form(
    term: Outer | Convolved, shared: Collection[object] = frozenset(), *, room: int
) -> Form:
    """What takes the least time for norms and sum, of what has room.

    Each costs one product of the factors, for the gradients or for the sum. Beside it, for T
    positions: gradients that are kept out · in entries to be written and read; inner products T²
    (out + in) multiplications, less for a factor that other parameters have too; gradients that are
    formed for their norms alone another product.

    Args:
        term: without a scale.
        shared: factors whose inner products are computed anyway.
        room: bytes that may be kept.
    """
    positions = term.positions
    out, into = term.block
    width = out + into
    kept_entry = KEPT_KERNEL_ENTRY
    if isinstance(term, Outer):
        kept_entry = KEPT_ENTRY
        if identity(term.left) in shared:
            width -= out
        if identity(term.right) in shared:
            width -= into
    costs = {
        Form.GRAM: positions**2 * width,
        Form.KEPT: kept_entry * out * into,
        Form.FORMED: (positions + FORMED_ENTRY) * out * into,
    }
    if _bytes(term) > room:
        del costs[Form.KEPT]
    return min(costs, key=lambda form: costs[form])


def shared_factors(terms: Mapping[str, Sequence[Term]]) -> set[object]:
    """The factors that several parameters have, such as the input of queries, keys and values."""
    seen: set[object] = set()
    shared: set[object] = set()
    for parts in terms.values():
        for term in parts:
            if not isinstance(term, Outer):
                continue
            for factor in (identity(term.left), identity(term.right)):
                if factor in seen:
                    shared.add(factor)
                seen.add(factor)
    return shared


def allowance_for(terms: Mapping[str, Sequence[Term]], nbytes: int) -> Allowance:
    """What may be kept in all, less the short gradients that rules have formed: biases, gains."""
    allowance = Allowance(nbytes)
    for parts in terms.values():
        for term in parts:
            if isinstance(term, Direct):
                allowance.charge(term.values.nbytes)
    return allowance


def _product(
    term: Outer | Convolved, shared: Collection[object], allowance: Allowance
) -> PerExample:
    form = cheapest_form(term, shared, room=allowance.room)
    if form is Form.GRAM:
        return Gram(term)
    if form is Form.FORMED:
        return Formed(term)
    allowance.take(_bytes(term))
    if isinstance(term, Convolved):
        return Reordered(Materialised(_kept(term)), term.geometry.shape)
    return Materialised(_kept(term))


def _bytes(term: Term) -> int:
    """What the gradients of a term take in memory."""
    precision = torch.float64.itemsize
    if isinstance(term, Outer) and term.left.dtype is not torch.float64:
        precision = torch.float32.itemsize
    if isinstance(term, Convolved) and term.grad.dtype is not torch.float64:
        precision = torch.float32.itemsize
    return term.count * term.entries * precision


def _kept(term: Outer | Convolved) -> Tensor:
    """[B, out, in / groups]: all gradients, a few at a time so that their factors are cached."""
    kept: Tensor | None = None
    for part in _chunks(term.count, _right_entries(term), CACHED_ENTRIES):
        outer = term.outer(part)
        if kept is None:
            out, into = term.block
            kept = outer.left.new_empty(term.count, term.groups * out, into)
        if term.groups == 1:
            left = with_positions(outer.left)
            torch.bmm(left.mT, with_positions(outer.right), out=kept[part])
        else:
            kept[part] = outer.materialised()
    assert kept is not None  # a batch without examples has no terms
    return kept


def _right_entries(term: Outer | Convolved) -> int:
    """How many entries the right factor of one example has."""
    _, into = term.block
    return term.positions * term.groups * into


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
            left, right = _weighted(term.left, term.right, weights)
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
    """An unscaled product: ‖Σ_t l_t ⊗ r_t‖² = Σ_(s,t) (l_s·l_t)(r_s·r_t), block by block."""

    term: Outer | Convolved

    def norms(self, products: InnerProducts) -> Norms:
        squares = self.term.groups * self.term.positions**2
        if isinstance(self.term, Outer) and self.term.count * squares <= CHUNK_ENTRIES:
            return _gram_norms(self.term, products)

        def of_part(part: slice) -> Norms:
            return _gram_norms(self.term.outer(part), InnerProducts())

        if isinstance(self.term, Outer):
            return _in_parts(of_part, _chunks(self.term.count, squares))
        size = max(squares, _right_entries(self.term))
        return _in_parts(of_part, _chunks(self.term.count, size, CACHED_ENTRIES))

    def add_sum(self, weights: Tensor, out: Tensor) -> None:
        _add_weighted(self.term, weights, out)

    def only(self, examples: Tensor) -> "Gram":
        chosen = self.term.only(examples)
        return Gram(chosen)


def _gram_norms(term: Outer, products: InnerProducts) -> Norms:
    groups = term.groups
    left = with_positions(term.left)  # [B, T, out]
    right = with_positions(term.right)  # [B, T, in]
    left_grams = products.gram(left, groups)
    right_grams = products.gram(right, groups)
    left_squares = left_grams.diagonal()  # [B, G, T]
    right_squares = right_grams.diagonal()
    lengths = (left_squares * right_squares).sqrt()  # of the outer products
    magnitude = lengths.sum(2).square().sum(1)
    count = additions(left.shape[-1] // groups, GRAM_CHUNK)
    count += additions(right.shape[-1] // groups, GRAM_CHUNK)
    total = left_grams.inner(right_grams)
    sizes = (left_squares.sum((1, 2)), right_squares.sum((1, 2)))
    return Norms(rounded_up(total, magnitude, count), sizes)


@dataclass(frozen=True)
class Formed:
    """An unscaled product: gradients are formed for their norms, a few at a time, and forgotten.

    The sum is made by another product, which rounds in its own way, so that the norms have to be
    rounded up: ‖E‖ <= n u Σ_t ‖l_t‖ ‖r_t‖ for the error E of a gradient whose entries are sums of
    n products.
    """

    term: Outer | Convolved

    def norms(self, products: InnerProducts) -> Norms:
        size = max(self.term.entries, _right_entries(self.term))
        parts = _chunks(self.term.count, size, CACHED_ENTRIES)
        return _in_parts(self._norms_of, parts)

    def _norms_of(self, part: slice) -> Norms:
        outer = self.term.outer(part)
        left = with_positions(outer.left)  # [b, T, out]
        right = with_positions(outer.right)  # [b, T, in]
        lefts = blocks(left, outer.groups)  # [b, G, T, out / G]
        rights = blocks(right, outer.groups)
        gradients = product(lefts.mT, rights, POSITIONS_CHUNK)
        length = row_squares(gradients.flatten(1)).sqrt()
        sizes = (_entry_squares(left), _entry_squares(right))
        magnitude = (sizes[0] * sizes[1]).sqrt()  # at least Σ_t ‖l_t‖ ‖r_t‖
        unit = torch.finfo(length.dtype).eps
        error = additions(outer.positions, POSITIONS_CHUNK) * unit * magnitude
        return Norms((length + error).square(), sizes)

    def add_sum(self, weights: Tensor, out: Tensor) -> None:
        _add_weighted(self.term, weights, out)

    def only(self, examples: Tensor) -> "Formed":
        chosen = self.term.only(examples)
        return Formed(chosen)


def _add_weighted(term: Outer | Convolved, weights: Tensor, out: Tensor) -> None:
    """out += Σ_i weights_i · gradient_i, by a product for some examples at a time.

    So the copy of a factor that is multiplied by the weights is small, and factors in half
    precision are never all of them in full. Where positions come first in memory, as in recurrent
    layers, some examples would have to be copied once more: those are taken all at once.
    """
    factors = (term.left, term.right) if isinstance(term, Outer) else (term.x, term.grad)
    parts = _chunks(term.count, max(factor[0].numel() for factor in factors))
    if isinstance(term, Outer) and _positions_first(term.left) and term.left.dtype == out.dtype:
        parts = iter([slice(None)])
    for part in parts:
        own = weights[part]
        if isinstance(term, Outer):
            _add_product(term.outer(part), own, out)
        else:
            grad, x = _weighted(in_full(term.grad[part]), in_full(term.x[part]), own)
            out += term.geometry.total(x, grad)


def _positions_first(factor: Tensor) -> bool:
    return factor.dim() == 3 and factor.stride(0) < factor.stride(1)


def _add_product(term: Outer, weights: Tensor, out: Tensor) -> None:
    groups = term.groups
    left, right = _weighted(term.left, term.right, weights)
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


def _entry_squares(factor: Tensor) -> Tensor:
    """[B]: Σ x² over all entries of a factor [B, T, d], in whatever order they are in memory."""
    ordered = factor if factor.is_contiguous() else factor.mT
    return row_squares(ordered.reshape(len(factor), -1))


def _in_parts(norms_of: Callable[[slice], Norms], parts: Iterator[slice]) -> Norms:
    """Norms of a batch, part by part."""
    found = [norms_of(part) for part in parts]
    if len(found) == 1:
        return found[0]
    squared = torch.cat([norms.squared for norms in found])
    by_factor = zip(*(norms.sizes for norms in found), strict=True)
    return Norms(squared, tuple(torch.cat(sizes) for sizes in by_factor))


@dataclass(frozen=True)
class LookupRows:
    """Looked-up rows of a table, so few of its entries that they are stored as they are."""

    index: Tensor  # [B, T]
    values: Tensor  # [B, T, d]
    rows: int

    @classmethod
    def joined(cls, lookups: Sequence[Lookup]) -> "LookupRows":
        """All lookups in one table."""
        if len(lookups) == 1:
            (only,) = lookups
            return cls(only.index, in_full(only.values), only.rows)
        index = torch.cat([lookup.index for lookup in lookups], dim=1)
        values = torch.cat([in_full(lookup.values) for lookup in lookups], dim=1)
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
    """Stored gradients, scale ∘ values: small ones, or those that were the cheapest to keep."""

    values: Tensor  # [B, *shape]
    scale: Tensor | None = None  # of the parameter's shape

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
    are saved meanwhile, as far as the allowance goes, which saves a part of the time.
    """

    count: int
    entries: int  # of the gradient of one example
    compute: Callable[[slice | Tensor], Tensor]  # some examples' gradients without the scale
    scale: Tensor | None
    allowance: Allowance
    saved: dict[int, Tensor] = field(default_factory=dict)  # by index of a chunk: [b, entries]

    @classmethod
    def of(cls, terms: Sequence[Term], allowance: Allowance) -> "Recomputed":
        """The sum of some terms."""
        first = terms[0]
        scale = None
        if len(terms) == 1 and isinstance(first, Deferred):
            compute = first.compute
            scale = first.scale
        elif len(terms) == 1 and isinstance(first, Outer | Convolved):
            compute = _unscaled(first)
            scale = first.scale
        else:
            compute = _summed(terms)
        return cls(first.count, first.entries, compute, scale, allowance)

    def norms(self, products: InnerProducts) -> Norms:
        unscaled = []
        squared = []
        self.saved.clear()
        for i, part in enumerate(self._parts()):
            rows = self._rows(part)
            if self.allowance.take(rows.nbytes):
                self.saved[i] = rows
            unscaled.append(row_squares(rows))
            if self.scale is not None:
                squared.append(row_squares(rows, self.scale.reshape(-1)))
        sizes = torch.cat(unscaled)
        if self.scale is None:
            return Norms(sizes, (sizes,))
        return Norms(torch.cat(squared), (sizes,))

    def add_sum(self, weights: Tensor, out: Tensor) -> None:
        total = torch.zeros_like(out).view(-1)
        for i, part in enumerate(self._parts()):
            rows = self.saved.get(i)
            if rows is None:
                rows = self._rows(part)
            total.addmv_(rows.T, weights[part])
        if self.scale is None:
            out.view(-1).add_(total)
        else:
            out.view(-1).addcmul_(total, self.scale.reshape(-1))

    def only(self, examples: Tensor) -> "Recomputed":
        def compute_chosen(part: slice | Tensor) -> Tensor:
            return self.compute(examples[part])

        nothing = Allowance(0)  # what was saved is saved for other chunks
        return replace(
            self, count=len(examples), compute=compute_chosen, allowance=nothing, saved={}
        )

    def _rows(self, part: slice) -> Tensor:
        """[b, entries]: the gradients of some examples without the scale."""
        return in_full(self.compute(part)).flatten(1)

    def _parts(self) -> Iterator[slice]:
        return _chunks(self.count, self.entries)


def _unscaled(term: Outer | Convolved) -> Callable[[slice | Tensor], Tensor]:
    def compute(examples: slice | Tensor) -> Tensor:
        return term.outer(examples).materialised()

    return compute


def _summed(terms: Sequence[Term]) -> Callable[[slice | Tensor], Tensor]:
    def compute(examples: slice | Tensor) -> Tensor:
        gradients = [term.only(examples).materialised() for term in terms]
        rows = [gradient.reshape(len(gradient), -1) for gradient in gradients]
        return reduce(torch.add, rows)

    return compute


@dataclass(frozen=True)
class Reordered:
    """Gradients of a convolution's weight with the channels last: [out, *kernel, in / groups]."""

    gradients: Materialised | Recomputed
    shape: torch.Size  # of the parameter, [out, in / groups, *kernel]

    @classmethod
    def of(cls, term: Convolved, allowance: Allowance) -> "Reordered":
        """With a scale."""
        assert term.scale is not None
        scale = term.scale.movedim(1, -1).contiguous()
        ordered = replace(term, scale=scale)
        return cls(Recomputed.of([ordered], allowance), term.geometry.shape)

    def norms(self, products: InnerProducts) -> Norms:
        return self.gradients.norms(products)

    def add_sum(self, weights: Tensor, out: Tensor) -> None:
        rows, channels, *kernel = self.shape
        total = torch.zeros(rows, *kernel, channels, dtype=out.dtype, device=out.device)
        self.gradients.add_sum(weights, total)
        out += total.movedim(-1, 1)

    def only(self, examples: Tensor) -> "Reordered":
        chosen = self.gradients.only(examples)
        return replace(self, gradients=chosen)


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


def _chunks(count: int, entries: int, most: int | None = None) -> Iterator[slice]:
    """Slices of rows with at most so many entries in all (CHUNK_ENTRIES), to bound memory."""
    fitting = (most or CHUNK_ENTRIES) // max(1, entries)
    step = max(1, fitting)
    for begin in range(0, count, step):
        end = begin + step
        yield slice(begin, end)


def _without_positions(term: Outer) -> Outer:
    """Factors [B, out] and [B, in], in full precision."""
    left = in_full(term.left)
    right = in_full(term.right)
    if left.dim() == 2:
        return replace(term, left=left, right=right)
    return Outer(left.squeeze(1), right.squeeze(1), term.scale)


def _column(weights: Tensor, like: Tensor) -> Tensor:
    """[B, 1, ...] with as many dimensions as ``like``."""
    ones = [1] * (like.dim() - 1)
    return weights.view(-1, *ones)


def _weighted(left: Tensor, right: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Both factors, the smaller of them with its rows multiplied by the weights."""
    if left.numel() <= right.numel():
        return left * _column(weights, left), right
    return left, right * _column(weights, right)
