"""The default rule: batch size, steps, clipping and recipe from public numbers alone.

The rule knows the number of examples, the budget and the shape of the network; it never looks at the data. It is
explained, with the measurements behind its constants, in the documentation ("Default recipe").
"""

import math
from dataclasses import dataclass

from dpvd.errors import DpvdError, positive_int
from dpvd.grads import Clipping, ClippingMode
from dpvd.plan import PrivacyPlan
from dpvd.training.recipe import Recipe
from dpvd.training.schedules import Decay

__all__ = ["INPUT_NORM", "Sizes", "default_sizes", "ordinary_recipe", "private_recipe"]

INPUT_NORM = 4.0
"""The L2 norm that every example's features are scaled to."""

MOMENTUM = 0.9
AVERAGE = 0.3
LARGEST_BATCH = 4096
PRIVATE_STEPS = 120
LOGIT_NOISE = 6.0
ORDINARY_BATCH, ORDINARY_EPOCHS = 100, 40


@dataclass(frozen=True)
class Sizes:
    """How many examples a step sees, how many steps there are, and how gradients are bounded."""

    batch_size: int
    examples: int
    steps: int | None
    epochs: float | None
    clipping: Clipping

    def steps_at(self, batch_size: int) -> int:
        """The number of steps with this batch size."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, math.ceil(self.epochs * self.examples / batch_size))


def default_sizes(examples: int, *, private: bool) -> Sizes:
    """Private training takes few steps on batches as large as they can be; ordinary training many on small ones."""
    positive_int(examples=examples)
    clipping = Clipping(ClippingMode.AUTOMATIC, clip_norm=1.0)
    if private:
        return Sizes(min(examples, LARGEST_BATCH), examples, PRIVATE_STEPS, None, clipping)
    return Sizes(min(examples, ORDINARY_BATCH), examples, None, ORDINARY_EPOCHS, clipping)


def private_recipe(plan: PrivacyPlan, *, features: int, hidden: int) -> Recipe:
    """The recipe for a calibrated plan and a network with one hidden layer.

    The learning rate is set so that the privacy noise that all steps together leave in an output of the network has
    the same size whatever the budget, the batch size, the number of steps and the width.
    """
    if not plan.noise_multiplier:
        raise DpvdError("a private recipe needs a plan with noise: calibrate it first")
    gain = math.sqrt(INPUT_NORM**2 * hidden / (2 * features) + 1)
    accumulated = plan.clipping.clip_norm * plan.noise_multiplier * math.sqrt(plan.steps) / plan.batch_size
    return Recipe(
        learning_rate=(1 - MOMENTUM) * LOGIT_NOISE / (gain * accumulated),
        momentum=MOMENTUM,
        decay=Decay.LINEAR,
        average=AVERAGE,
    )


def ordinary_recipe() -> Recipe:
    """The recipe without privacy."""
    return Recipe(learning_rate=0.05, momentum=MOMENTUM, decay=Decay.LINEAR)
