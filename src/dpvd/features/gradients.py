"""Histograms of oriented gradients: where edges are, which way they run, and how strong they are.

References: Dalal and Triggs, "Histograms of oriented gradients for human detection", CVPR 2005.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.features.maps import along_edges, window_means

__all__ = ["GradientHistograms"]

DIRECTIONS = 8
STRIDE = 4
WINDOW = 2.0  # standard deviation of a cell, in pixels
FLOOR = 0.1  # of the mean energy of an image's cells, so that empty ones stay empty


class GradientHistograms(nn.Module):
    """Images [n, channels, height, width] to [n, 8 channels, height / 4, width / 4].

    Each pixel's gradient is shared between the two directions next to its own; cells overlap, and
    each is divided by its energy. Every channel and every image is transformed by itself.

    Args:
        height: of the images, a multiple of 4.
        width: likewise.

    >>> GradientHistograms(28, 28)(torch.zeros(2, 3, 28, 28)).shape
    torch.Size([2, 24, 7, 7])
    """

    MAPS = DIRECTIONS
    """Maps of one channel."""

    down: Tensor
    across: Tensor
    cosines: Tensor
    sines: Tensor

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.register_buffer("down", window_means(height, STRIDE, WINDOW))
        self.register_buffer("across", window_means(width, STRIDE, WINDOW))
        angles = math.pi * torch.arange(DIRECTIONS, dtype=torch.float64) / DIRECTIONS
        # An angle and its opposite are one direction: twice the angle tells them apart.
        self.register_buffer("cosines", torch.cos(2 * angles).float()[:, None, None])
        self.register_buffer("sines", torch.sin(2 * angles).float()[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        channels, height, width = images.shape[1:]
        planes = images.reshape(-1, 1, height, width)
        padded = F.pad(planes, (1, 1, 1, 1), mode="replicate")
        x = padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]  # [n, 1, h, w]
        y = padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]
        energy = x * x + y * y
        length = torch.sqrt(energy)
        # cos and sin of twice the angle, times the length
        scale = length / energy.clamp_min(1e-30)
        double_cosine, double_sine = (x * x - y * y) * scale, 2 * x * y * scale
        # cos² of the angle between gradient and direction, sharpened to about one neighbour
        along = double_cosine * self.cosines + double_sine * self.sines  # [n, 8, h, w]
        share = ((along / length.clamp_min(1e-15) + 1) / 2) ** 4
        cells = along_edges(share * length, self.down, self.across)  # [n, 8, h/4, w/4]
        squares = cells.square().sum(1, keepdim=True)
        floor = FLOOR * squares.mean((2, 3), keepdim=True)
        cells = cells / torch.sqrt(squares + floor + 1e-30)
        return cells.reshape(-1, channels * self.MAPS, *cells.shape[2:])
