"""Per-example gradients of a batch: their norms, their clip factors and their clipped sum."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, reduce
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dpvd.grads.clipping import Clipping, Grouping, Jacobian
from dpvd.nn.sum_of_squares import row_squares

__all__ = [
    "GRAM_CHUNK",
    "KEPT_BYTES",
    "Allowance",
    "ClippedGradients",
    "Directions",
    "InnerProducts",
    "Norms",
    "PerExample",
    "additions",
    "blocks",
    "clip",
    "identity",
    "largest_size",
    "product",
    "rounded_up",
]

SHORTEST_HALVED = 32  # positions: products of fewer rows are not faster
GRAM_CHUNK = 128  # largest chunk of an inner product; bounds its rounding error
KEPT_BYTES = 64_000_000  # of per-example gradients that are kept, if nothing else is said
REMEMBERED_ENTRIES = 1 << 21  # 8 MB in float32: inner products that another parameter may need


class Norms(NamedTuple):
    """Squared norms of one parameter's gradients, and the sizes of what they were computed from.

    Attributes:
        squared: [B], never below the true ones by more than rounding.
        sizes: [B] each: squared norms of every factor, or unscaled gradient, that norm and sum are
            made from. A finite norm says little of them: 10⁻²⁵ squared is 0, whatever it is
            multiplied by. Examples with a size above `largest_size` are excluded.
    """

    squared: Tensor
    sizes: tuple[Tensor, ...]


class Allowance:
    """How much of a batch's per-example gradients may still be kept until they are added up.

    Inputs of layers and gradients at their outputs are kept anyway: what is more than that is taken
    from here, and what it has no room for is computed again.

    Args:
        nbytes: in all.
    """

    def __init__(self, nbytes: int = KEPT_BYTES) -> None:
        self.room = nbytes

    def take(self, nbytes: int) -> bool:
        """Whether this much may be kept; if so, it is taken from the room that is left."""
        if nbytes > self.room:
            return False
        self.room -= nbytes
        return True

    def charge(self, nbytes: int) -> None:
        """What is kept in any case leaves less room for the rest."""
        self.room -= nbytes


def identity(factor: Tensor) -> object:
    """The same for two tensors that are one place in memory, seen alike."""
    place = factor.data_ptr()
    return place, factor.dtype, tuple(factor.shape), factor.stride()


class GramMatrix(NamedTuple):
    """The inner products x_s · x_t of T positions of each example, block by block.

    They are symmetric. With the positions in two halves, the square of the first and the rectangle
    below it are computed together, then the square of the second: three quarters of the products.

    Attributes:
        first: [B, G, T, h], of all positions with those of the first half.
        second: [B, G, T - h, T - h].
    """

    first: Tensor
    second: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> "GramMatrix":
        """Of positions [B, G, T, d], in full precision."""
        half = (rows.shape[2] + 1) // 2
        if rows.shape[2] < SHORTEST_HALVED:
            half = rows.shape[2]
        upper = rows[:, :, :half]
        lower = rows[:, :, half:]
        first = product(rows, upper.mT, GRAM_CHUNK)
        second = product(lower, lower.mT, GRAM_CHUNK)
        return cls(first, second)

    def diagonal(self) -> Tensor:
        """[B, G, T]: squares."""
        first = self.first.diagonal(dim1=2, dim2=3)
        if not self.second.numel():
            return first
        return torch.cat([first, self.second.diagonal(dim1=2, dim2=3)], dim=2)

    def inner(self, other: "GramMatrix") -> Tensor:
        """[B]: the sum of the products of all entries with another's."""
        products = self.first * other.first
        if not self.second.numel():
            return products.sum((1, 2, 3))
        half = self.first.shape[3]
        square = products[:, :, :half].sum((1, 2, 3))
        rectangle = products[:, :, half:].sum((1, 2, 3))
        rest = (self.second * other.second).sum((1, 2, 3))
        return square + 2 * rectangle + rest

    def numel(self) -> int:
        return self.first.numel() + self.second.numel()


class InnerProducts:
    """Inner products of factors, computed once for each: parameters of a layer share factors."""

    def __init__(self) -> None:
        # By identity and kind. The factor is saved too, so that its place in memory stays its own.
        self._squares: dict[object, tuple[Tensor, Tensor]] = {}
        self._grams: dict[object, tuple[Tensor, GramMatrix]] = {}

    def squares(self, rows: Tensor) -> Tensor:
        """[B]: Σ_j x_ij² of the rows of a matrix [B, d]."""
        key = identity(rows)
        if key not in self._squares:
            found = row_squares(rows)
            self._squares[key] = (rows, found)
        return self._squares[key][1]

    def gram(self, factor: Tensor, groups: int) -> GramMatrix:
        """Of all positions of a factor [B, T, d], block by block.

        Those of the last few factors are remembered, as many as `REMEMBERED_ENTRIES` hold.
        """
        key = (identity(factor), groups)
        if key not in self._grams:
            full = torch.promote_types(factor.dtype, torch.float32)
            rows = blocks(factor.to(full), groups)  # [B, G, T, d / G]
            found = GramMatrix.of(rows)
            while self._grams and self._remembered() + found.numel() > REMEMBERED_ENTRIES:
                oldest = next(iter(self._grams))
                del self._grams[oldest]
            self._grams[key] = (factor, found)
        return self._grams[key][1]

    def _remembered(self) -> int:
        return sum(found.numel() for _, found in self._grams.values())


class Directions:
    """Random directions for the gradients of a model: products a ⊗ b of two random vectors.

    The K projections aᵀ G b of a gradient G [rows, entries of a row] have ‖G‖² as their mean
    square, and a gradient that is not zero has none that are zero. They cost one pass over G.

    Args:
        generator: on the CPU.
        count: K.
    """

    def __init__(self, generator: torch.Generator, count: int = 8) -> None:
        self._generator = generator
        self._count = count
        self._drawn: dict[str, tuple[Tensor, Tensor]] = {}

    def of(self, name: str, gradient: Tensor) -> Tensor:
        """[K]: the projections of one parameter's gradient, the same directions in every call."""
        rows = gradient.reshape(len(gradient) if gradient.dim() else 1, -1).double().cpu()
        if name not in self._drawn:
            self._drawn[name] = (self._draw(rows.shape[0]), self._draw(rows.shape[1]))
        left, right = self._drawn[name]
        return (rows @ right).mul_(left).sum(0)

    def _draw(self, length: int) -> Tensor:
        return torch.randn(length, self._count, generator=self._generator, dtype=torch.float64)


class PerExample(Protocol):
    """The per-example gradients of one parameter, in whatever representation."""

    def norms(self, products: InnerProducts) -> Norms:
        """Squared norms, and the sizes of all factors: a size that is missing is not checked."""
        ...

    def add_sum(self, weights: Tensor, out: Tensor) -> None:
        """out += Σ_i weights_i · gradient_i, for weights [B].

        The result goes into a contiguous tensor of the parameter's shape. All gradients must be
        finite: 0 · ∞ would poison the sum.
        """
        ...

    def only(self, examples: Tensor) -> "PerExample":
        """The gradients of these examples, given by their positions in the batch."""
        ...


@dataclass(frozen=True)
class ClippedGradients:
    """The gradients of a batch's examples with their clip factors, not yet added up.

    Nothing in here is private: not the gradients, not the norms, not the losses.

    Attributes:
        gradients: per-example gradients by parameter name, divided by the Jacobian where there is
            one; a parameter that the loss does not reach is absent. None shares memory with a
            parameter: what was measured is what is added up, even if parameters change meanwhile.
        factors: [B, G], what each example's gradient is multiplied by; 0 for an excluded example.
        norms: [B, G] per-example norms before clipping; infinite for an excluded example.
        losses: [B].
        excluded: how many examples contribute zero because their gradient or loss is not finite, or
            far too large.
        jacobian: for scale parameters, what their gradients were divided by.
    """

    gradients: Mapping[str, PerExample]
    factors: Tensor
    norms: Tensor
    losses: Tensor
    excluded: int
    clipping: Clipping
    grouping: Grouping
    jacobian: Jacobian

    @torch.no_grad()
    def norms_by_parameter(self) -> Tensor:
        """[B, P]: the norms of each parameter's gradients, 0 for one that the loss does not reach.

        For checks: clipping takes all at once.
        """
        products = InnerProducts()
        columns = []
        for name in self.grouping.parameters:
            squared = torch.zeros_like(self.losses)
            if name in self.gradients:
                squared, _ = self.gradients[name].norms(products)
            columns.append(squared.sqrt())
        return torch.stack(columns, dim=1)

    @torch.no_grad()
    def projected(self, count: int, directions: Directions) -> Tensor:
        """[b, P, K]: the gradients of the first b examples in K directions of each parameter.

        For checks: by sums with a weight of one for one example and none for the others, so that
        what is looked at is what would be added up.
        """
        weights = torch.eye(len(self.losses), dtype=self.losses.dtype, device=self.losses.device)
        columns = []
        for name, parameter in self.grouping.parameters.items():
            found = []
            for row in weights[:count]:
                total = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
                if name in self.gradients:
                    self.gradients[name].add_sum(row, total)
                found.append(directions.of(name, total))
            columns.append(torch.stack(found))
        return torch.stack(columns, dim=1)

    @torch.no_grad()
    def add_to(self, totals: Mapping[str, Tensor]) -> None:
        """totals += Σ_i factor_i · gradient_i for every parameter, in place.

        Args:
            totals: by parameter name, tensors of the parameters' shapes.
        """
        if self.excluded == len(self.losses):
            return
        factors = self.factors
        gradients = self.gradients
        if self.excluded:  # 0 · ∞ would poison the sum
            included = torch.isfinite(self.norms).all(1).nonzero().squeeze(1)
            factors = factors[included]
            gradients = {name: gradient.only(included) for name, gradient in gradients.items()}
        columns = factors.unbind(1)  # [B] for each clipping group
        for name, gradient in gradients.items():
            total = totals[name]
            weights = columns[self.grouping.group_of[name]]
            if total.is_contiguous():
                gradient.add_sum(weights, total)
            else:  # a parameter in another memory format, such as channels_last
                part = torch.zeros(total.shape, dtype=total.dtype, device=total.device)
                gradient.add_sum(weights, part)
                total += part


def clip(
    gradients: Mapping[str, PerExample],
    losses: Tensor,
    clipping: Clipping,
    grouping: Grouping,
    jacobian: Jacobian,
) -> ClippedGradients:
    """Norms and clip factors. To be called without recording of gradients.

    Args:
        gradients: per-example gradients by parameter name, divided by the Jacobian where there is
            one.
        losses: [B]; an example whose loss is not finite is excluded, and one that overflows on the
            way.
        clipping: the bound.
        grouping: which parameters are clipped together.
        jacobian: what gradients of scale parameters were divided by.
    """
    losses = losses.detach()
    losses = losses.to(torch.promote_types(losses.dtype, torch.float32))
    products = InnerProducts()
    columns: list[Tensor | None] = [None] * grouping.count
    sizes: dict[int, Tensor] = {}  # by identity: parameters of a layer share factors
    for name, gradient in gradients.items():
        squared_norm, own_sizes = gradient.norms(products)
        sizes.update((id(size), size) for size in own_sizes)
        group = grouping.group_of[name]
        so_far = columns[group]
        columns[group] = squared_norm if so_far is None else so_far + squared_norm
    empty = torch.zeros_like(losses)
    squared = [empty if column is None else column for column in columns]
    norms = torch.stack(squared, dim=1).sqrt_()  # [B, G]
    norms, excluded = _exclude(norms, [losses.abs(), *sizes.values()])
    factors = clipping.factors(norms)
    return ClippedGradients(
        gradients, factors, norms, losses, excluded, clipping, grouping, jacobian
    )


def _exclude(norms: Tensor, sizes: list[Tensor]) -> tuple[Tensor, int]:
    """Norms [B, G], ∞ for examples of which anything is too large or NaN; and how many these are.

    All sizes are checked at once; the offending examples are located only if the check fails.
    """
    largest = min(largest_size(size.dtype) for size in (norms, *sizes))
    checked = torch.cat([norms, torch.stack(sizes, dim=1)], dim=1)
    usable = checked <= largest  # [B, G + number of sizes]
    if usable.all():
        return norms, 0
    included = usable.all(1)
    excluded = len(norms) - int(included.sum())
    return torch.where(included.unsqueeze(1), norms, torch.inf), excluded


@cache
def largest_size(dtype: torch.dtype) -> float:
    """The largest squared norm of a factor at which norms can be trusted: 7e30 in float32.

    The same holds for an unscaled gradient. A square below the smallest number of its type is
    rounded to 0, and the error is multiplied by the other factor's square, up to this; a scale that
    makes a gradient small is applied after examples have been added up, which must not overflow
    before. Both errors are below 10⁻¹⁰, and nothing that learns comes near: an example beyond is
    excluded.
    """
    largest = torch.finfo(dtype).max
    return float(largest**0.8)


def product(left: Tensor, right: Tensor, chunk: int) -> Tensor:
    """left @ right, with at most ``chunk`` products added up at a time: see :func:`rounded_up`."""
    lefts = torch.split(left, chunk, -1)
    rights = torch.split(right, chunk, -2)
    products = [one @ other for one, other in zip(lefts, rights, strict=True)]
    return reduce(torch.add, products)


def additions(length: int, chunk: int) -> int:
    """How many products and sums of products :func:`product` adds up for one entry."""
    within_a_chunk = min(length, chunk)
    chunks = math.ceil(length / chunk)
    return within_a_chunk + chunks


def rounded_up(total: Tensor, magnitude: Tensor, count: int) -> Tensor:
    """A squared norm that is not below the true one, in spite of rounding.

    Matrix products may add up their n terms one after the other, and are then off by up to n/2
    units of rounding of the sum of the terms' magnitudes (Higham, Accuracy and Stability of
    Numerical Algorithms, Sec. 3.1): over 20,000 equal entries in float32 a norm came out 250 units
    too short. torch's own sums are made in a cascade, and so short that the margin of the clip norm
    covers them.

    Args:
        total: what was computed.
        magnitude: at least the sum of the magnitudes; (Σ_k ‖term k‖)² by Cauchy and Schwarz.
        count: n; see :func:`additions`.
    """
    unit = torch.finfo(total.dtype).eps
    error = count * unit * magnitude
    at_least_zero = total.clamp_min(0)
    return at_least_zero + error


def blocks(factor: Tensor, groups: int) -> Tensor:
    """[B, G, T, d / G] of a factor [B, T, d]."""
    count, positions, _ = factor.shape
    split = factor.reshape(count, positions, groups, -1)  # [B, T, G, d / G]
    return split.transpose(1, 2)
