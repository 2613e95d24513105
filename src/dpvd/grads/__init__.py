"""Clipped sums of per-example gradients. Knows nothing of noise."""

from dpvd.grads.api import Engine, clipped_grad
from dpvd.grads.batches import Batch, LossFn
from dpvd.grads.clipped import ClippedSum
from dpvd.grads.clipping import Clipping, ClippingMode
from dpvd.grads.groups import sensitivity

__all__ = [
    "Batch",
    "ClippedSum",
    "Clipping",
    "ClippingMode",
    "Engine",
    "LossFn",
    "clipped_grad",
    "sensitivity",
]
