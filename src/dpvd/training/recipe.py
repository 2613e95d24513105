"""How a model is optimised: everything that costs no privacy, in one serialisable object."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import nn

from dpvd.errors import Choice, DpvdError, exact_fields, non_negative, positive
from dpvd.plan import PrivacyPlan
from dpvd.training.accumulated import accumulated_noise
from dpvd.training.adam_bc import AdamBC
from dpvd.training.schedules import Decay, Schedule, warm_up

__all__ = ["OptimizerKind", "Posterior", "Recipe"]


class Posterior(StrEnum):
    """Which standard deviation the weights have after training; all cost no privacy."""

    LAST_STEP = "last-step"
    """Tied scales keep the noise of a step, the mean over those averaged: Algorithm 1."""
    ACCUMULATED = "accumulated"
    """Tied scales become the noise that all steps together left (`accumulated_noise`)."""
    LEARNED = "learned"
    """Scales stay as they were trained: for layers with learned ones."""


class OptimizerKind(StrEnum):
    """The optimizers a recipe can name; `fit` and a training loop of your own take any."""

    SGD = "sgd"
    """Plain, or with momentum: the only one that can pass the privacy noise on (tied scales)."""
    ADAM = "adam"
    ADAMW = "adamw"
    """Adam with decoupled weight decay."""
    ADAM_BC = "adam-bc"
    """Adam whose second moment is corrected for the privacy noise (`AdamBC`)."""
    RMSPROP = "rmsprop"


@dataclass(frozen=True)
class Recipe:
    """Optimizer, learning rate, weight of the KL term and averaging of iterates.

    Args:
        learning_rate: η₀, on the mean gradient.
        optimizer: the kind of optimizer.
        momentum: of SGD and RMSprop; β₁ of the kinds of Adam.
        decay: how the learning rate changes over the run.
        gamma: exponent of the power decay η₀/t^γ.
        kl_weight: factor of the KL term after warm-up; 1 is the evidence lower bound, 0 leaves the
            term out.
        kl_warmup: fraction of the steps over which that factor grows linearly from 0.
        weight_decay: precision of a Gaussian prior on all parameters, divided by the number of
            examples; for networks whose weights are points. AdamW and AdamBC take it decoupled,
            as a part of the weights, times the learning rate, by which they shrink in each step.
        average: fraction of the last steps whose iterates are averaged into the result; 0 returns
            the last one.
            Averaging is post-processing: it costs no privacy.
        posterior: the scale of the weights after training.
        posterior_factor: part of the accumulated noise that is taken for it.
    """

    learning_rate: float
    optimizer: Choice[OptimizerKind] = Choice(OptimizerKind.SGD)
    momentum: float = 0.0
    decay: Choice[Decay] = Choice(Decay.CONSTANT)
    gamma: float = 1.0
    kl_weight: float = 0.0
    kl_warmup: float = 0.0
    weight_decay: float = 0.0
    average: float = 0.0
    posterior: Choice[Posterior] = Choice(Posterior.LAST_STEP)
    posterior_factor: float = 1.0

    def __post_init__(self) -> None:
        positive(learning_rate=self.learning_rate, posterior_factor=self.posterior_factor)
        non_negative(gamma=self.gamma, kl_weight=self.kl_weight, weight_decay=self.weight_decay)
        for name in ("momentum", "kl_warmup", "average"):
            value = getattr(self, name)
            non_negative(**{name: value})
            is_too_large = value >= 1 if name == "momentum" else value > 1
            if is_too_large:
                raise DpvdError(
                    f"{name} is a fraction: at least 0 and at most 1 (momentum: below 1), got"
                    f" {value!r}"
                )
        if self.posterior is Posterior.ACCUMULATED and self.optimizer is not OptimizerKind.SGD:
            raise DpvdError(
                f"the noise that all steps of {self.optimizer} leave in a weight depends on its"
                " gradients: an accumulated posterior needs sgd"
            )

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        trainable = [p for p in parameters if p.requires_grad]
        common: dict[str, Any] = {"lr": self.learning_rate, "weight_decay": self.weight_decay}
        betas = (self.momentum, 0.999)
        match self.optimizer:
            case OptimizerKind.SGD:
                return torch.optim.SGD(trainable, momentum=self.momentum, **common)
            case OptimizerKind.RMSPROP:
                return torch.optim.RMSprop(trainable, momentum=self.momentum, **common)
            case OptimizerKind.ADAM:
                return torch.optim.Adam(trainable, betas=betas, **common)
            case OptimizerKind.ADAMW:
                return torch.optim.AdamW(trainable, betas=betas, **common)
            case OptimizerKind.ADAM_BC:
                return AdamBC(trainable, betas=betas, **common)

    def schedule(self, plan: PrivacyPlan) -> Schedule:
        steps_per_epoch = math.ceil(plan.examples / plan.batch_size)
        return Schedule(
            self.learning_rate,
            self.decay,
            self.gamma,
            max(1, steps_per_epoch),
            plan.steps,
        )

    def kl_schedule(self, plan: PrivacyPlan) -> Callable[[int], float]:
        """The factor of the KL term by step."""
        warm_steps = self.kl_warmup * plan.steps

        def factor(step: int) -> float:
            return self.kl_weight * warm_up(step, 0, warm_steps)

        return factor

    def average_from(self, plan: PrivacyPlan) -> int:
        """The number of steps after which iterates enter the average."""
        averaged = math.ceil(self.average * plan.steps)
        return plan.steps - averaged

    def noise_left(self, plan: PrivacyPlan) -> float:
        """What noise of standard deviation 1 in every mean gradient leaves in a weight.

        Where the loss bends, training forgets some of it, which is not taken off here.

        Raises:
            DpvdError: if the optimizer is not SGD.
        """
        if self.optimizer is not OptimizerKind.SGD:
            raise DpvdError(f"what is left of the noise is known for sgd, not {self.optimizer}")
        schedule = self.schedule(plan)
        return accumulated_noise(
            [schedule(step) for step in range(plan.steps)],
            momentum=self.momentum,
            averaged=max(1, plan.steps - self.average_from(plan)),
            curvature=self.weight_decay,
        )

    def to_dict(self) -> dict[str, Any]:
        plain = asdict(self)
        plain["optimizer"] = str(self.optimizer)
        plain["decay"] = str(self.decay)
        del plain["posterior"], plain["posterior_factor"]
        if self.posterior is not Posterior.LAST_STEP:  # older recipes know of no other
            plain["posterior"] = str(self.posterior)
            plain["posterior_factor"] = self.posterior_factor
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Recipe":
        """Read what ``to_dict`` wrote; older recipes name no posterior."""
        optional = ("posterior", "posterior_factor")
        return cls(**exact_fields(values, cls, "a recipe", optional=optional))
