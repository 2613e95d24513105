"""A plan's draws through ``torch.utils.data.DataLoader``: any data set, collate function, workers.

The plan's sampler chooses the examples in the main process; workers read and collate them. Each
batch gets the mark of its draw in the main process, when it arrives there.
"""

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Sampler, default_collate

from dpvd.batches import Columns
from dpvd.errors import DpvdError
from dpvd.grads import Batch, Padding, as_batch, rows, streams_restored
from dpvd.mechanisms import Draw, Partition, handed_out, marked
from dpvd.ranks import Ranks

__all__ = ["Collate", "DrawsInPasses", "PlannedLoader", "as_dataset"]

log = logging.getLogger("dpvd")

MOST_ATTEMPTS = 16  # batches in which two examples of different lengths are looked for
MOST_ALONE = 16  # examples of a batch that are collated alone for that

Collate = Callable[[list[Any]], Any]


def as_dataset(data: Any) -> Any:
    """A map-style data set: what was given, or one of the rows of tensors and arrays.

    Tensors, arrays and tuples or dictionaries of them are columns; a list is a list of examples.

    Raises:
        DpvdError: if examples cannot be had by their number.
    """
    if isinstance(data, DataLoader):
        raise DpvdError(
            "a DataLoader draws its own batches, of which the account knows nothing: give its data"
            " set, plan.loader(loader.dataset, collate_fn=loader.collate_fn), or let"
            " dpvd.make_private(model, optimizer, loader, ...) do that"
        )
    if isinstance(data, Tensor | np.ndarray | tuple | dict) or is_dataclass(data):
        return _JointColumns(data)
    if isinstance(data, IterableDataset) or not _has_numbered_examples(data):
        raise DpvdError(
            f"{type(data).__name__} cannot be asked for an example by its number, and so nobody can"
            " draw from it as the account assumes: give a map-style data set, which has len() and"
            " dataset[i], such as a list of its examples"
        )
    if hasattr(data, "columns") and hasattr(data, "to_numpy"):  # frames of pandas and polars
        raise DpvdError(
            "a data frame has columns by name, not examples by number: give arrays, such as"
            " (frame[features].to_numpy(), frame[target].to_numpy())"
        )
    return data


def _has_numbered_examples(data: Any) -> bool:
    if isinstance(data, str | bytes) or not hasattr(data, "__getitem__"):
        return False
    try:
        len(data)
    except TypeError:
        return False
    return True


class _JointColumns(Columns):
    """Columns whose rows are read for a whole batch at once, if nobody wants to collate them."""

    def __getitems__(self, positions: list[int]) -> Any:
        return self.rows(torch.tensor(positions, dtype=torch.int64))


class DrawsInPasses(Sampler[list[int]]):
    """The draws of a plan in passes of one epoch each: the batch sampler of a loader.

    Attributes:
        position: how many steps of the plan have been delivered.
        pending: the draws of the present pass that were made and not delivered yet, in order.
    """

    def __init__(
        self,
        draw_from: Callable[[int], Iterator[list[int]]],
        pass_ends: Callable[[int], int],
        *,
        fingerprint: str,
        steps: int,
        start: int,
        ranks: Ranks,
        partition: Partition | None = None,
    ) -> None:
        self._draw_from = draw_from
        self._pass_ends = pass_ends
        self._fingerprint = fingerprint
        self._steps = steps
        self._ranks = ranks
        self._partition = partition
        self.position = start
        self.pending: deque[Draw] = deque()
        self._length = max(1, pass_ends(start) - start)

    def __iter__(self) -> Iterator[list[int]]:
        start = self.position
        end = self._pass_ends(start)
        self.pending = deque()
        if start < end:
            self._length = end - start
        return self._draws(start, end, self.pending)

    def __len__(self) -> int:
        """The number of batches in this pass; before the first one, in that."""
        return self._length

    def _draws(self, start: int, end: int, pending: deque[Draw]) -> Iterator[list[int]]:
        if start == end:
            log.warning(
                "the plan's %d steps have all been drawn: there is no batch in this pass",
                self._steps,
            )
            return
        positions = self._draw_from(start)
        for step in range(start, end):
            drawn = next(positions)
            ranks = self._ranks
            draw = Draw(self._fingerprint, step, len(drawn), rank=ranks.rank, ranks=ranks.size)
            draw.partition = self._partition
            pending.append(draw)
            yield drawn


class PlannedLoader(DataLoader[Any]):
    """A DataLoader whose batches are a plan's draws, each with its mark; made by ``plan.loader``.

    One pass is one epoch, as with any loader, and the next goes on where it ended. After the plan's
    last step passes are empty.

    Guarantees:
        Examples are chosen in this process by the plan's sampler. A batch has one row for each
        example that was drawn; other batches are refused. Empty draws are batches without rows.
    """

    def __init__(
        self,
        dataset: Any,
        draws: DrawsInPasses,
        collate_fn: Collate | None,
        options: Mapping[str, Any],
    ) -> None:
        if collate_fn is None and isinstance(dataset, _JointColumns):
            collate: Collate = _not_padded
        else:
            if isinstance(dataset, _JointColumns):
                dataset = Columns(dataset.data)
            collate = _CollateOrEmpty(dataset, collate_fn or default_collate)
        self._draws = draws
        super().__init__(dataset, batch_sampler=draws, collate_fn=collate, **options)

    @property
    def position(self) -> int:
        """How many steps of the plan have been delivered."""
        return self._draws.position

    def __iter__(self) -> Generator[Any, None, None]:  # type: ignore[override]
        batches = super().__iter__()
        return handed_out(self._with_marks(batches, self._draws.pending))

    def _with_marks(self, batches: Iterator[Any], pending: deque[Draw]) -> Iterator[Any]:
        for batch, padding in batches:
            draw = pending.popleft()
            draw.padding = padding
            self._draws.position = draw.step + 1
            as_batch(batch)  # says what is wrong with it, if anything is
            yield marked(batch, draw)


class _CollateOrEmpty:
    """A collate function that also takes an empty list, and says how it pads.

    Hardly any takes an empty list.

    A batch without rows is that of the first example with its row cut off: no value of it is left,
    only types and containers. The model never sees it.
    """

    def __init__(self, dataset: Any, collate_fn: Collate) -> None:
        self.dataset = dataset
        self.collate_fn = collate_fn
        self.padding: Padding | None = None
        self._attempts = 0
        self._may_pad = collate_fn is not default_collate

    def __call__(self, examples: list[Any]) -> tuple[Any, Padding | None]:
        """The batch, and how its examples are padded."""
        if len(examples) == 0:
            one = self.collate_fn([self.dataset[0]])
            return rows(as_batch(one), slice(0, 0)).packed(), self.padding
        if self.padding is None and self._attempts < MOST_ATTEMPTS and self._may_pad:
            self._attempts += 1
            try:
                with streams_restored():
                    self.padding = _padding_of(examples, self.collate_fn)
            except Exception as problem:
                del problem  # it may take no single example; what is wrong with all is said below
        return self.collate_fn(examples), self.padding


def _padding_of(examples: list[Any], collate_fn: Collate) -> Padding | None:
    """What is added to the shorter of two examples, if there are two of different lengths."""
    first = as_batch(collate_fn(examples[:1]))
    for example in examples[1:MOST_ALONE]:
        other = as_batch(collate_fn([example]))
        if _shapes(other) != _shapes(first):
            both = as_batch(collate_fn([examples[0], example]))
            found = Padding.between(first, rows(both, slice(0, 1)))
            return found or Padding.between(other, rows(both, slice(1, 2)))
    return None


def _shapes(batch: Batch) -> list[torch.Size]:
    return [tensor.shape for tensor in batch.tensors]


def _not_padded(batch: Any) -> tuple[Any, None]:
    return batch, None
