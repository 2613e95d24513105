"""Images of made-up shapes: ellipses, rectangles and strokes of random place, size and tone.

They stand in for natural images where a mean or a covariance is needed: nobody is in them.
"""

import math

import torch
from torch import Tensor

__all__ = ["random_shapes"]

SEED = 20260101
"""Public, and the same for everybody."""
MOST_PARTS = 4  # shapes in an image
CHUNK = 250  # images that are drawn at once


def random_shapes(
    count: int, height: int, width: int, channels: int = 1, *, seed: int = SEED
) -> Tensor:
    """Return images [count, channels, height, width] of values from 0 to 1.

    They follow from the arguments alone. Each has one to four shapes on a black ground.

    >>> images = random_shapes(3, 28, 28)
    >>> images.shape, bool((images >= 0).all() and (images <= 1).all())
    (torch.Size([3, 1, 28, 28]), True)
    """
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for start in range(0, count, CHUNK):
        parts.append(_draw(min(CHUNK, count - start), height, width, channels, generator))
    return torch.cat(parts)


def _draw(count: int, height: int, width: int, channels: int, generator: torch.Generator) -> Tensor:
    """One chunk: shapes are laid over one another, each with its own tone."""

    def between(low: float, high: float, *more: int) -> Tensor:
        shape = (count, 1, 1, *more)
        return low + (high - low) * torch.rand(shape, generator=generator)

    # Coordinates from -1 to 1 along the longer edge.
    longer = max(height, width)
    y = ((torch.arange(height) + 0.5) * 2 - height)[None, :, None] / longer
    x = ((torch.arange(width) + 0.5) * 2 - width)[None, None, :] / longer
    softness = 2 / longer  # of an edge: one pixel
    image = torch.zeros(count, channels, height, width)
    number = torch.randint(1, MOST_PARTS + 1, (count, 1, 1), generator=generator)
    for part in range(MOST_PARTS):
        angle = between(0, math.pi)
        centre_x, centre_y = between(-0.6, 0.6), between(-0.6, 0.6)
        along = torch.cos(angle) * (x - centre_x) + torch.sin(angle) * (y - centre_y)
        across = torch.cos(angle) * (y - centre_y) - torch.sin(angle) * (x - centre_x)
        length, breadth = between(0.1, 0.7), between(0.1, 0.7)
        ellipse = (torch.hypot(along / length, across / breadth) - 1) * torch.minimum(
            length, breadth
        )
        rectangle = torch.maximum(along.abs() - length, across.abs() - breadth)
        # A stroke: a bent line of some thickness.
        bend = between(-1.5, 1.5)
        thickness = between(0.04, 0.16)
        bow = across - bend * (along**2 - length**2 / 2)
        stroke = torch.maximum(along.abs() - length, bow.abs() - thickness)
        # A ring: the rim of an ellipse.
        ring = ellipse.abs() - thickness
        kind = torch.rand((count, 1, 1), generator=generator)
        distance = torch.where(kind < 0.25, ellipse, rectangle)
        distance = torch.where(kind > 0.5, stroke, distance)
        distance = torch.where(kind > 0.75, ring, distance)
        cover = (0.5 - distance / softness).clamp(0, 1)  # [count, h, w]
        cover = cover * (number > part)
        tone = between(0.2, 1, channels).permute(0, 3, 1, 2)  # [count, channels, 1, 1]
        image = image * (1 - cover[:, None]) + tone * cover[:, None]
    return image
