"""Criteria of torch, such as ``nn.CrossEntropyLoss``, as losses of a model and a batch."""

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.loss import _Loss

from dpvd.errors import DpvdError
from dpvd.grads.batch import LossFn

__all__ = ["as_loss_fn", "refuse_reduction"]


def as_loss_fn(loss: Any) -> LossFn:
    """A loss as engines call it: ``loss_fn(model, *batch)``.

    A criterion of torch becomes ``criterion(model(x), y)``; with more than two entries in a batch
    all but the last are the model's. Other callables are taken as they are.

    Raises:
        DpvdError: if it is a criterion that reduces over the batch, or cannot be called.
    """
    if not callable(loss):
        raise DpvdError(
            f"the loss must be a function loss_fn(model, *batch) of one value per example, or a"
            f" criterion such as nn.CrossEntropyLoss(reduction='none'), got {type(loss).__name__}"
        )
    if not isinstance(loss, _Loss):
        found: LossFn = loss
        return found
    refuse_reduction(loss)
    return _OfOutputs(loss)


def refuse_reduction(criterion: Any) -> None:
    """Raise for a criterion of torch that reduces over the batch."""
    if not isinstance(criterion, _Loss) or criterion.reduction == "none":
        return
    name = type(criterion).__name__
    raise DpvdError(
        f"{name}(reduction={criterion.reduction!r}) makes one number of the whole batch, which"
        f" hides what each example contributes: take {name}(reduction='none'). A step divides by"
        " the plan's batch size by itself"
    )


class _OfOutputs:
    """``criterion(model(*inputs), targets)`` of a batch whose last entry are the targets."""

    def __init__(self, criterion: nn.Module) -> None:
        self.criterion = criterion

    def __call__(self, model: nn.Module, *batch: Any) -> Tensor:
        if len(batch) < 2:
            raise DpvdError(
                f"{type(self.criterion).__name__} takes the model's outputs and targets: batches"
                " must be tuples of inputs and targets. For dictionaries of a Hugging Face collator"
                " use dpvd.losses.from_logits"
            )
        *inputs, targets = batch
        losses: Tensor = self.criterion(model(*inputs), targets)
        return losses
