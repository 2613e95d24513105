"""A batch, its slices and its per-example losses."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from dpvd.errors import DpvdError

__all__ = [
    "Batch",
    "LossFn",
    "as_batch",
    "batch_size",
    "copied",
    "micro_batches",
    "per_example_losses",
    "rows",
]

Batch = tuple[Tensor, ...]
"""Tensors with the examples along their first dimension."""

LossFn = Callable[..., Tensor]
"""``loss_fn(model, *batch)`` returns one loss per example, shape [B]."""


def as_batch(batch: Any) -> Batch:
    """A tuple of tensors of equal length from a tensor or a sequence of tensors."""
    tensors = (batch,) if isinstance(batch, Tensor) else batch
    if not isinstance(tensors, tuple | list):
        tensors = ()
    if not tensors or not all(isinstance(t, Tensor) and t.dim() > 0 for t in tensors):
        raise DpvdError(
            "a batch must be a tensor, or a tuple of tensors, with the examples along the first"
            " dimension"
        )
    if len({t.shape[0] for t in tensors}) > 1:
        raise DpvdError(
            f"the tensors of a batch must have equal length, got {[len(t) for t in tensors]}"
        )
    return tuple(tensors)


def batch_size(batch: Batch) -> int:
    first = batch[0]
    return first.shape[0]


def rows(batch: Batch, which: slice | Tensor) -> Batch:
    """Some examples of a batch, by their positions in it."""
    chosen = []
    for tensor in batch:
        positions = which
        if isinstance(which, Tensor):
            positions = which.to(tensor.device)
        chosen.append(tensor[positions])
    return tuple(chosen)


def copied(batch: Batch) -> Batch:
    """For a run that may overwrite its inputs, none of which may reach the next run."""
    return tuple(tensor.clone() for tensor in batch)


def micro_batches(batch: Batch, size: int | None) -> Iterator[Batch]:
    """Cut a batch into slices of at most ``size`` examples, in order; None keeps it whole.

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


def per_example_losses(model: nn.Module, loss_fn: LossFn, batch: Batch) -> Tensor:
    """Call the loss and check that it gave one value per example."""
    with torch.enable_grad():
        losses = loss_fn(model, *batch)
    count = batch_size(batch)
    if not isinstance(losses, Tensor) or losses.shape != (count,):
        got = f"shape {list(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
        raise DpvdError(
            f"the loss must be one value per example, shape [{count}], got {got}: "
            "switch the reduction off (reduction='none'), and sum over everything but the batch"
        )
    if not losses.is_floating_point():
        raise DpvdError(
            f"the loss must be of a floating-point type, got {losses.dtype}: it is to be"
            " differentiated"
        )
    if not losses.requires_grad:
        raise DpvdError(
            "the loss does not depend on any trainable parameter: look for detach(), no_grad() or"
            " argmax() in it"
        )
    return losses
