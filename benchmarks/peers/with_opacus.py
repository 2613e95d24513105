"""Opacus: per-example gradients from hooks, and its ghost clipping. Runs in Opacus' own
environment.

Its noise comes from torch's generator, which is not cryptographic: the library for Opacus'
``secure_mode``, torchcsprng, does not install beside present versions of torch.
"""

from collections.abc import Callable

import torch
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from opacus.validators import ModuleValidator
from torch import nn
from torch.nn import functional as F

from benchmarks.plain import LEARNING_RATE, plain
from benchmarks.workloads import Step, Workload

__all__ = ["SYSTEMS"]

CLIP_NORM = NOISE_MULTIPLIER = 1.0


def hooks(work: Workload) -> Step:
    model = GradSampleModule(_accepted(work))
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=work.batch,
    )
    x, y = work.data()

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def ghost(work: Workload) -> Step:
    model = GradSampleModuleFastGradientClipping(
        _accepted(work), max_grad_norm=CLIP_NORM, use_ghost_clipping=True, loss_reduction="mean"
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=work.batch,
    )
    criterion = DPLossFastGradientClipping(
        model, optimizer, nn.CrossEntropyLoss(), loss_reduction="mean"
    )
    x, y = work.data()

    def step() -> None:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()

    return step


SYSTEMS: dict[str, Callable[[Workload], Step]] = {
    "plain": plain,
    "opacus-hooks": hooks,
    "opacus-ghost": ghost,
}


def _accepted(work: Workload) -> nn.Module:
    """The network with Opacus' own layers where it does not take torch's (LSTM)."""
    model = work.network()
    return ModuleValidator.fix(model)
