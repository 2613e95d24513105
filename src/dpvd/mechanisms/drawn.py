"""Batches that know which draw of the plan's sampler they are, and the check that they are."""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from dpvd.errors import DpvdError
from dpvd.mechanisms.sampling import Partition
from dpvd.tree import leaves_of, mapped

__all__ = ["Draw", "DrawnBatch", "carry", "check_draw", "draw_of", "handed_out", "marked"]

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
        size: how many examples were drawn; by this process, if several draw.
        used: whether a step has been taken with it; a second one would not be covered by the
            account.
        rank: which of several processes drew it, of its own part of the examples.
        ranks: how many processes draw together.
        padding: how its examples were filled up to the longest, if they were.
        partition: into which parts the examples were divided when it was drawn; None if they were
            not. Whoever keeps noise from step to step must know whether it is still the same.
    """

    plan: str
    step: int
    size: int
    used: bool = False
    rank: int = 0
    ranks: int = 1
    padding: Any = None
    partition: Partition | None = None


class DrawnBatch(tuple[Any, ...]):
    """The tensors of a batch, with the draw they come from.

    It is an ordinary tuple: ``x, y = batch`` works, and ``step((x, y))`` recognises tensors that
    were drawn.

    Edge cases: libraries that make the same kind of container of other entries call its type with
    these alone. They get a tuple.
    """

    draw: Draw

    def __new__(cls, entries: Iterable[Any], draw: Draw | None = None) -> Any:
        if draw is None:
            return tuple(entries)
        batch = super().__new__(cls, entries)
        batch.draw = draw
        _mark(batch, draw)
        return batch

    def carry(self, *tensors: Tensor) -> "DrawnBatch":
        """The same examples in another form: normalised, augmented one by one.

        Each row must depend on its own example only; that the caller says by calling this.

        Raises:
            DpvdError: if the tensors do not have as many rows as were drawn.
        """
        found: DrawnBatch = carry(self, tensors)
        return found

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "DrawnBatch":
        """The same batch on another device."""
        moved = mapped(
            lambda leaf: leaf.to(device, non_blocking=non_blocking) if _is_tensor(leaf) else leaf,
            self,
        )
        found: DrawnBatch = DrawnBatch(moved, self.draw)
        return found


def marked(batch: Any, draw: Draw) -> Any:
    """The batch with the mark of its draw on every tensor.

    A tuple or a list becomes a :class:`DrawnBatch`, a tensor one of a single entry; anything else
    stays what it is.

    Raises:
        DpvdError: if the batch does not have one row for each example that was drawn.
    """
    if isinstance(batch, Tensor):
        batch = (batch,)
    lengths = _lengths(batch)
    if not lengths or set(lengths) != {draw.size}:
        raise DpvdError(
            f"{draw.size} examples were drawn, but the tensors of their batch have"
            f" {lengths or 'no'} rows: a collate function must make one row of each example, along"
            " the first dimension (pad_sequence with batch_first=True), and neither drop, merge nor"
            " split any"
        )
    if isinstance(batch, tuple | list) and not hasattr(batch, "_fields"):
        return DrawnBatch(batch, draw)
    _mark(batch, draw)
    return batch


def carry(drawn: Any, changed: Any) -> Any:
    """The same examples in another form: normalised, augmented one by one.

    Each row must depend on its own example only; that the caller says by calling this.

    Args:
        drawn: a batch as the plan drew it.
        changed: what was made of it, in any containers.

    Raises:
        DpvdError: if the tensors do not have as many rows as were drawn.
    """
    draw = draw_of(drawn)
    if draw is None:
        raise DpvdError("only what the plan has drawn can be carried: this batch has no draw")
    lengths = _lengths(changed)
    if not lengths or set(lengths) != {draw.size}:
        raise DpvdError(
            f"the draw has {draw.size} examples, got tensors of lengths {lengths}: "
            "carry the same examples, in the same order"
        )
    return marked(changed, draw)


# A batch may lose its marks on the way: moved to another device, its tensors are new ones. So the
# batch that was handed out last is kept as long as its loop is in it, to compare with.


@dataclass(eq=False)
class _HandedOut:
    draw: Draw
    tensors: list[Tensor]  # not the containers, which the loop may change


_last: WeakSet[_HandedOut] = WeakSet()


def handed_out(batches: Iterator[Any]) -> Generator[Any, None, None]:
    """Yield drawn batches; each is recognised by its values until the next one is taken."""
    for batch in batches:
        draw = draw_of(batch)
        assert draw is not None  # marked where it was drawn
        known = _HandedOut(draw, _tensors(batch))
        _last.add(known)
        yield batch
        del known, batch


def check_draw(
    batch: Any, count: int, plan: str, position: int, *, rank: int = 0, ranks: int = 1
) -> Draw:
    """The draw that a batch is, which must be the plan's next one.

    Args:
        batch: what was given to a step.
        count: how many examples it has.
        plan: fingerprint of the step's plan.
        position: number of the plan's steps consumed.
        rank: which of several processes takes the step.
        ranks: how many processes take it together.

    Raises:
        DpvdError: if it is another draw, no draw, or not as it was drawn.
    """
    draw = draw_of(batch)
    as_drawn = _is_as_drawn(batch)
    if draw is None:
        draw = _recognised(batch, plan, position)
        as_drawn = True
    if draw is None or draw.size != count:
        raise DpvdError(
            "this batch was not drawn by plan.batches or plan.loader, so that nothing can be said"
            " of its sampling: take batches from there, and batch.carry(...), or"
            " dpvd.mechanisms.carry(batch, ...), what you make of them; or, if they are drawn as"
            " the plan says elsewhere, PrivateStep(..., batches='declared')"
        )
    if not as_drawn:
        raise DpvdError(
            "this batch was written to in place after it was drawn, which may have mixed its "
            "examples: make new tensors, each row from its own example alone, and "
            "step(batch.carry(x, y))"
        )
    if draw.plan != plan:
        raise DpvdError(
            "this batch was drawn for another plan: take batches from the plan of this step"
        )
    if (draw.rank, draw.ranks) != (rank, ranks):
        raise DpvdError(
            f"this batch was drawn by process {draw.rank} of {draw.ranks}, but the step is taken by"
            f" process {rank} of {ranks}: give the same group to the step and to plan.batches or"
            " plan.loader, or examples would take part more than once, or not as often as the"
            " account assumes"
        )
    if draw.used:
        raise DpvdError("this batch was used before: the account covers one step for each draw")
    if draw.step != position:
        raise DpvdError(
            f"this batch was drawn for step {draw.step}, but {position} steps are gone: take every "
            "batch, in order and also if it is small or empty, and after an interruption begin at "
            "start=step.position, which plan.batches and plan.loader take"
        )
    return draw


def draw_of(batch: Any) -> Draw | None:
    """The draw that a batch, or a tuple of its tensors, comes from; None if not known."""
    if isinstance(batch, DrawnBatch):
        return batch.draw
    marks = [getattr(tensor, _MARK, None) for tensor in _tensors(batch)]
    if not marks or not isinstance(marks[0], Draw):
        return None
    first = marks[0]
    return first if all(mark is first for mark in marks) else None


def _recognised(batch: Any, plan: str, position: int) -> Draw | None:
    """The draw whose batch was handed out last, if every tensor is one of its tensors."""
    given = _tensors(batch)
    for known in list(_last):
        draw = known.draw
        if draw.plan != plan or draw.step != position or not _is_as_drawn(known.tensors):
            continue
        if given and all(_is_among(known.tensors, tensor) for tensor in given):
            return draw
    return None


def _is_among(drawn: list[Tensor], given: Tensor) -> bool:
    return any(_same_values(tensor, given) for tensor in drawn)


def _same_values(drawn: Tensor, given: Tensor) -> bool:
    """Whether a tensor has the values that were drawn, on any device and as any type."""
    if drawn.shape != given.shape:
        return False
    there = drawn.to(given.device, given.dtype)
    both_nan = (there != there) & (given != given)
    return torch.equal(there, given) or bool(((there == given) | both_nan).all())


def _mark(batch: Any, draw: Draw) -> None:
    for tensor in _tensors(batch):
        setattr(tensor, _MARK, draw)
        setattr(tensor, _WRITES, _writes(tensor))


def _is_as_drawn(batch: Any) -> bool:
    """Whether no tensor of a batch has been written to since it was drawn, or carried."""
    return all(getattr(tensor, _WRITES, None) == _writes(tensor) for tensor in _tensors(batch))


def _lengths(batch: Any) -> list[int]:
    return [len(tensor) if tensor.dim() else 1 for tensor in _tensors(batch)]


def _tensors(batch: Any) -> list[Tensor]:
    return [leaf for _, leaf in leaves_of(batch) if _is_tensor(leaf)]


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)


def _writes(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # torch does not count those
