"""Batches that know which draw they are: only what the plan's sampler drew may be accounted as
such.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dpvd.errors import DpvdError

__all__ = ["Draw", "DrawnBatch", "draw_of", "is_as_drawn"]

# Attributes of the tensors, so that a batch may be unpacked and packed again: the draw, and torch's
# count of writes at that time.
_MARK = "_dpvd_draw"
_WRITES = "_dpvd_writes"


@dataclass(eq=False)
class Draw:
    """One draw of a plan's sampler.

    Attributes:
        plan: fingerprint of the plan.
        step: the step of the plan that it was drawn for, from 0.
        size: how many examples were drawn.
        used: whether a step has been taken with it; a second one would not be covered by the
            account.
    """

    plan: str
    step: int
    size: int
    used: bool = False


class DrawnBatch(tuple[Tensor, ...]):
    """The tensors of a batch, with the draw they come from.

    It is an ordinary tuple: ``x, y = batch`` works, and ``step((x, y))`` recognises tensors that
    were drawn.
    """

    draw: Draw

    def __new__(cls, tensors: Iterable[Tensor], draw: Draw) -> "DrawnBatch":
        batch = super().__new__(cls, tensors)
        batch.draw = draw
        for tensor in batch:
            setattr(tensor, _MARK, draw)
            setattr(tensor, _WRITES, _writes(tensor))
        return batch

    def carry(self, *tensors: Tensor) -> "DrawnBatch":
        """The same examples in another form: on another device, normalised, augmented one by one.

        Each row must depend on its own example only; that the caller says by calling this.

        Raises:
            DpvdError: if the tensors do not have as many rows as were drawn.
        """
        lengths = [len(tensor) for tensor in tensors]
        if not tensors or set(lengths) != {self.draw.size}:
            raise DpvdError(
                f"the draw has {self.draw.size} examples, got tensors of lengths {lengths}: "
                "carry the same examples, in the same order"
            )
        return DrawnBatch(tensors, self.draw)


def draw_of(batch: Any) -> Draw | None:
    """The draw that a batch, or a tuple of a batch's tensors, comes from; None if it is not
    known.
    """
    if isinstance(batch, DrawnBatch):
        return batch.draw
    tensors = (batch,) if isinstance(batch, Tensor) else batch
    if not isinstance(tensors, tuple | list) or not tensors:
        return None
    marks = [getattr(tensor, _MARK, None) for tensor in tensors]
    first = marks[0]
    return first if isinstance(first, Draw) and all(mark is first for mark in marks) else None


def is_as_drawn(batch: Any) -> bool:
    """Whether no tensor of a batch has been written to since it was drawn, or carried."""
    tensors = (batch,) if isinstance(batch, Tensor) else batch
    return all(getattr(tensor, _WRITES, None) == _writes(tensor) for tensor in tensors)


def _writes(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # torch does not count those
