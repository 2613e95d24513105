"""Reading the batches that a sampler has drawn, one ahead in the background if wanted."""

import hashlib
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dpvd.errors import DpvdError
from dpvd.mechanisms import Draw, Partition, marked
from dpvd.ranks import ALONE, Ranks
from dpvd.tree import leaves_of, mapped

__all__ = ["Columns", "prefetched", "read_batches", "sample_of"]

_Item = TypeVar("_Item")

SAMPLED = 64  # examples by which processes compare their data


class Columns:
    """Tensors or arrays with the examples along their first dimension, in any containers.

    Only rows that are asked for are read: arrays may lie in memory-mapped files.

    Raises:
        DpvdError: if there is anything else, or lengths differ.

    >>> Columns({"x": torch.arange(6).reshape(3, 2), "y": np.arange(3)}).rows(torch.tensor([2]))
    {'x': tensor([[4, 5]]), 'y': tensor([2])}
    """

    def __init__(self, data: Any) -> None:
        leaves = list(leaves_of(data))
        for path, leaf in leaves:
            _check_column(data, path, leaf)
        lengths = [len(leaf) if leaf.ndim else 0 for _, leaf in leaves]
        if not leaves:
            raise _no_columns(data, "", data)
        if len(set(lengths)) > 1:
            raise DpvdError(f"the tensors of the data must have equal length, got {lengths}")
        self.data = data
        self._length = lengths[0]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, position: int) -> Any:
        """One example, as a data set returns it."""
        return mapped(lambda column: column[position], self.data)

    def rows(self, which: Tensor, device: torch.device | str | None = None) -> Any:
        """A batch: tensors of these examples in the containers of the data."""
        return mapped(lambda column: _gather(column, which, device), self.data)

    def span(self, part: range, device: torch.device | str | None = None) -> Any:
        """Consecutive examples: views of the tensors where they are there already."""

        def view(column: Tensor | np.ndarray[Any, Any]) -> Tensor:
            return torch.as_tensor(column[part.start : part.stop], device=device)

        return mapped(view, self.data)


def sample_of(examples: Any) -> str:
    """A text that tells apart the same examples in another order, and other examples.

    A few examples stand for all, at fixed places. Data sets that change their examples at random
    cannot be compared: the text is empty for them.

    Args:
        examples: with len() and examples[i].
    """
    count = len(examples)
    places = {count * share // SAMPLED for share in range(SAMPLED)} if count else set()
    texts = [_text_of(examples[place]) for place in sorted(places)]
    if texts and _text_of(examples[0]) != texts[0]:
        return ""
    return f"{count} {texts}"


def _text_of(example: Any) -> str:
    parts = []
    for path, leaf in leaves_of(example):
        if isinstance(leaf, Tensor | np.ndarray | np.generic):
            array = leaf.numpy(force=True) if isinstance(leaf, Tensor) else np.asarray(leaf)
            content = hashlib.sha256(array.tobytes()).hexdigest()
        else:
            content = repr(leaf) if isinstance(leaf, str | int | float) else type(leaf).__name__
        parts.append(f"{path}={content}")
    return ";".join(parts)


def read_batches(
    columns: Columns,
    draw_rows: Callable[[int], Tensor],
    *,
    steps: Iterable[int],
    fingerprint: str,
    device: torch.device | str | None,
    shared: bool = False,
    ranks: Ranks = ALONE,
    partition: Partition | None = None,
) -> Generator[Any, None, None]:
    """Yield a batch for each of these steps of the plan with this fingerprint.

    ``draw_rows`` draws the examples of a step. A draw of all examples is the columns themselves if
    they may be ``shared``, else a copy. Of several ``ranks`` each gets the draw from its own part
    of the examples.
    """
    part = ranks.part_of(len(columns))
    for step in steps:
        rows = draw_rows(step)
        draw = Draw(
            fingerprint,
            step,
            len(rows),
            rank=ranks.rank,
            ranks=ranks.size,
            partition=partition,
        )
        if shared and len(rows) == len(part):
            batch = columns.span(part, device)  # in their order: draws are sorted
        else:
            batch = columns.rows(rows, device)
        yield marked(batch, draw)


def prefetched(items: Generator[_Item, None, None]) -> Generator[_Item, None, None]:
    """Yield the same items, each made in a background thread while the one before it is used.

    Guarantees: at most one item more is made than is taken. What the making of an item raises is
    raised where it would have been taken. The thread ends with the generator.

    >>> list(prefetched(n * n for n in range(4)))
    [0, 1, 4, 9]
    """
    end: Any = object()
    # Leaving the pool waits for an item that is being made.
    with ThreadPoolExecutor(1, thread_name_prefix="dpvd-prefetch") as pool:
        try:
            pending = pool.submit(next, items, end)
            while (item := pending.result()) is not end:
                pending = pool.submit(next, items, end)
                yield item
        finally:
            pool.submit(items.close)


def _check_column(data: Any, path: str, leaf: Any) -> None:
    if isinstance(leaf, Tensor):
        return
    if not isinstance(leaf, np.ndarray):
        raise _no_columns(data, path, leaf)
    try:
        torch.from_numpy(np.empty(0, leaf.dtype.newbyteorder("=")))
    except TypeError:
        raise DpvdError(
            f"data{path} is an array of type {leaf.dtype}, of which torch makes no tensor: give"
            " numbers, or a data set of examples and a collate function, plan.loader(dataset,"
            " collate_fn=...)"
        ) from None


def _no_columns(data: Any, path: str, leaf: Any) -> DpvdError:
    got = f"data{path} is of type" if path else "got"
    return DpvdError(
        "data must be a tensor or a tuple of tensors, or arrays or a dictionary of them, with the"
        f" examples along the first dimension, {got} {type(leaf).__name__}: give a Dataset, or a"
        " list of examples, to plan.loader(dataset, collate_fn=...), which makes a DataLoader of it"
    )


def _gather(
    column: Tensor | np.ndarray[Any, Any], rows: Tensor, device: torch.device | str | None
) -> Tensor:
    if isinstance(column, Tensor):
        positions = rows.to(column.device)
        chosen = column.index_select(0, positions)  # several times as fast as tensor[rows]
    else:
        copy = np.asarray(column[rows.numpy()])
        chosen = torch.from_numpy(copy.astype(copy.dtype.newbyteorder("="), copy=False))
    return chosen.to(device)
