"""Clipped sums of per-example gradients. Knows nothing of noise."""

from dpvd.grads.accumulate import micro_batches
from dpvd.grads.api import Engine, clipped_grad
from dpvd.grads.batches import Batch, LossFn
from dpvd.grads.clipped import ClippedSum
from dpvd.grads.clipping import Clipping, ClippingMode
from dpvd.grads.compatibility import Problem, check
from dpvd.grads.groups import sensitivity
from dpvd.grads.repair import Repair, fix

__all__ = [
    "Batch",
    "ClippedSum",
    "Clipping",
    "ClippingMode",
    "Engine",
    "LossFn",
    "Problem",
    "Repair",
    "check",
    "clipped_grad",
    "fix",
    "micro_batches",
    "sensitivity",
]
