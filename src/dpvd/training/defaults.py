"""The default rule: batch size, steps, clipping and recipe from public numbers alone.

The rule knows the number of examples, the budget (through the calibrated noise) and the kind and
width of the network; it never looks at the data. The documentation ("Default recipe") has the
measurements behind its constants.
"""

import math
from dataclasses import dataclass

from dpvd.errors import DpvdError, positive_int
from dpvd.grads import Clipping, ClippingMode
from dpvd.plan import PrivacyPlan
from dpvd.training.recipe import Recipe
from dpvd.training.schedules import Decay

__all__ = [
    "INPUT_NORM",
    "PRE_ACTIVATION",
    "NetworkRule",
    "convolutional_rule",
    "default_batch_size",
    "default_clipping",
    "default_steps",
    "dense_rule",
    "ordinary_recipe",
    "private_recipe",
]

INPUT_NORM = 4.0
"""The L2 norm that every example's features are scaled to for a network with one hidden layer."""

PRE_ACTIVATION = 0.5
"""Standard deviation of a hidden unit's input at the start, whatever the number of features: the
first layer's weights begin with standard deviation ``PRE_ACTIVATION / INPUT_NORM``, the last
layer's at zero."""

MOMENTUM = 0.9
AVERAGE = 0.1

# Private training: large batches, few steps, and a learning rate that follows from the noise.
PRIVATE_BATCH = 2048
# below this signal-to-noise ratio of the whole run less noise is better than faster learning
ENOUGH_SIGNAL = 400.0
KL_WEIGHT, KL_WARMUP = 0.01, 0.5

# Ordinary training.
ORDINARY_BATCH, ORDINARY_STEPS, ORDINARY_EPOCHS = 128, 1000, 10


@dataclass(frozen=True)
class NetworkRule:
    """What the rule has to know of a network.

    Args:
        layers: how many layers per-layer clipping would clip.
        full_batch_steps: private steps when every step sees all examples.
        weight_noise: standard deviation of the noise that all steps together may leave in a weight,
            were the learning rate constant.
        largest_move: bound on η₀/(1 - momentum) under privacy, for runs with hardly any noise to
            limit the pace.
        ordinary_move: η₀/(1 - momentum) without privacy.
    """

    layers: int
    full_batch_steps: int
    weight_noise: float
    largest_move: float
    ordinary_move: float


def dense_rule(hidden: int) -> NetworkRule:
    """For one hidden layer of ReLU units that starts as described above.

    With g = √(p² H / 2 + 1), the norm of an output's gradient at the start (p the pre-activation),
    noise of 4.5/g in every weight is noise of 4.5 in an output, whatever the width H.
    """
    positive_int(hidden=hidden)
    gain = math.sqrt(PRE_ACTIVATION**2 * hidden / 2 + 1)
    return NetworkRule(
        layers=2,
        full_batch_steps=100,
        weight_noise=4.5 / gain,
        largest_move=150.0,
        ordinary_move=150.0 / gain**2,
    )


def convolutional_rule() -> NetworkRule:
    """For two convolutions and a hidden layer of tanh units, on images with pixels of mean square
    1.

    It takes many small steps: the noise that all of them leave is the same, and fewer large ones
    learn less.
    """
    return NetworkRule(
        layers=4, full_batch_steps=780, weight_noise=0.155, largest_move=20.0, ordinary_move=0.5
    )


def default_batch_size(examples: int, *, private: bool) -> int:
    """All the data, up to the size where larger batches gain little."""
    positive_int(examples=examples)
    return min(examples, PRIVATE_BATCH if private else ORDINARY_BATCH)


def default_steps(examples: int, batch_size: int, rule: NetworkRule, *, private: bool) -> int:
    """F (N/S)^(1/3) private steps, F those of full batches: each costs privacy. Ordinary ones are
    free: 10 epochs, at least 1000 steps.
    """
    positive_int(examples=examples, batch_size=batch_size)
    ratio = examples / batch_size
    if private:
        return math.ceil(rule.full_batch_steps * math.cbrt(ratio))
    return math.ceil(max(ORDINARY_STEPS, ORDINARY_EPOCHS * ratio))


def default_clipping() -> Clipping:
    """Automatic clipping: no threshold that would have to be tuned on the data."""
    return Clipping(ClippingMode.AUTOMATIC, clip_norm=1.0)


def private_recipe(plan: PrivacyPlan, rule: NetworkRule) -> Recipe:
    """The recipe for a calibrated plan and a kind of network.

    The learning rate makes the privacy noise that all steps together leave in the network the same,
    whatever the budget, the batch size and the number of steps:

        r   = S √T / (zΔ)                          signal to noise of the whole run
        ω   = ω₀ min(1, √(r / 400))                noise left in a weight; ω₀, M: the network's rule
        η₀  = (1 - m) min(M, ω S / (zΔ √T))

    Raises:
        DpvdError: if the plan has no noise.
    """
    if not plan.noise_multiplier:
        raise DpvdError("a private recipe needs a plan with noise: calibrate it first")
    noise = plan.noise_std(plan.clipping.sensitivity(plan.relation, groups=rule.layers))
    signal = plan.batch_size * math.sqrt(plan.steps) / noise
    left = rule.weight_noise * min(1.0, math.sqrt(signal / ENOUGH_SIGNAL))
    move = left * plan.batch_size / (noise * math.sqrt(plan.steps))
    return Recipe(
        learning_rate=(1 - MOMENTUM) * min(move, rule.largest_move),
        momentum=MOMENTUM,
        decay=Decay.LINEAR,
        kl_weight=KL_WEIGHT,
        kl_warmup=KL_WARMUP,
        average=AVERAGE,
    )


def ordinary_recipe(rule: NetworkRule) -> Recipe:
    """The recipe without privacy, for the same kind of network."""
    rate = (1 - MOMENTUM) * rule.ordinary_move
    return Recipe(learning_rate=rate, momentum=MOMENTUM, decay=Decay.LINEAR, average=AVERAGE)
