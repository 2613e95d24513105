"""Per-example losses in the form that private training takes: ``loss_fn(model, *batch)``, one value
per example.
"""

from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["cross_entropy"]


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Negative log-likelihood of the labels: [B]."""
    return F.cross_entropy(model(x), y, reduction="none")
