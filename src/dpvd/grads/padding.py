"""How rows are filled up to the longest of their batch, learnt from a collate function's results.

The length of a padded batch follows from its longest example. A model that looks at padding tells
every example of that one, and clipping bounds nothing that comes that way.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from dpvd.grads.batch import Batch

__all__ = ["Fill", "Padding"]


@dataclass(frozen=True)
class Fill:
    """How one tensor of a batch is padded.

    Attributes:
        before: by how many entries at the beginning of each dimension.
        after: by how many at its end.
        value: with what.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    value: bool | int | float

    def on(self, tensor: Tensor, times: int) -> Tensor:
        """The tensor with so many times more padding; the first dimension are its rows."""
        before = tuple(times * more for more in self.before)
        after = tuple(times * more for more in self.after)
        sizes = zip(before, tensor.shape, after, strict=True)
        padded = tensor.new_full([sum(three) for three in sizes], self.value)
        padded[_inside(before, tensor.shape)] = tensor
        return padded


@dataclass(frozen=True)
class Padding:
    """How the tensors of a batch are padded.

    Attributes:
        fills: for each tensor; None for those that are not padded.
        parts: the containers in which the tensors are, as of :class:`dpvd.grads.batch.Layout`.
    """

    fills: tuple[Fill | None, ...]
    parts: frozenset[tuple[str, str, Any]]

    def fits(self, batch: Batch) -> bool:
        """Whether this is a batch of the kind that it was learnt from."""
        if batch.layout.parts != self.parts:
            return False
        pairs = zip(batch.tensors, self.fills, strict=True)
        return all(fill is None or tensor.dim() == len(fill.before) for tensor, fill in pairs)

    def on(self, batch: Batch, times: int = 1) -> Batch:
        """The batch as it would be beside a longer example."""
        return batch.of(
            tensor if fill is None else fill.on(tensor, times)
            for tensor, fill in zip(batch.tensors, self.fills, strict=True)
        )

    @classmethod
    def between(cls, alone: Batch, beside: Batch) -> "Padding | None":
        """What was added to one example, alone in a batch, to stand beside a longer one.

        The values of a tensor need not be the same in both, as those of a collate function that
        masks words at random are not; in one of the tensors that got longer they must be.

        Returns:
            None if nothing was added, or it cannot be told what.
        """
        if alone.layout != beside.layout:
            return None
        if any(a.dim() != b.dim() for a, b in zip(alone.tensors, beside.tensors, strict=True)):
            return None
        rank = max(tensor.dim() for tensor in alone.tensors)
        for ends in product((False, True), repeat=rank):  # at which end of each dimension
            found = [
                _fill(short, long, ends)
                for short, long in zip(alone.tensors, beside.tensors, strict=True)
            ]
            grown = [fill for fill, same in found if fill is not None and same]
            unclear = [fill for fill, same in found if fill is None and not same]
            if grown and not unclear:
                return cls(tuple(fill for fill, _ in found), alone.layout.parts)
        return None


def _fill(short: Tensor, long: Tensor, ends: tuple[bool, ...]) -> tuple[Fill | None, bool]:
    """What was added to a tensor, and whether its values are the same without that."""
    if short.shape == long.shape:
        return None, True
    added = [after - before for before, after in zip(short.shape, long.shape, strict=True)]
    if min(added) < 0:
        return None, False
    before = tuple(0 if at_end else more for more, at_end in zip(added, ends, strict=False))
    after = tuple(more if at_end else 0 for more, at_end in zip(added, ends, strict=False))
    inside = _inside(before, short.shape)
    is_padding = torch.ones_like(long, dtype=torch.bool)
    is_padding[inside] = False
    values = long[is_padding]
    if not bool((values == values[0]).all()):
        return None, False
    return Fill(before, after, values[0].item()), torch.equal(long[inside], short)


def _inside(before: tuple[int, ...], shape: torch.Size) -> tuple[slice, ...]:
    """Where the unpadded entries are."""
    return tuple(slice(first, first + size) for first, size in zip(before, shape, strict=True))
