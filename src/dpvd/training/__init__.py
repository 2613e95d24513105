"""Training: one auditable step, and the loop around it."""

from dpvd.losses import cross_entropy
from dpvd.training.account import Account, charge_release, remember
from dpvd.training.account_store import entries_of
from dpvd.training.accumulated import accumulated_noise
from dpvd.training.adam_bc import AdamBC, NoiseAware
from dpvd.training.averaging import IterateAverage
from dpvd.training.checkpoint import Checkpoint
from dpvd.training.checks import BatchOrigin
from dpvd.training.fit import CHECKPOINT, LEDGER, FitResult, Progress, fit, has_begun
from dpvd.training.group import share_weights
from dpvd.training.private import check_sampler, make_private, planned_like
from dpvd.training.recipe import OptimizerKind, Posterior, Recipe
from dpvd.training.schedules import Decay, Schedule
from dpvd.training.statement import Taken, joint_statement
from dpvd.training.step import Earlier, PrivateStep

__all__ = [
    "CHECKPOINT",
    "LEDGER",
    "Account",
    "AdamBC",
    "BatchOrigin",
    "Checkpoint",
    "Decay",
    "Earlier",
    "FitResult",
    "IterateAverage",
    "NoiseAware",
    "OptimizerKind",
    "Posterior",
    "PrivateStep",
    "Progress",
    "Recipe",
    "Schedule",
    "Taken",
    "accumulated_noise",
    "charge_release",
    "check_sampler",
    "cross_entropy",
    "entries_of",
    "fit",
    "has_begun",
    "joint_statement",
    "make_private",
    "planned_like",
    "remember",
    "share_weights",
]
