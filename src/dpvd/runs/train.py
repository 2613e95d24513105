"""A run from options to a folder: plan, train, measure, record."""

import math
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from dpvd import __version__
from dpvd.data import Dataset, features
from dpvd.errors import DpvdError, in_unit_interval, positive
from dpvd.plan import NoiseKind, PrivacyPlan, SamplingKind
from dpvd.privacy import AccountantName, Relation
from dpvd.runs.measure import alpha_histograms, predict_dist, quick_look, sparsity_counts, test_measures
from dpvd.runs.network import Method, NetworkSpec, Scale
from dpvd.runs.record import RunRecord
from dpvd.training import Progress, Recipe, fit, recommend

__all__ = ["PreparedRun", "RunOptions", "execute", "prepare_run"]

MODEL = "model.safetensors"
SAMPLES = 32


@dataclass(frozen=True)
class RunOptions:
    """What a user may choose; None leaves the choice to the default rule."""

    delta: float
    epsilon: float | None = None
    method: Method = Method.DPVD
    seed: int = 0
    hidden: int = 1000
    batch_size: int | None = None
    epochs: float | None = None
    accountant: AccountantName = AccountantName.PLD
    relation: Relation = Relation.ADD_OR_REMOVE
    sampling: SamplingKind = SamplingKind.POISSON
    scale: Scale | None = None
    learning_rate: float | None = None
    clipping: str | None = None
    clip_norm: float | None = None
    kl_weight: float | None = None
    seeded_noise: bool = False


@dataclass(frozen=True)
class PreparedRun:
    """All that a run will do, decided before anything is written or trained."""

    options: RunOptions
    dataset: Dataset
    network: NetworkSpec
    plan: PrivacyPlan
    recipe: Recipe
    input_scale: float
