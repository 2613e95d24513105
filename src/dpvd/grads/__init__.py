"""Clipped sums of per-example gradients. Knows nothing of noise."""

from dpvd.grads.accumulate import micro_batches
from dpvd.grads.api import Engine, GradientClipper, Isolation, clipped_grad
from dpvd.grads.batches import Batch, LossFn, as_batch, batch_size
from dpvd.grads.clipped import ClippedGradients, ClippedSum
from dpvd.grads.clipping import Clipping, ClippingMode
from dpvd.grads.compatibility import Problem, check
from dpvd.grads.groups import Grouping
from dpvd.grads.refusals import NotIsolated
from dpvd.grads.repair import Repair, fix
from dpvd.grads.state import digest, modules_of

__all__ = [
    "Batch",
    "ClippedGradients",
    "ClippedSum",
    "Clipping",
    "ClippingMode",
    "Engine",
    "GradientClipper",
    "Grouping",
    "Isolation",
    "LossFn",
    "NotIsolated",
    "Problem",
    "Repair",
    "as_batch",
    "batch_size",
    "check",
    "clipped_grad",
    "digest",
    "fix",
    "micro_batches",
    "modules_of",
]
