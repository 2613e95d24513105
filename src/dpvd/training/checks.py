"""What a private step asks of model, optimizer and batches when it is set up."""

import inspect
from enum import StrEnum

import torch
from torch import nn

from dpvd.errors import DpvdError
from dpvd.nn import AdditiveNoise, tied_layers
from dpvd.plan import PrivacyPlan
from dpvd.privacy import SamplingKind
from dpvd.training.adam_bc import NoiseAware

__all__ = [
    "BatchOrigin",
    "check_correlated",
    "check_declared",
    "check_steps_on_gradients",
    "check_tied",
]


class BatchOrigin(StrEnum):
    """Where the batches of a step come from."""

    PLANNED = "planned"
    """From ``plan.batches``: others are refused."""
    DECLARED = "declared"
    """From the caller, who declares that they are drawn as the plan says; so the statement says."""


def check_correlated(is_tied: bool, optimizer: torch.optim.Optimizer, batches: BatchOrigin) -> None:
    """Raise where noise that is correlated over steps has no theorem, or nobody knows its part.

    Args:
        is_tied: whether layers take their scale from the privacy noise.
        optimizer: any.
        batches: where batches come from.
    """
    if batches is BatchOrigin.DECLARED:
        raise DpvdError(
            "correlated noise needs batches from plan.batches or plan.loader: of declared ones"
            " nobody knows how the data were divided into parts. Use those, or bands=1"
        )
    if is_tied:
        raise DpvdError(
            "the model ties its dropout noise to the privacy noise of a step, which must be"
            " independent of the steps before: use learned scales, or bands=1"
        )
    if isinstance(optimizer, NoiseAware):
        raise DpvdError(
            f"{type(optimizer).__name__} corrects for noise that is independent in each step: take"
            " another optimizer, such as torch.optim.SGD with momentum, or bands=1"
        )


def check_declared(count: int, plan: PrivacyPlan) -> None:
    """Raise if a batch of so many examples cannot be one that the plan's sampler draws."""
    is_fixed = plan.sampling is SamplingKind.FIXED_SIZE
    if count > plan.examples or (is_fixed and count != plan.batch_size):
        raise DpvdError(
            f"a batch of {count} examples cannot be drawn by: {plan.sampler.describe()}"
        )


def check_steps_on_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Raise if it wants more, or something else, than one noisy gradient for each parameter."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise DpvdError(
            f"{type(optimizer).__name__} evaluates the loss itself, as often as it likes, which no "
            "account covers: take an optimizer that steps on one gradient, such as torch.optim.SGD "
            "or Adam"
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise DpvdError(
            "SparseAdam takes sparse gradients only, and noise is not sparse: take torch.optim.Adam"
        )


def check_tied(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[AdditiveNoise]:
    """The layers whose scale follows the privacy noise, which the optimizer must then pass on."""
    tied = tied_layers(model)
    groups = len(optimizer.param_groups)
    if tied and (not isinstance(optimizer, torch.optim.SGD) or groups != 1):
        raise DpvdError(
            "the model ties its dropout noise to the privacy noise, which is known only for "
            "torch.optim.SGD with one parameter group (momentum is fine), not for "
            f"{type(optimizer).__name__} with {groups}. Use that, or learned scales"
        )
    return tied
