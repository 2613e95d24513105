"""Clipped sums of per-example gradients. Knows nothing of noise."""

from dpvd.grads.api import ClippedSum, clipped_grad
from dpvd.grads.batch import Batch, LossFn, as_batch, batch_size, losses_of, micro_batches, rows
from dpvd.grads.checkup import Checkup, ModuleReport, check
from dpvd.grads.clipper import GradientClipper, Isolation
from dpvd.grads.clipping import Clipping, ClippingMode, Grouping, Jacobian
from dpvd.grads.criterion import refuse_reduction
from dpvd.grads.engines import Engine
from dpvd.grads.isolation import NotIsolated, digest, modules_of, streams_restored
from dpvd.grads.padding import Padding
from dpvd.grads.per_example import ClippedGradients
from dpvd.grads.validate import Problem, Repair, fix

__all__ = [
    "Batch",
    "Checkup",
    "ClippedGradients",
    "ClippedSum",
    "Clipping",
    "ClippingMode",
    "Engine",
    "GradientClipper",
    "Grouping",
    "Isolation",
    "Jacobian",
    "LossFn",
    "ModuleReport",
    "NotIsolated",
    "Padding",
    "Problem",
    "Repair",
    "as_batch",
    "batch_size",
    "check",
    "clipped_grad",
    "digest",
    "fix",
    "losses_of",
    "micro_batches",
    "modules_of",
    "refuse_reduction",
    "rows",
    "streams_restored",
]
