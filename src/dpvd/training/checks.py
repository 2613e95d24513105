"""What a private step asks of model, optimizer and batches when it is set up."""

import inspect
from enum import StrEnum

import torch
from torch import nn

from dpvd.errors import DpvdError
from dpvd.nn import AdditiveNoise, tied_layers
from dpvd.plan import PrivacyPlan
from dpvd.privacy import SamplingKind

__all__ = [
    "BatchOrigin",
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
