"""Per-example losses as private training takes them: ``loss_fn(model, *batch)``."""

from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["cross_entropy"]


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the negative log-likelihood of each label: [B]."""
    logits = model(x)  # [B, classes]
    return F.cross_entropy(logits, y, reduction="none")
