"""The default recipe of every network: layers, inputs, initial weights, steps, learning rate.

One class for each kind of network, and below them the rule that all of them share. The rule knows
the number of examples, the budget (through the calibrated noise) and the kind and width of the
network; it never looks at the data. The documentation ("Default recipe") has the measurements
behind the constants.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import torch
from torch import Tensor, nn

from dpvd.errors import DpvdError, positive_int
from dpvd.grads import Clipping, ClippingMode
from dpvd.plan import PrivacyPlan
from dpvd.training import Decay, Recipe

__all__ = [
    "NETWORKS",
    "Cnn",
    "FeatureChoice",
    "Linear",
    "Mlp",
    "NetworkKind",
    "NetworkRecipe",
    "NetworkRule",
    "RecipeName",
    "default_batch_size",
    "default_clipping",
    "default_steps",
    "ordinary_recipe",
    "posterior_factor",
    "private_recipe",
]

CHOSEN_ON = ("digits", "mnist")
"""The constants of this file were chosen on splits of the training parts of these data sets."""

MOMENTUM = 0.9
AVERAGE = 0.1  # of the steps, the last

# Private training: large batches, few steps, and a learning rate that follows from the noise.
PRIVATE_BATCH = 2048
# Below this signal-to-noise ratio of the whole run less noise is better than faster learning.
POSTERIOR_NOISE = 0.3  # in an output
ENOUGH_SIGNAL = 400.0
KL_WEIGHT = 0.01
KL_WARMUP = 0.5  # of the steps, the first

# Ordinary training.
ORDINARY_BATCH = 128
ORDINARY_STEPS = 1000
ORDINARY_EPOCHS = 10


class NetworkKind(StrEnum):
    """What a run trains."""

    MLP = "mlp"
    """One fully connected hidden layer of ReLU units: the paper's."""
    CNN = "cnn"
    """Two convolutions and a hidden layer, all of tanh units: for images."""
    LINEAR = "linear"
    """One linear layer, on features that need no data or on inputs as they are."""
    AUTO = "auto"
    """Images: linear on features, else mlp. Tables: by their size and the budget."""


class FeatureChoice(StrEnum):
    """Features of images that a user may choose."""

    AUTO = "auto"
    """As the shape of the examples suggests."""
    SCATTER = "scatter"
    HOG = "hog"
    RANDOM = "random"
    NONE = "none"


class RecipeName(StrEnum):
    """Defaults that a user may choose between."""

    BEST = "best"
    """What reaches the most: for images, features and a linear layer."""
    PAPER = "paper"
    """The paper's network: one hidden layer on pixels."""


@dataclass(frozen=True)
class NetworkRule:
    """What the shared rule has to know of a network.

    Args:
        layers: how many layers per-layer clipping would clip.
        full_batch_steps: private steps when every step sees all examples.
        weight_noise: standard deviation of the noise that all steps together may leave in a weight,
            were the learning rate constant.
        largest_move: bound on η₀/(1 - momentum) under privacy, for runs with hardly any noise to
            limit the pace.
        ordinary_move: η₀/(1 - momentum) without privacy.
        batch: private examples in a step, at most.
        momentum: of the private optimizer.
        decay: of the private learning rate.
        average: part of the steps, the last, whose iterates are averaged.
        output_gain: noise in an output for noise of 1 in every weight.
    """

    layers: int
    full_batch_steps: int
    weight_noise: float
    largest_move: float
    ordinary_move: float
    batch: int = PRIVATE_BATCH
    momentum: float = MOMENTUM
    decay: Decay = Decay.LINEAR
    average: float = AVERAGE
    output_gain: float = 1.0


@dataclass(frozen=True)
class NetworkRecipe(ABC):
    """A kind of network, with its sizes.

    Args:
        features: number of inputs.
        hidden: units of the (last) hidden layer.
        classes: outputs.
        image: height and width of an example; None if it is no image.

    Raises:
        DpvdError: if the network does not fit the examples.
    """

    HIDDEN: ClassVar[int]
    """Hidden units if nobody chooses."""
    MICRO_BATCH: ClassVar[int | None] = None
    """How many examples go through it at once in training; None for all."""
    TAKES_IMAGES: ClassVar[bool] = False
    """Whether it has to know the shape of an example."""

    features: int
    hidden: int
    classes: int
    image: tuple[int, ...] | None = None

    @staticmethod
    @abstractmethod
    def input_norm(features: int) -> float:
        """The L2 norm that every example's features are scaled to."""

    @abstractmethod
    def layers(self) -> nn.Sequential:
        """The layers on torch's meta device, where they take no memory and have no values."""

    @abstractmethod
    def rule(self) -> NetworkRule:
        """The numbers that learning rate and steps follow from."""

    @torch.no_grad()
    def initialise(
        self, layers: nn.Sequential, input_norm: float | None, generator: torch.Generator
    ) -> None:
        """Draw the initial weights; biases and the last layer start at zero.

        Args:
            layers: as ``layers`` returns them, on a real device; changed in place.
            input_norm: L2 norm of the inputs; None if they are used as they are.
            generator: all that the weights depend on.
        """
        weighted = [layer for layer in layers if isinstance(layer, nn.Linear | nn.Conv2d)]
        for layer in weighted:
            if layer.bias is not None:
                layer.bias.zero_()
            self._draw(layer.weight, input_norm, generator)
        # The first steps then move the outputs only by what the data says.
        weighted[-1].weight.zero_()

    @abstractmethod
    def _draw(self, weight: Tensor, input_norm: float | None, generator: torch.Generator) -> None:
        """Fill a weight [outputs, ...] with random values."""


@dataclass(frozen=True)
class Linear(NetworkRecipe):
    """One linear layer without biases, which starts at zero; for inputs of L2 norm 1.

    >>> Linear(1000, hidden=0, classes=10).layers()
    Sequential(
      (0): Linear(in_features=1000, out_features=10, bias=False)
    )
    """

    HIDDEN: ClassVar[int] = 0
    BATCH: ClassVar[int] = 2**16
    STEPS: ClassVar[int] = 150
    MICRO_BATCH: ClassVar[int | None] = 4096  # what a step holds beside the features stays small

    @staticmethod
    def input_norm(features: int) -> float:
        return 1.0

    def layers(self) -> nn.Sequential:
        return nn.Sequential(nn.Linear(self.features, self.classes, bias=False, device="meta"))

    def rule(self) -> NetworkRule:
        """Large steps on all examples; noise in a weight is noise in an output.

        What the steps together leave of the noise depends on their number times the learning rate
        alone, so there are as many as bring the layer to rest, and each is as large as that leaves.
        """
        return NetworkRule(
            layers=1,
            full_batch_steps=self.STEPS,
            weight_noise=1.2,
            largest_move=1000.0,
            ordinary_move=50.0,
            batch=self.BATCH,
            momentum=0.0,
            decay=Decay.CONSTANT,
            average=0.0,
        )

    def _draw(self, weight: Tensor, input_norm: float | None, generator: torch.Generator) -> None:
        weight.zero_()


@dataclass(frozen=True)
class Mlp(NetworkRecipe):
    """One hidden layer of ReLU units."""

    HIDDEN: ClassVar[int] = 1000
    INPUT_NORM: ClassVar[float] = 4.0
    PRE_ACTIVATION: ClassVar[float] = 0.5
    """Standard deviation of a hidden unit's input at the start, whatever the number of features."""
    LARGEST_ORDINARY_MOVE: ClassVar[float] = 5.0
    """Without privacy, narrow networks diverge beyond it."""

    @staticmethod
    def input_norm(features: int) -> float:
        return Mlp.INPUT_NORM

    def layers(self) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(self.features, self.hidden, device="meta"),
            nn.ReLU(),
            nn.Linear(self.hidden, self.classes, device="meta"),
        )

    def rule(self) -> NetworkRule:
        """The same noise in an output, whatever the width H.

        With g = √(p² H / 2 + 1), the norm of an output's gradient at the start (p the
        pre-activation), noise of 4.5/g in every weight is noise of 4.5 in an output.
        """
        gain = math.sqrt(self.PRE_ACTIVATION**2 * self.hidden / 2 + 1)
        return NetworkRule(
            layers=2,
            full_batch_steps=100,
            weight_noise=4.5 / gain,
            largest_move=150.0,
            ordinary_move=min(self.LARGEST_ORDINARY_MOVE, 150.0 / gain**2),
            output_gain=gain,
        )

    def _draw(self, weight: Tensor, input_norm: float | None, generator: torch.Generator) -> None:
        std = self.features**-0.5
        if input_norm is not None:
            std = self.PRE_ACTIVATION / input_norm
        weight.normal_(0, std, generator=generator)


@dataclass(frozen=True)
class Cnn(NetworkRecipe):
    """The network of tempered sigmoids, for grey images.

    Two convolutions (16 filters of 8 by 8, 32 of 4 by 4, both of stride 2) with tanh and
    overlapping maxima, then a hidden layer. Bounded activations keep per-example gradients short,
    so that clipping takes less away.

    >>> layers = Cnn(28 * 28, hidden=32, classes=10, image=(28, 28)).layers()
    >>> sum(parameter.numel() for parameter in layers.parameters())
    26010
    >>> Cnn(64, hidden=32, classes=10, image=(8, 8))
    Traceback (most recent call last):
    ...
    dpvd.errors.DpvdError: the cnn takes images of at least 14 by 14 pixels, got 8 by 8: use the mlp

    References: Papernot et al., "Tempered sigmoid activations for deep learning with differential
        privacy", arXiv 2007.14191v1, Table 1.
    """

    HIDDEN: ClassVar[int] = 32
    MICRO_BATCH: ClassVar[int | None] = 256  # convolutions are faster in parts that fit a cache
    TAKES_IMAGES: ClassVar[bool] = True
    SMALLEST_IMAGE: ClassVar[int] = 14
    """Pixels along an edge of which the convolutions leave at least one."""

    def __post_init__(self) -> None:
        if self.image is None or len(self.image) != 2 or math.prod(self.image) != self.features:
            shape = "" if self.image is None else f" of shape {self.image}"
            raise DpvdError(
                f"the cnn takes grey images, height by width; got {self.features} features{shape}:"
                " use the mlp"
            )
        if min(self.image) < self.SMALLEST_IMAGE:
            raise DpvdError(
                f"the cnn takes images of at least {self.SMALLEST_IMAGE} by {self.SMALLEST_IMAGE}"
                f" pixels, got {self.image[0]} by {self.image[1]}: use the mlp"
            )

    @staticmethod
    def input_norm(features: int) -> float:
        """Pixels of mean square 1."""
        return math.sqrt(features)

    def layers(self) -> nn.Sequential:
        assert self.image is not None  # checked at construction
        height, width = self.image
        convolved = 32 * _edge_left(height) * _edge_left(width)
        return nn.Sequential(
            nn.Unflatten(1, (1, height, width)),
            nn.Conv2d(1, 16, 8, stride=2, padding=3, device="meta"),
            nn.Tanh(),
            nn.MaxPool2d(2, stride=1),
            nn.Conv2d(16, 32, 4, stride=2, device="meta"),
            nn.Tanh(),
            nn.MaxPool2d(2, stride=1),
            nn.Flatten(),
            nn.Linear(convolved, self.hidden, device="meta"),
            nn.Tanh(),
            nn.Linear(self.hidden, self.classes, device="meta"),
        )

    def rule(self) -> NetworkRule:
        """Many small steps: they leave the same noise as fewer large ones, which learn less."""
        return NetworkRule(
            layers=4,
            full_batch_steps=780,
            weight_noise=0.155,
            largest_move=20.0,
            ordinary_move=0.5,
            output_gain=4.5 / 0.155,  # as if the noise that it bears were that of the mlp
        )

    def _draw(self, weight: Tensor, input_norm: float | None, generator: torch.Generator) -> None:
        reach = weight[0].numel() ** -0.5
        weight.uniform_(-reach, reach, generator=generator)


NETWORKS: dict[NetworkKind, type[NetworkRecipe]] = {
    NetworkKind.LINEAR: Linear,
    NetworkKind.MLP: Mlp,
    NetworkKind.CNN: Cnn,
}


# The rule that all networks share.


def default_batch_size(examples: int, *, private: bool, rule: NetworkRule | None = None) -> int:
    """All the data, up to the size where larger batches gain little."""
    positive_int(examples=examples)
    private_batch = PRIVATE_BATCH if rule is None else rule.batch
    largest = private_batch if private else ORDINARY_BATCH
    return min(examples, largest)


def default_steps(examples: int, batch_size: int, rule: NetworkRule, *, private: bool) -> int:
    """F (N/S)^(1/3) private steps, F those of full batches: each costs privacy.

    Ordinary steps are free: 10 epochs, at least 1000 steps.
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
        η₀  = (1 - m) min(M, ω S / (zΔ √T))         m: momentum

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
        learning_rate=(1 - rule.momentum) * min(move, rule.largest_move),
        momentum=rule.momentum,
        decay=rule.decay,
        kl_weight=KL_WEIGHT,
        kl_warmup=KL_WARMUP,
        average=rule.average,
    )


def posterior_factor(plan: PrivacyPlan, recipe: Recipe, rule: NetworkRule) -> float:
    """The part of the accumulated noise that averaging over weights bears: no data decides it.

    Classes are told apart by differences of about 1 between outputs. Averaging over more noise than
    a third of that flattens the probabilities, of a head that was stopped early above all.
    """
    noise = plan.noise_std(plan.clipping.sensitivity(plan.relation, groups=rule.layers))
    left = recipe.noise_left(plan) * noise / plan.batch_size
    return min(1.0, POSTERIOR_NOISE / (rule.output_gain * left))


def ordinary_recipe(rule: NetworkRule) -> Recipe:
    """The recipe without privacy, for the same kind of network."""
    return Recipe(
        learning_rate=(1 - MOMENTUM) * rule.ordinary_move,
        momentum=MOMENTUM,
        decay=Decay.LINEAR,
        average=AVERAGE,
    )


def _edge_left(pixels: int) -> int:
    """What convolutions and maxima leave of an image's edge.

    >>> _edge_left(28), _edge_left(Cnn.SMALLEST_IMAGE), _edge_left(Cnn.SMALLEST_IMAGE - 1)
    (4, 1, 0)
    """
    return (pixels // 2 - 5) // 2
