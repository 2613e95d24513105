"""A logical batch of any size under a limit on memory: it goes through the model in slices."""

from collections.abc import Iterator

from dpvd.grads.batches import Batch, batch_size, rows

__all__ = ["micro_batches"]


def micro_batches(batch: Batch, size: int | None) -> Iterator[Batch]:
    """Cut a batch into slices of at most ``size`` examples, in order; None leaves it whole.

    Edge cases: an empty batch is one empty slice.

    >>> import torch
    >>> [len(x) for x, in micro_batches((torch.zeros(7, 2),), 3)]
    [3, 3, 1]
    """
    count = batch_size(batch)
    if size is None or count <= size:
        yield batch
        return
    for start in range(0, count, size):
        yield rows(batch, slice(start, start + size))
