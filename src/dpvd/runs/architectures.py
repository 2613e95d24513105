"""The layers of the networks that runs train, without values yet."""

import math
from enum import StrEnum

from torch import nn

from dpvd.errors import DpvdError

__all__ = ["SMALLEST_IMAGE", "NetworkKind", "check_image", "convolutional", "dense"]

SMALLEST_IMAGE = 14
"""Pixels along an edge of which the convolutional network leaves at least one."""


class NetworkKind(StrEnum):
    """What a run trains."""

    MLP = "mlp"
    """One fully connected hidden layer of ReLU units: the paper's."""
    CNN = "cnn"
    """Two convolutions and a hidden layer, all of tanh units: for images."""


def dense(features: int, hidden: int, classes: int) -> nn.Sequential:
    """One hidden layer of ReLU units, on torch's meta device: it takes no memory."""
    return nn.Sequential(
        nn.Linear(features, hidden, device="meta"),
        nn.ReLU(),
        nn.Linear(hidden, classes, device="meta"),
    )


def convolutional(image: tuple[int, int], hidden: int, classes: int) -> nn.Sequential:
    """The network of tempered sigmoids, on torch's meta device: it takes no memory.

    Two convolutions (16 filters of 8 by 8, 32 of 4 by 4, both of stride 2) with tanh and
    overlapping maxima, then a hidden layer. Bounded activations keep per-example gradients short,
    so that clipping takes less away.

    Args:
        image: height and width, as ``check_image`` lets them pass.
        hidden: units of the hidden layer.
        classes: outputs.

    >>> layers = convolutional((28, 28), hidden=32, classes=10)
    >>> sum(parameter.numel() for parameter in layers.parameters())
    26010

    References: Papernot et al., "Tempered sigmoid activations for deep learning with differential
        privacy", arXiv
    2007.14191v1, Table 1.
    """
    height, width = image
    return nn.Sequential(
        nn.Unflatten(1, (1, height, width)),
        nn.Conv2d(1, 16, 8, stride=2, padding=3, device="meta"),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2, device="meta"),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * _left(height) * _left(width), hidden, device="meta"),
        nn.Tanh(),
        nn.Linear(hidden, classes, device="meta"),
    )


def check_image(features: int, image: tuple[int, ...] | None) -> None:
    """Raise unless examples of this many features are images that convolutions leave something of.

    >>> check_image(64, (8, 8))
    Traceback (most recent call last):
    ...
    dpvd.errors.DpvdError: the cnn takes images of at least 14 by 14 pixels, got 8 by 8: use the mlp
    """
    if image is None or len(image) != 2 or math.prod(image) != features:
        shape = "" if image is None else f" of shape {image}"
        raise DpvdError(
            f"the cnn takes grey images, height by width; got {features} features{shape}: use"
            " the mlp"
        )
    if min(image) < SMALLEST_IMAGE:
        raise DpvdError(
            f"the cnn takes images of at least {SMALLEST_IMAGE} by {SMALLEST_IMAGE} pixels, "
            f"got {image[0]} by {image[1]}: use the mlp"
        )


def _left(pixels: int) -> int:
    """What convolutions and maxima leave of an edge.

    >>> _left(28), _left(SMALLEST_IMAGE), _left(SMALLEST_IMAGE - 1)
    (4, 1, 0)
    """
    return (pixels // 2 - 5) // 2
