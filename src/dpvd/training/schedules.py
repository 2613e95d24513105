"""How a quantity changes over a run: learning rates, the weight of the KL term."""

import math
from dataclasses import dataclass
from enum import StrEnum

from dpvd.errors import choice, non_negative, positive_int

__all__ = ["Decay", "Schedule", "warm_up"]


class Decay(StrEnum):
    """The shape of a learning-rate schedule."""

    CONSTANT = "constant"
    POWER = "power"
    """η₀ / t^γ with t the number of the epoch, from 1 (the paper)."""
    LINEAR = "linear"
    """From η₀ straight down to zero after the last step."""
    COSINE = "cosine"
    """From η₀ to zero along half a cosine."""


@dataclass(frozen=True)
class Schedule:
    """Learning rate by step.

    >>> paper = Schedule(0.1, Decay.POWER, gamma=1.0, steps_per_epoch=2, steps=6)
    >>> [round(paper(step), 4) for step in range(6)]
    [0.1, 0.1, 0.05, 0.05, 0.0333, 0.0333]
    """

    initial: float
    decay: Decay = Decay.CONSTANT
    gamma: float = 1.0
    steps_per_epoch: int = 1
    steps: int = 1

    def __post_init__(self) -> None:
        non_negative(learning_rate=self.initial, gamma=self.gamma)
        positive_int(steps_per_epoch=self.steps_per_epoch, steps=self.steps)
        decay = choice(self.decay, Decay, "decay")
        object.__setattr__(self, "decay", decay)

    def __call__(self, step: int) -> float:
        """The learning rate of this step, counted from 0."""
        done = step / self.steps
        match self.decay:
            case Decay.CONSTANT:
                return self.initial
            case Decay.POWER:
                epoch = 1 + step // self.steps_per_epoch
                return float(self.initial / epoch**self.gamma)
            case Decay.LINEAR:
                return self.initial * max(0.0, 1 - done)
            case Decay.COSINE:
                angle = math.pi * min(1.0, done)
                return self.initial * 0.5 * (1 + math.cos(angle))


def warm_up(step: int, first: float, last: float) -> float:
    """0 until step ``first``, 1 from step ``last`` on, linear between.

    >>> [warm_up(step, 2, 4) for step in range(6)]
    [0.0, 0.0, 0.0, 0.5, 1.0, 1.0]
    """
    if step >= last:
        return 1.0
    return max(0.0, (step - first) / (last - first))
