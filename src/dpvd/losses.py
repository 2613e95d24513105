"""Per-example losses as private training takes them: ``loss_fn(model, *batch)``, shape [B]."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.errors import DpvdError
from dpvd.grads import LossFn, refuse_reduction

__all__ = ["cross_entropy", "from_logits", "token_cross_entropy", "token_mean"]

IGNORED = -100  # the label of what does not count, of torch and Hugging Face


def cross_entropy(model: nn.Module, *batch: Any) -> Tensor:
    """Return the negative log-likelihood of each label: [B].

    Args:
        model: returns logits, [B, classes], or something that has them as ``logits``.
        batch: inputs and labels; or one mapping with its labels under "labels", as collators of
            Hugging Face make, of which the model gets everything else by keyword.
    """
    if len(batch) == 1:
        return _classify(model, batch[0])
    if len(batch) != 2:
        raise DpvdError(
            f"cross_entropy takes batches of inputs and labels, got {len(batch)} entries: write"
            " loss_fn(model, *batch) yourself, and return one value per example"
        )
    x, y = batch
    return _labels_nll(_logits_of(model(x)), y)


def from_logits(
    criterion: Callable[[Tensor, Tensor], Tensor] | None = None,
    *,
    labels: str = "labels",
    with_labels: bool = False,
) -> LossFn:
    """A loss for models that take a dictionary by keyword and return ``logits``.

    The ``loss`` that models of Hugging Face return themselves is a mean over the batch, of which no
    example's share can be told: this makes one value per example of their logits.

    Args:
        criterion: makes [B] values of logits and labels; cross entropy of [B, classes] if not
            given, and `token_cross_entropy` for one label per token. A criterion of torch must have
            reduction="none".
        labels: under which key the labels are.
        with_labels: give the labels to the model, too, which some need to make its inputs.

    Raises:
        DpvdError: if the criterion reduces over the batch.

    >>> loss_fn = from_logits(nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1))
    """
    if criterion is None:
        criterion = _labels_nll
    refuse_reduction(criterion)
    return _FromLogits(criterion, labels, with_labels)


def token_cross_entropy(
    logits: Tensor, labels: Tensor, *, ignore_index: int = IGNORED, shift: bool = False
) -> Tensor:
    """The mean negative log-likelihood of each example's own labels, token by token: [B].

    Args:
        logits: [B, T, classes].
        labels: [B, T]; tokens with ``ignore_index`` do not count.
        ignore_index: the label of padding.
        shift: predict each token from those before it: labels are the inputs.
    """
    if shift:
        logits = logits[:, :-1]
        labels = labels[:, 1:]
    by_class = logits.transpose(1, 2)  # [B, classes, T]
    losses = F.cross_entropy(by_class, labels, ignore_index=ignore_index, reduction="none")
    return token_mean(losses, labels != ignore_index)


def token_mean(losses: Tensor, mask: Tensor) -> Tensor:
    """The mean of each example's own losses where the mask says so: [B].

    Dividing by the tokens of the whole batch would let examples change each other's gradients.

    Edge cases: 0 for an example without any.

    Args:
        losses: [B, T, ...].
        mask: of the same shape; what is zero does not count.

    >>> token_mean(torch.tensor([[2.0, 4.0], [6.0, 0.0]]), torch.tensor([[1, 1], [1, 0]]))
    tensor([3., 6.])
    """
    counts = (mask != 0).to(losses.dtype)
    kept = torch.where(mask != 0, losses, torch.zeros_like(losses))
    return kept.flatten(1).sum(1) / counts.flatten(1).sum(1).clamp_min(1.0)


class _FromLogits:
    def __init__(
        self, criterion: Callable[[Tensor, Tensor], Tensor], labels: str, with_labels: bool
    ) -> None:
        self.criterion = criterion
        self.labels = labels
        self.with_labels = with_labels

    def __call__(self, model: nn.Module, *batch: Any) -> Tensor:
        if len(batch) != 1 or not isinstance(batch[0], Mapping) or self.labels not in batch[0]:
            raise DpvdError(
                "from_logits takes batches that are dictionaries with the labels under"
                f" {self.labels!r}, as collators of Hugging Face make; name another key by"
                " labels=, or write loss_fn(model, *batch) yourself"
            )
        inputs = dict(batch[0])
        targets = inputs[self.labels]
        if not self.with_labels:
            del inputs[self.labels]
        return self.criterion(_logits_of(model(**inputs)), targets)


def _labels_nll(logits: Tensor, labels: Tensor) -> Tensor:
    if logits.dim() > 2:
        raise DpvdError(
            f"logits of shape {list(logits.shape)} are more than one prediction per example: take"
            " dpvd.losses.from_logits(dpvd.losses.token_cross_entropy), or a loss of your own with"
            " one value per example"
        )
    return F.cross_entropy(logits, labels, reduction="none")


_classify = _FromLogits(_labels_nll, "labels", with_labels=False)


def _logits_of(outputs: Any) -> Tensor:
    """The logits of what a model returned."""
    if isinstance(outputs, Tensor):
        return outputs
    found = getattr(outputs, "logits", None)
    if found is None and isinstance(outputs, Mapping):
        found = outputs.get("logits")
    if not isinstance(found, Tensor):
        raise DpvdError(
            f"the model returned {type(outputs).__name__} without logits: write loss_fn(model,"
            " *batch) yourself, and return one value per example"
        )
    return found
