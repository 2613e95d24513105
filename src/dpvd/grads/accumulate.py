"""A logical batch of any size under a limit on memory: clipped sums of slices, added up."""

from collections.abc import Iterable, Iterator

import torch

from dpvd.grads.batches import Batch, batch_size, rows
from dpvd.grads.clipped import ClippedSum

__all__ = ["add_up", "micro_batches"]


def micro_batches(batch: Batch, size: int | None) -> Iterator[Batch]:
    """Cut a batch into slices of at most ``size`` examples, in order; None leaves it whole.

    Edge cases: an empty batch is one empty slice.

    >>> [len(x) for x, in micro_batches((torch.zeros(7, 2),), 3)]
    [3, 3, 1]
    """
    count = max(1, batch_size(batch))
    step = count if size is None else size
    for start in range(0, count, step):
        yield rows(batch, slice(start, start + step))


def add_up(parts: Iterable[ClippedSum]) -> ClippedSum:
    """One clipped sum for all examples of several, which have the same model and the same clipping.

    Every example was clipped in its own slice by the bound that the whole batch has, so the sum has the sensitivity of
    a single one. The parts are taken one by one, and only one is held beside the sum.

    Args:
        parts: at least one. The gradients of the first are overwritten.
    """
    rest = iter(parts)
    first = next(rest)
    norms, losses, non_finite = [first.norms], [first.losses], first.non_finite
    for part in rest:
        for name, gradient in part.grads.items():
            first.grads[name] += gradient
        norms.append(part.norms)
        losses.append(part.losses)
        non_finite += part.non_finite
    every = torch.cat(losses)
    return ClippedSum(
        grads=first.grads,
        norms=torch.cat(norms),
        losses=every,
        count=len(every),
        non_finite=non_finite,
        clipping=first.clipping,
        jacobian=first.jacobian,
    )
