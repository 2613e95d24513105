"""Batches that know which draw of the plan's sampler they are, and the check that they are."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dpvd.errors import DpvdError

__all__ = ["Draw", "DrawnBatch", "check_draw", "draw_of"]

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


def check_draw(batch: Any, count: int, plan: str, position: int) -> Draw:
    """The draw that a batch is, which must be the plan's next one.

    Args:
        batch: what was given to a step.
        count: how many examples it has.
        plan: fingerprint of the step's plan.
        position: number of the plan's steps consumed.

    Raises:
        DpvdError: if it is another draw, no draw, or not as it was drawn.
    """
    draw = draw_of(batch)
    if draw is None or draw.size != count:
        raise DpvdError(
            "this batch was not drawn by plan.batches, so that nothing can be said of its sampling:"
            " take batches from plan.batches(data), and batch.carry(...) what you make of them; or,"
            " if they are drawn as the plan says elsewhere, PrivateStep(..., batches='declared')"
        )
    if not _is_as_drawn(batch):
        raise DpvdError(
            "this batch was written to in place after it was drawn, which may have mixed its "
            "examples: make new tensors, each row from its own example alone, and "
            "step(batch.carry(x, y))"
        )
    if draw.plan != plan:
        raise DpvdError(
            "this batch was drawn for another plan: take batches from the plan of this step"
        )
    if draw.used:
        raise DpvdError("this batch was used before: the account covers one step for each draw")
    if draw.step != position:
        raise DpvdError(
            f"this batch was drawn for step {draw.step}, but {position} steps are gone: take every "
            "batch, in order and also if it is small or empty, and after an interruption "
            "plan.batches(data, start=step.position)"
        )
    return draw


def draw_of(batch: Any) -> Draw | None:
    """The draw that a batch, or a tuple of its tensors, comes from; None if not known."""
    if isinstance(batch, DrawnBatch):
        return batch.draw
    tensors = (batch,) if isinstance(batch, Tensor) else batch
    if not isinstance(tensors, tuple | list) or not tensors:
        return None
    marks = [getattr(tensor, _MARK, None) for tensor in tensors]
    first = marks[0]
    if not isinstance(first, Draw):
        return None
    return first if all(mark is first for mark in marks) else None


def _is_as_drawn(batch: Any) -> bool:
    """Whether no tensor of a batch has been written to since it was drawn, or carried."""
    tensors = (batch,) if isinstance(batch, Tensor) else batch
    return all(getattr(tensor, _WRITES, None) == _writes(tensor) for tensor in tensors)


def _writes(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # torch does not count those
