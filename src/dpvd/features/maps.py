"""Linear maps along the edges of an image, as matrices: to resize it, and to take local means.

A matrix along each edge does what a convolution or an interpolation would do, in two products that
any program can run which a model is exported to.
"""

import torch
from torch import Tensor

__all__ = ["along_edges", "resizing", "window_means"]


def along_edges(maps: Tensor, down: Tensor, across: Tensor) -> Tensor:
    """Apply ``down`` [h', h] and ``across`` [w', w] to maps [..., h, w], to [..., h', w']."""
    return down @ (maps @ across.T)


def resizing(old: int, new: int) -> Tensor:
    """Linear interpolation of ``old`` values to ``new`` ones, [new, old].

    To fewer values it takes means, weighted by a triangle two new values wide. Constants stay.

    >>> resizing(2, 4)
    tensor([[1.0000, 0.0000],
            [0.7500, 0.2500],
            [0.2500, 0.7500],
            [0.0000, 1.0000]])
    """
    reach = max(1.0, old / new)
    centres = (torch.arange(new, dtype=torch.float64) + 0.5) * old / new - 0.5  # [new]
    distances = centres[:, None] - torch.arange(old)
    distances = distances.clamp(-reach, reach)
    weights = (1 - distances.abs() / reach).clamp_min(0)
    return (weights / weights.sum(1, keepdim=True)).float()


def window_means(size: int, stride: int, deviation: float) -> Tensor:
    """Means under Gaussian windows, one for every ``stride`` values, [size // stride, size].

    The windows lie symmetrically to the middle; at the ends they are cut off, and their weights sum
    to 1 there too.
    """
    count = size // stride
    first = (size - 1) / 2 - stride * (count - 1) / 2
    centres = first + stride * torch.arange(count, dtype=torch.float64)
    distances = centres[:, None] - torch.arange(size)
    weights = torch.exp(-(distances**2) / (2 * deviation**2))
    return (weights / weights.sum(1, keepdim=True)).float()
