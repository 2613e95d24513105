"""Reading the batches that a sampler has drawn, one ahead in the background if wanted."""

from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dpvd.errors import DpvdError
from dpvd.mechanisms import BitSource, Draw, FixedSizeSampler, PoissonSampler, marked
from dpvd.tree import leaves_of, mapped

__all__ = ["Columns", "prefetched", "read_batches"]

_Item = TypeVar("_Item")


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

    def whole(self, device: torch.device | str | None = None) -> Any:
        """All examples: the tensors themselves where they are there already."""
        return mapped(lambda column: torch.as_tensor(column, device=device), self.data)


def read_batches(
    columns: Columns,
    sampler: PoissonSampler | FixedSizeSampler,
    bits: BitSource,
    *,
    steps: Iterable[int],
    fingerprint: str,
    device: torch.device | str | None,
    shared: bool = False,
) -> Generator[Any, None, None]:
    """Yield a batch for each of these steps of the plan with this fingerprint.

    A draw of all examples is the columns themselves if they may be ``shared``, else a copy.
    """
    for step in steps:
        rows = sampler.draw(len(columns), bits)
        draw = Draw(fingerprint, step, len(rows))
        if shared and len(rows) == len(columns):
            batch = columns.whole(device)  # in their order: draws are sorted
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
