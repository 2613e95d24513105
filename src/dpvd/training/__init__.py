"""Training: one auditable step, and the loop around it."""

from dpvd.training.account import charge_release, remember
from dpvd.training.averaging import IterateAverage
from dpvd.training.checkpoint import Checkpoint
from dpvd.training.checks import BatchOrigin
from dpvd.training.defaults import (
    INPUT_NORM,
    PRE_ACTIVATION,
    NetworkRule,
    convolutional_rule,
    default_batch_size,
    default_clipping,
    default_steps,
    dense_rule,
    ordinary_recipe,
    private_recipe,
)
from dpvd.training.fit import FitResult, Progress, fit
from dpvd.training.losses import cross_entropy
from dpvd.training.recipe import OptimizerKind, Recipe
from dpvd.training.schedules import Decay, Schedule
from dpvd.training.step import Earlier, PrivateStep

__all__ = [
    "INPUT_NORM",
    "PRE_ACTIVATION",
    "BatchOrigin",
    "Checkpoint",
    "Decay",
    "Earlier",
    "FitResult",
    "IterateAverage",
    "NetworkRule",
    "OptimizerKind",
    "PrivateStep",
    "Progress",
    "Recipe",
    "Schedule",
    "charge_release",
    "convolutional_rule",
    "cross_entropy",
    "default_batch_size",
    "default_clipping",
    "default_steps",
    "dense_rule",
    "fit",
    "ordinary_recipe",
    "private_recipe",
    "remember",
]
