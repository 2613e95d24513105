"""From raw images to the features that a head is trained on, as one module without parameters."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from dpvd.errors import Choice, DpvdError, exact_fields, positive_int
from dpvd.features.gradients import GradientHistograms
from dpvd.features.maps import along_edges, resizing
from dpvd.features.random_projection import RandomProjection
from dpvd.features.scattering import Scattering
from dpvd.features.shapes import random_shapes
from dpvd.features.whitening import Whitening

__all__ = ["FeatureExtractor", "FeatureKind", "FeatureSpec", "extract"]

# The edges that transforms work at, in pixels: multiples of 4.
SMALLEST_EDGE = 16
LARGEST_EDGE = 32

# Images that features make sense for; others go to a network as they are.
LEAST_PIXELS = 6  # along the shorter edge
MOST_CHANNELS = 4

MADE_UP = 6000  # images that whitening is learnt from
COMPONENTS = 1000  # directions that it keeps, at most,
PER_PIXEL = 2  # and at most so many for each number of an image
RIDGE = 1e-4
CHUNK = 100  # images that are transformed at once: what fits a cache


class FeatureKind(StrEnum):
    """The transforms that need no data."""

    SCATTER = "scatter"
    """Two layers of wavelets and moduli: ``Scattering``."""
    HOG = "hog"
    """Histograms of oriented gradients: ``GradientHistograms``."""
    RANDOM = "random"
    """Random directions and their cut-off sums: ``RandomProjection``."""


_TRANSFORMS: dict[FeatureKind, type[Scattering | GradientHistograms | RandomProjection]] = {
    FeatureKind.SCATTER: Scattering,
    FeatureKind.HOG: GradientHistograms,
    FeatureKind.RANDOM: RandomProjection,
}

_WORDS = {
    FeatureKind.SCATTER: "scattering coefficients",
    FeatureKind.HOG: "histograms of oriented gradients",
    FeatureKind.RANDOM: "random features",
}


@dataclass(frozen=True)
class FeatureSpec:
    """Which features, of images of which size.

    Args:
        image: height, width and, for colour, channels of an image.
        kind: the transform.

    Raises:
        DpvdError: if these are no images that features can be made of.

    >>> FeatureSpec((28, 28)).outputs
    1000
    """

    image: tuple[int, ...]
    kind: Choice[FeatureKind] = Choice(FeatureKind.SCATTER)

    def __post_init__(self) -> None:
        object.__setattr__(self, "image", tuple(self.image))
        if len(self.image) not in (2, 3):
            raise DpvdError(
                "features are made of images, height by width or height by width by channels; got"
                f" shape {self.image}: use --features none"
            )
        for name, size in zip(("height", "width", "channels"), self.image, strict=False):
            positive_int(**{name: size})
        if not FeatureSpec.fits(self.image):
            raise DpvdError(
                f"features are made of images of at least {LEAST_PIXELS} by {LEAST_PIXELS} pixels"
                f" and at most {MOST_CHANNELS} channels, got {self.image}: use --features none"
            )

    @staticmethod
    def fits(image: tuple[int, ...]) -> bool:
        """Whether an example of this shape is an image that features can be made of."""
        if len(image) not in (2, 3):
            return False
        channels = image[2] if len(image) == 3 else 1
        return min(image[:2]) >= LEAST_PIXELS and 1 <= channels <= MOST_CHANNELS

    @property
    def inputs(self) -> int:
        """Numbers in an image."""
        return math.prod(self.image)

    @property
    def channels(self) -> int:
        return self.image[2] if len(self.image) == 3 else 1

    @property
    def size(self) -> tuple[int, int]:
        """Height and width that the transform works at.

        >>> [FeatureSpec(image).size for image in ((28, 28), (8, 8), (200, 100, 3))]
        [(28, 28), (16, 16), (32, 16)]
        """
        height, width = self.image[:2]
        longer = max(height, width)
        scale = 1.0
        if longer > LARGEST_EDGE:
            scale = LARGEST_EDGE / longer
        elif longer < SMALLEST_EDGE:
            scale = SMALLEST_EDGE / longer
        return _working_edge(height * scale), _working_edge(width * scale)

    @property
    def transformed(self) -> int:
        """Numbers that the transform makes of an image."""
        height, width = self.size
        return _TRANSFORMS[self.kind].MAPS * self.channels * (height // 4) * (width // 4)

    @property
    def outputs(self) -> int:
        """Features of an image, after whitening."""
        return min(COMPONENTS, PER_PIXEL * self.inputs, self.transformed)

    def empty(self) -> "FeatureExtractor":
        """The module without the values of its whitening, which are to be loaded."""
        return FeatureExtractor(self)

    def build(self) -> "FeatureExtractor":
        """The module, ready: its whitening is learnt from made-up shapes, which takes seconds."""
        module = self.empty()
        module.load_state_dict(_fitted(self))
        return module

    def describe(self) -> str:
        """What becomes of an image, in words for a statement."""
        height, width = self.size
        resized = f" of the image at {height} by {width} pixels"
        return (
            f"turned into {self.outputs:,} features ({_WORDS[self.kind]}{resized}), whitened with"
            " the mean and covariance of made-up shapes (no real image) and scaled to L2 norm 1"
        )

    def to_dict(self) -> dict[str, Any]:
        return {"kind": str(self.kind), "image": list(self.image)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "FeatureSpec":
        return cls(**exact_fields(values, cls, "features"))


class FeatureExtractor(nn.Module):
    """Images as rows [n, numbers] to features [n, outputs] of L2 norm 1.

    Rows hold height by width (by channels) numbers, at least 0, of any scale. Each row depends on
    its image alone: transform, square root, norm 1, whitening, norm 1.

    It has buffers and no parameter, so there is nothing to train and nothing to protect.
    """

    down: Tensor
    across: Tensor

    def __init__(self, spec: FeatureSpec) -> None:
        super().__init__()
        self.spec = spec
        height, width = spec.size
        self.register_buffer("down", resizing(spec.image[0], height))
        self.register_buffer("across", resizing(spec.image[1], width))
        self.transform = _TRANSFORMS[spec.kind](height, width)
        self.whitening = Whitening(spec.transformed, spec.outputs)

    def forward(self, rows: Tensor) -> Tensor:
        return _unit(self.whitening(self.spread(rows)))

    def spread(self, rows: Tensor) -> Tensor:
        """Features before whitening, [n, transformed], of L2 norm 1."""
        height, width = self.spec.image[:2]
        images = _unit(rows).reshape(-1, height, width, self.spec.channels).permute(0, 3, 1, 2)
        resized = along_edges(images, self.down, self.across)
        maps = self.transform(resized)
        return _unit(maps.clamp_min(0).sqrt().flatten(1))

    def extra_repr(self) -> str:
        return f"{self.spec.kind}, image={self.spec.image}, outputs={self.spec.outputs}"


@torch.no_grad()
def extract(
    features_of: Callable[[Tensor], Tensor],
    x: Tensor,
    outputs: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """The features of many images, a few at a time.

    Args:
        features_of: a `FeatureExtractor`, or what ends with one.
        x: images [n, ...], of whatever type it takes.
        outputs: features of an image.
        on_progress: called with the number of images that are done, and of all.

    Returns:
        Features [n, outputs], in memory alone: features of private images are private.
    """
    result = torch.empty(len(x), outputs)
    done = 0
    for part in torch.split(x, CHUNK):
        end = done + len(part)
        result[done:end] = features_of(part)
        done = end
        if on_progress is not None:
            on_progress(done, len(x))
    return result


@lru_cache(maxsize=4)
def _fitted(spec: FeatureSpec) -> dict[str, Tensor]:
    """The state of a ready module; it follows from the spec alone."""
    module = spec.empty()
    height, width = spec.image[:2]
    images = random_shapes(MADE_UP, height, width, spec.channels)
    rows = images.permute(0, 2, 3, 1).reshape(MADE_UP, -1)
    spread = torch.cat([module.spread(part) for part in torch.split(rows, CHUNK)])
    module.whitening.fit(spread, RIDGE)
    state: dict[str, Tensor] = dict(module.state_dict())
    return state


def _working_edge(pixels: float) -> int:
    """The nearest multiple of 4 that transforms work at."""
    return min(LARGEST_EDGE, max(SMALLEST_EDGE, 4 * round(pixels / 4)))


def _unit(rows: Tensor) -> Tensor:
    """Rows of L2 norm 1; a row of zeros stays zero."""
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    scaled: Tensor = rows / norms.clamp_min(1e-20)
    return scaled
