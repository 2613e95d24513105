"""Inner products of factors, and what may be believed of them in floating point."""

import math
from functools import cache, reduce

import torch
from torch import Tensor

from dpvd.grads.terms import blocks
from dpvd.nn.sum_of_squares import row_squares

__all__ = ["GRAM_PIECE", "Products", "additions", "largest_size", "product", "rounded_up"]

GRAM_PIECE = 128  # products that are added up in one go where norms depend on it


class Products:
    """Inner products of factors, computed once for each factor: parameters of one layer have theirs
    in common.

    Attributes:
        sizes: [B] each: squared norms of all that norms and sums are made from. A norm that is
            finite says little of them: 10⁻²⁵ squared is 0, whatever it is multiplied by. See
            :func:`largest_size`.
    """

    def __init__(self) -> None:
        # By id and kind. The factor is kept too, so that its id stays its own.
        self._known: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self.sizes: list[Tensor] = []

    def squares(self, rows: Tensor) -> Tensor:
        """[B]: Σ_j x_ij² of the rows of a matrix [B, d]."""
        key = id(rows), 0
        if key not in self._known:
            found = row_squares(rows)
            self._known[key] = rows, found
            self.sizes.append(found)
        return self._known[key][1]

    def gram(self, factor: Tensor, groups: int) -> Tensor:
        """[B, G, T, T]: x_s · x_t for all positions of a factor [B, T, d], block by block."""
        key = id(factor), groups
        if key not in self._known:
            rows = blocks(factor, groups)
            found = product(rows, rows.mT, GRAM_PIECE)
            self._known[key] = factor, found
            self.sizes.append(found.diagonal(dim1=2, dim2=3).sum((1, 2)))
        return self._known[key][1]


@cache
def largest_size(dtype: torch.dtype) -> float:
    """The largest squared norm of a factor, or of an unscaled gradient, at which norms hold: 7e30
    in float32.

    A square below the smallest number of its type is rounded to 0, and the error is multiplied by
    the other factor's square, up to this; a scale that makes a gradient small is applied after
    examples have been added up, which must not overflow before. Both errors are below 10⁻¹⁰, and
    nothing that learns comes near: an example beyond is left out.
    """
    return float(torch.finfo(dtype).max ** 0.8)


def product(left: Tensor, right: Tensor, piece: int) -> Tensor:
    """left @ right, with no more than ``piece`` products added up in one go: see
    :func:`rounded_up`.
    """
    pieces = zip(torch.split(left, piece, -1), torch.split(right, piece, -2), strict=True)
    return reduce(torch.add, [one @ other for one, other in pieces])


def additions(length: int, piece: int) -> int:
    """How many products and sums of products :func:`product` adds up for one entry."""
    return min(length, piece) + math.ceil(length / piece)


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
    return total.clamp_min(0) + count * torch.finfo(total.dtype).eps * magnitude
