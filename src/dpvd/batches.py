"""Reading the batches that a sampler has drawn, one ahead in the background if wanted."""

from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from dpvd.mechanisms import BitSource, Draw, DrawnBatch, FixedSizeSampler, PoissonSampler

__all__ = ["prefetched", "read_batches"]

_Item = TypeVar("_Item")


def read_batches(
    tensors: tuple[Tensor, ...],
    sampler: PoissonSampler | FixedSizeSampler,
    bits: BitSource,
    *,
    steps: Iterable[int],
    fingerprint: str,
    device: torch.device | str | None,
) -> Generator[DrawnBatch, None, None]:
    """Yield a batch for each of these steps of the plan with this fingerprint."""
    examples = len(tensors[0])
    for step in steps:
        rows = sampler.draw(examples, bits)
        draw = Draw(fingerprint, step, len(rows))
        batch = [_gather(tensor, rows, device) for tensor in tensors]
        yield DrawnBatch(batch, draw)


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


def _gather(tensor: Tensor, rows: Tensor, device: torch.device | str | None) -> Tensor:
    positions = rows.to(tensor.device)
    chosen = tensor.index_select(0, positions)  # several times as fast as tensor[rows]
    return chosen.to(device)
