"""Random features: sums over random patterns, cut off at zero. A baseline for the transforms."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["RandomProjection"]

SEED = 0
"""Public, and the same for everybody."""
SIZE = 8  # pixels along the edge of a pattern
STRIDE = 4


class RandomProjection(nn.Module):
    """Images [n, channels, height, width] to [n, 32 channels, height / 4, width / 4].

    Every patch of 8 by 8 pixels is compared with 32 random patterns without mean.

    Args:
        height: of the images, a multiple of 4, at least 8.
        width: likewise.

    >>> RandomProjection(28, 28)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 32, 7, 7])
    """

    MAPS = 32
    """Maps of one channel."""

    patterns: Tensor

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        source = torch.Generator().manual_seed(SEED)
        patterns = torch.randn(self.MAPS, 1, SIZE, SIZE, generator=source)
        patterns -= patterns.mean((2, 3), keepdim=True)
        self.register_buffer("patterns", patterns / SIZE)

    def forward(self, images: Tensor) -> Tensor:
        channels, height, width = images.shape[1:]
        planes = images.reshape(-1, 1, height, width)
        around = (SIZE - STRIDE) // 2
        padded = F.pad(planes, (around,) * 4, mode="reflect")
        maps = F.conv2d(padded, self.patterns, stride=STRIDE).relu()
        return maps.reshape(-1, channels * self.MAPS, *maps.shape[2:])
