"""The default rule: batch size, steps, clipping and recipe from public numbers alone.

The rule knows the number of examples, the budget (through the calibrated noise) and the shape of the network; it
never looks at the data. The documentation ("Default recipe") has the measurements behind its constants.
"""

import math

from dpvd.errors import DpvdError, positive_int
from dpvd.grads import Clipping, ClippingMode
from dpvd.plan import PrivacyPlan
from dpvd.training.recipe import Recipe
from dpvd.training.schedules import Decay

__all__ = [
    "INPUT_NORM",
    "PRE_ACTIVATION",
    "default_batch_size",
    "default_clipping",
    "default_steps",
    "ordinary_recipe",
    "private_recipe",
]

INPUT_NORM = 4.0
"""The L2 norm that every example's features are scaled to."""

PRE_ACTIVATION = 0.5
"""Standard deviation of a hidden unit's input at the start, whatever the number of features: the first layer's weights
begin with standard deviation ``PRE_ACTIVATION / INPUT_NORM``, the last layer's at zero."""

MOMENTUM = 0.9
AVERAGE = 0.1

# Private training: large batches, few steps, and a learning rate that follows from the noise.
PRIVATE_BATCH = 2048
FULL_BATCH_STEPS = 100
LOGIT_NOISE = 4.5  # what all steps together may leave in an output of the network
ENOUGH_SIGNAL = 400.0  # below this signal-to-noise ratio of the whole run less noise is better than faster learning
LARGEST_MOVE = 150.0  # bound on what momentum can add up to: beyond it narrow networks do not learn
KL_WEIGHT, KL_WARMUP = 0.01, 0.5

# Ordinary training.
ORDINARY_BATCH, ORDINARY_STEPS, ORDINARY_EPOCHS = 128, 1000, 10
ORDINARY_PACE = 150.0


def default_batch_size(examples: int, *, private: bool) -> int:
    """All the data, up to the size where larger batches gain little."""
    positive_int(examples=examples)
    return min(examples, PRIVATE_BATCH if private else ORDINARY_BATCH)


def default_steps(examples: int, batch_size: int, *, private: bool) -> int:
    """100 (N/S)^(1/3) private steps: each costs privacy. Ordinary ones are free: 10 epochs, at least 1000 steps."""
    positive_int(examples=examples, batch_size=batch_size)
    ratio = examples / batch_size
    if private:
        return math.ceil(FULL_BATCH_STEPS * math.cbrt(ratio))
    return math.ceil(max(ORDINARY_STEPS, ORDINARY_EPOCHS * ratio))


def default_clipping() -> Clipping:
    """Automatic clipping: no threshold that would have to be tuned on the data."""
    return Clipping(ClippingMode.AUTOMATIC, clip_norm=1.0)


def private_recipe(plan: PrivacyPlan, *, hidden: int) -> Recipe:
    """The recipe for a calibrated plan and a network with one hidden layer that starts as described above.

    The learning rate makes the privacy noise that all steps together leave in an output of the network the same,
    whatever the budget, the batch size, the number of steps and the width:

        r   = S √T / (zΔ)                          signal to noise of the whole run
        κ   = 4.5 min(1, √(r / 400))               the noise to be left in an output
        g   = √(p² H / 2 + 1)                      norm of an output's gradient at the start, p the pre-activation
        η₀  = (1 - m) min(150, κ S / (g zΔ √T))
    """
    if not plan.noise_multiplier:
        raise DpvdError("a private recipe needs a plan with noise: calibrate it first")
    noise = plan.noise_std(plan.clipping.sensitivity(plan.relation, groups=2))
    signal = plan.batch_size * math.sqrt(plan.steps) / noise
    kappa = LOGIT_NOISE * min(1.0, math.sqrt(signal / ENOUGH_SIGNAL))
    move = kappa * plan.batch_size / (_gain(hidden) * noise * math.sqrt(plan.steps))
    return Recipe(
        learning_rate=(1 - MOMENTUM) * min(move, LARGEST_MOVE),
        momentum=MOMENTUM,
        decay=Decay.LINEAR,
        kl_weight=KL_WEIGHT,
        kl_warmup=KL_WARMUP,
        average=AVERAGE,
    )


def ordinary_recipe(*, hidden: int) -> Recipe:
    """The recipe without privacy, for the same network."""
    rate = (1 - MOMENTUM) * ORDINARY_PACE / _gain(hidden) ** 2
    return Recipe(learning_rate=rate, momentum=MOMENTUM, decay=Decay.LINEAR, average=AVERAGE)


def _gain(hidden: int) -> float:
    """Norm of the gradient of one output of the network at its start."""
    return math.sqrt(PRE_ACTIVATION**2 * hidden / 2 + 1)
