"""What must hold before a private step may be taken. What raises here has cost nothing."""

import inspect
from enum import StrEnum
from typing import Any

import torch
from torch import nn

from dpvd.errors import DpvdError
from dpvd.mechanisms import Draw, draw_of, is_as_drawn
from dpvd.nn import AdditiveNoise, tied_layers
from dpvd.plan import PrivacyPlan
from dpvd.privacy import SamplingKind

__all__ = [
    "BatchOrigin",
    "check_declared",
    "check_draw",
    "check_parameters",
    "check_steps_on_gradients",
    "check_tied",
    "refuse_process_group",
]


class BatchOrigin(StrEnum):
    """Where the batches of a step come from."""

    PLANNED = "planned"
    """From ``plan.batches``: others are refused."""
    DECLARED = "declared"
    """From the caller, who declares that they are drawn as the plan says; the statement says that
    it was not seen.
    """


def check_draw(batch: Any, count: int, plan: PrivacyPlan, position: int) -> Draw:
    """The draw that a batch is, which must be the plan's next one.

    Args:
        batch: what was given to a step.
        count: how many examples it has.
        plan: the plan of the step.
        position: how many of the plan's steps are gone.
    """
    draw = draw_of(batch)
    if draw is None or draw.size != count:
        raise DpvdError(
            "this batch was not drawn by plan.batches, so that nothing can be said of its sampling:"
            " take batches from plan.batches(data), and batch.carry(...) what you make of them; or,"
            " if they are drawn as the plan says elsewhere, PrivateStep(..., batches='declared')"
        )
    if not is_as_drawn(batch):
        raise DpvdError(
            "this batch was written to in place after it was drawn, which may have mixed its "
            "examples: make new tensors, each row from its own example alone, and "
            "step(batch.carry(x, y))"
        )
    if draw.plan != plan.fingerprint:
        raise DpvdError(
            "this batch was drawn for another plan: take batches from the plan of this step"
        )
    if draw.used:
        raise DpvdError("this batch was used before: the account covers one step for each draw")
    if draw.step != position:
        raise DpvdError(
            f"this batch was drawn for step {draw.step}, but {position} steps are gone: take every "
            "batch, in order and also if it is small or empty, and after an interruption "
            "plan.batches(data, start=step.position)"
        )
    return draw


def check_declared(count: int, plan: PrivacyPlan) -> None:
    """Raise if a batch of so many examples cannot be one that the plan's sampler draws."""
    is_fixed = plan.sampling is SamplingKind.FIXED_SIZE
    if count > plan.examples or (is_fixed and count != plan.batch_size):
        raise DpvdError(
            f"a batch of {count} examples cannot be drawn by: {plan.sampler.describe()}"
        )


def check_parameters(optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter]) -> None:
    """Raise unless the optimizer moves exactly the parameters that the model trains.

    Args:
        optimizer: any.
        parameters: the trainable parameters of the model by name.
    """
    groups = optimizer.param_groups
    held = {id(p) for group in groups for p in group["params"] if p.requires_grad}
    trained = {id(p): name for name, p in parameters.items()}
    if held == trained.keys():
        return
    missing = [name for key, name in trained.items() if key not in held]
    if missing:
        raise DpvdError(
            f"the optimizer does not hold {missing[0]!r} ({len(missing)} of {len(trained)} "
            "trainable parameters are missing): make it after the model's last change (fix and "
            "variational return a copy), from model.parameters(), and switch requires_grad off for "
            "what should stay as it is"
        )
    raise DpvdError(
        f"the optimizer holds {len(held - trained.keys())} parameters that are not the model's: "
        "they would move without an account. Make it from model.parameters()"
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
    """The layers whose scale follows the privacy noise; the optimizer must then pass it on as it
    is.
    """
    tied = tied_layers(model)
    groups = len(optimizer.param_groups)
    if tied and (not isinstance(optimizer, torch.optim.SGD) or groups != 1):
        raise DpvdError(
            "the model ties its dropout noise to the privacy noise, which is known only for "
            "torch.optim.SGD with one parameter group (momentum is fine), not for "
            f"{type(optimizer).__name__} with {groups}. Use that, or learned scales"
        )
    return tied


def refuse_process_group() -> None:
    """Raise among several ranks: each would train a model of its own, and claim the whole
    budget.
    """
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return
    ranks = distributed.get_world_size()
    if ranks > 1:
        raise DpvdError(
            f"a process group of {ranks} ranks is not supported: each rank would train a model of "
            "its own under the whole budget. Train in one process"
        )
