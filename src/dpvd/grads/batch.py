"""A batch, its slices and its per-example losses."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from dpvd.errors import DpvdError
from dpvd.tree import leaves_of, mapped

__all__ = [
    "Batch",
    "Layout",
    "LossFn",
    "as_batch",
    "batch_size",
    "copied",
    "losses_of",
    "micro_batches",
    "per_example_losses",
    "rows",
]

LossFn = Callable[..., Tensor]
"""Returns one loss per example, shape [B].

``loss_fn(model, *batch)`` for a tuple or a list, ``loss_fn(model, batch)`` for anything else: a
tensor, a dictionary, a dataclass, a named tuple.
"""

_CONSTANTS = (bool, int, float, complex, str, bytes, Enum, torch.dtype, torch.device, type(None))
_TENSOR = "tensor"


@dataclass(frozen=True)
class Layout:
    """The containers of a batch, without its tensors.

    Attributes:
        parts: for each leaf the way to it and what it is: a tensor, or the type and value of a
            constant. Layouts are equal if these are.
        containers: the batch with a place for each tensor.
        is_spread: whether its entries are the arguments of the loss, rather than itself.
    """

    parts: frozenset[tuple[str, str, Any]]
    containers: Any = field(compare=False, repr=False)
    is_spread: bool = field(compare=False)

    def difference(self, first: "Layout") -> str:
        """Say what of a batch is not as it was in the first one, and what to do."""
        new = self.parts - first.parts
        gone = first.parts - self.parts
        path, kind, value = sorted(new or gone, key=repr)[0]
        found = "a tensor" if kind == _TENSOR else repr(value)
        change = f"batch{path} is {found}, which it was not in the first batch"
        if not new:
            change = f"batch{path} was {found} in the first batch and is not there any more"
        return (
            f"{change}: what is no tensor with a row for each example must be the same in all"
            " batches, or each example learns something of the others from it. Make it a tensor"
            " with a row for each example, or leave it out"
        )


@dataclass(frozen=True)
class Batch:
    """The examples of a step.

    Attributes:
        tensors: with the examples along their first dimension, equally many in all of them.
        layout: the containers in which the loss expects them.
    """

    tensors: tuple[Tensor, ...]
    layout: Layout

    def of(self, tensors: Iterable[Tensor]) -> "Batch":
        """The same containers with other tensors."""
        return Batch(tuple(tensors), self.layout)

    def packed(self) -> Any:
        """The tensors in their containers."""
        remaining = iter(self.tensors)
        return mapped(
            lambda leaf: next(remaining) if leaf is _PLACE else leaf, self.layout.containers
        )

    def arguments(self) -> tuple[Any, ...]:
        """What a loss takes after the model."""
        packed = self.packed()
        return tuple(packed) if self.layout.is_spread else (packed,)


_PLACE = object()  # where a tensor of a batch belongs


def as_batch(batch: Any) -> Batch:
    """The tensors of a batch, which must have equal length, and the containers they come in.

    Raises:
        DpvdError: if there is no tensor, one has no rows or not as many as the others, or there is
            something else than tensors and plain constants.
    """
    if isinstance(batch, Batch):
        return batch
    if isinstance(batch, Tensor):
        batch = (batch,)
    parts: set[tuple[str, str, Any]] = set()
    tensors: dict[str, Tensor] = {}
    for path, leaf in leaves_of(batch, is_leaf=_has_no_rows):
        if isinstance(leaf, Tensor):
            tensors[path] = leaf
            parts.add((path, _TENSOR, None))
        elif isinstance(leaf, _CONSTANTS):
            parts.add((path, type(leaf).__name__, leaf))
        else:
            raise _not_a_batch(batch, path, leaf)
    if not tensors:
        raise _not_a_batch(batch, "", batch)
    _check_lengths(tensors)
    containers = mapped(lambda leaf: _PLACE if isinstance(leaf, Tensor) else leaf, batch)
    is_spread = isinstance(batch, tuple | list) and not hasattr(batch, "_fields")
    return Batch(tuple(tensors.values()), Layout(frozenset(parts), containers, is_spread))


def _has_no_rows(value: Any) -> bool:
    """Whether this would pass for a container of tensors, but has no row for each example."""
    if isinstance(value, PackedSequence):
        return True
    # Strings, one for each example: they would be taken for constants.
    is_list = isinstance(value, tuple | list) and not hasattr(value, "_fields")
    return is_list and bool(value) and all(isinstance(entry, _CONSTANTS) for entry in value)


def _not_a_batch(batch: Any, path: str, leaf: Any) -> DpvdError:
    if isinstance(leaf, PackedSequence):
        return DpvdError(
            f"batch{path} is a PackedSequence, which has time steps along its first dimension, not"
            " examples: let the collate function pad (pad_sequence with batch_first=True) and"
            " return the lengths as a tensor, and pack inside the loss"
        )
    where = f"batch{path} is {_kind(leaf)}" if path else f"got {_kind(batch)}"
    return DpvdError(
        "a batch must be a tensor, or a tuple of tensors, a dictionary or a dataclass of them, with"
        f" the examples along the first dimension of each; {where}: convert what belongs to the"
        " examples to tensors, and leave out the rest; plain constants may stay"
    )


def _kind(value: Any) -> str:
    """In words, such as "a list of str"."""
    name = type(value).__name__
    if isinstance(value, list | tuple) and value:
        name += f" of {type(value[0]).__name__}"
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"


def _check_lengths(tensors: dict[str, Tensor]) -> None:
    """Raise unless all tensors have the same number of rows."""
    for path, tensor in tensors.items():
        if tensor.is_nested:
            raise DpvdError(
                f"batch{path} is a nested tensor: pad it, and give the lengths or a mask as a"
                " tensor of its own"
            )
        if tensor.dim() == 0:
            raise DpvdError(
                f"batch{path} is a tensor without dimensions, but a batch has the examples along"
                " the first dimension of each tensor: give a constant as a plain number"
            )
    lengths = {path: tensor.shape[0] for path, tensor in tensors.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"batch{path} {length}" for path, length in lengths.items())
        raise DpvdError(
            "the tensors of a batch must have equal length, with the examples along the first"
            f" dimension; got {found}. pad_sequence needs batch_first=True for that"
        )


def batch_size(batch: Batch) -> int:
    first = batch.tensors[0]
    return first.shape[0]


def rows(batch: Batch, which: slice | Tensor) -> Batch:
    """Some examples of a batch, by their positions in it."""
    chosen = []
    for tensor in batch.tensors:
        positions = which
        if isinstance(which, Tensor):
            positions = which.to(tensor.device)
        chosen.append(tensor[positions])
    return batch.of(chosen)


def copied(batch: Batch) -> Batch:
    """For a run that may overwrite its inputs, none of which may reach the next run."""
    return batch.of(tensor.clone() for tensor in batch.tensors)


def micro_batches(batch: Batch, size: int | None) -> Iterator[Batch]:
    """Cut a batch into slices of at most ``size`` examples, in order; None keeps it whole.

    Edge cases: an empty batch is one empty slice.

    >>> import torch
    >>> [batch_size(part) for part in micro_batches(as_batch(torch.zeros(7, 2)), 3)]
    [3, 3, 1]
    """
    count = batch_size(batch)
    if size is None or count <= size:
        yield batch
        return
    for start in range(0, count, size):
        yield rows(batch, slice(start, start + size))


def losses_of(model: nn.Module, loss_fn: LossFn, batch: Batch) -> Tensor:
    """What the loss makes of a batch."""
    return loss_fn(model, *batch.arguments())


def per_example_losses(model: nn.Module, loss_fn: LossFn, batch: Batch) -> Tensor:
    """Call the loss and check that it gave one value per example."""
    with torch.enable_grad():
        losses = losses_of(model, loss_fn, batch)
    count = batch_size(batch)
    if not isinstance(losses, Tensor) or losses.shape != (count,):
        raise _not_per_example(losses, count)
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


def _not_per_example(losses: Any, count: int) -> DpvdError:
    is_tensor = isinstance(losses, Tensor)
    got = f"shape {list(losses.shape)}" if is_tensor else _kind(losses)
    remedy = "switch the reduction off (reduction='none'), and sum over everything but the batch"
    if is_tensor and losses.dim() == 0:
        remedy = (
            "a mean over the batch hides what each example contributes. Switch the reduction off"
            " (reduction='none'); the .loss of a Hugging Face model is such a mean, and"
            " dpvd.losses.from_logits gives one value per example instead"
        )
    elif is_tensor and losses.dim() > 1 and len(losses) == count:
        remedy = (
            "make one value of each row, such as losses.flatten(1).mean(1), or"
            " dpvd.losses.token_mean(losses, mask) where some entries are padding"
        )
    elif hasattr(losses, "logits"):
        remedy = (
            "that is the output of a model. dpvd.losses.from_logits makes a loss per example of it"
        )
    return DpvdError(
        f"the loss must be one value per example, shape [{count}], got {got}: {remedy}"
    )
