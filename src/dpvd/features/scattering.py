"""The scattering transform: wavelets, moduli and local means, with nothing to train.

For an image x, wavelets ψ of two scales j and eight directions θ, and a Gaussian window φ:

    S₀ = x * φ,   S₁ = |x * ψ_{j,θ}| * φ,   S₂ = ||x * ψ_{0,θ}| * ψ_{1,θ'}| * φ

each kept at every fourth pixel: 1 + 16 + 64 maps. Small shifts and deformations of the image change
them little, which a classifier would otherwise have to learn from private examples.

References: Bruna and Mallat, "Invariant scattering convolution networks", arXiv 1203.1513.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.features.maps import along_edges, window_means

__all__ = ["Scattering"]

DIRECTIONS = 8
STRIDE = 4
"""One value is kept of so many pixels along an edge."""

# Shape of the wavelets at the finest scale, in pixels; each further scale doubles it.
ENVELOPE = 0.8  # standard deviation along the wave; across it is twice as long
CENTRE_FREQUENCY = 3 * math.pi / 4
SLANT = 4 / DIRECTIONS
WINDOW = 1.6  # standard deviation of φ

# Pixels from the centre to the edge of the kernels: 2.5 to 3 standard deviations.
FINE_RADIUS = 5
COARSE_RADIUS = 8


class Scattering(nn.Module):
    """Images [n, channels, height, width] to [n, 81 channels, height / 4, width / 4].

    Every channel and every image is transformed by itself; edges are mirrored.

    Args:
        height: of the images, a multiple of 4, at least 12.
        width: likewise.

    >>> Scattering(28, 28)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 81, 7, 7])
    """

    MAPS = 1 + 2 * DIRECTIONS + DIRECTIONS**2
    """Maps of one channel."""

    fine: Tensor
    coarse: Tensor
    down: Tensor
    across: Tensor
    half_down: Tensor
    half_across: Tensor

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        # Kernels [16, 1, size, size], real parts before imaginary ones.
        self.register_buffer("fine", _wavelets(scale=0, radius=FINE_RADIUS))
        self.register_buffer("coarse", _wavelets(scale=1, radius=COARSE_RADIUS))
        # Windows for maps of every pixel, and for maps of every second one.
        self.register_buffer("down", window_means(height, STRIDE, WINDOW))
        self.register_buffer("across", window_means(width, STRIDE, WINDOW))
        self.register_buffer("half_down", window_means(height // 2, STRIDE // 2, WINDOW / 2))
        self.register_buffer("half_across", window_means(width // 2, STRIDE // 2, WINDOW / 2))

    def forward(self, images: Tensor) -> Tensor:
        channels, height, width = images.shape[1:]
        planes = images.reshape(-1, 1, height, width)
        fine = _moduli(planes, self.fine, stride=1)  # [n, 8, h, w]
        coarse = _moduli(planes, self.coarse, stride=2)  # [n, 8, h/2, w/2]
        again = fine.reshape(-1, 1, height, width)
        both = _moduli(again, self.coarse, stride=2)  # [8 n, 8, h/2, w/2]
        both = both.reshape(-1, DIRECTIONS**2, *both.shape[2:])  # [n, 64, h/2, w/2]
        maps = torch.cat(
            [
                along_edges(planes, self.down, self.across),
                along_edges(fine, self.down, self.across),
                along_edges(coarse, self.half_down, self.half_across),
                along_edges(both, self.half_down, self.half_across),
            ],
            1,
        )  # [n, 81, h/4, w/4]
        return maps.reshape(-1, channels * self.MAPS, *maps.shape[2:])


def _moduli(planes: Tensor, kernels: Tensor, stride: int) -> Tensor:
    """|x * ψ| of planes [n, 1, h, w] for all directions, at every ``stride``-th pixel."""
    radius = kernels.shape[-1] // 2
    padded = F.pad(planes, (radius,) * 4, mode="reflect")
    waves = F.conv2d(padded, kernels, stride=stride)
    real, imaginary = waves.chunk(2, dim=1)
    return torch.sqrt(real * real + imaginary * imaginary)


def _wavelets(scale: int, radius: int) -> Tensor:
    """Morlet wavelets of all directions, [16, 1, size, size]: real parts, then imaginary ones."""
    envelope = ENVELOPE * 2**scale
    frequency = CENTRE_FREQUENCY / 2**scale
    axis = torch.arange(-radius, radius + 1, dtype=torch.float64)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    kernels = []
    for direction in range(DIRECTIONS):
        angle = math.pi * direction / DIRECTIONS
        along = math.cos(angle) * x + math.sin(angle) * y
        across = math.cos(angle) * y - math.sin(angle) * x
        hill = torch.exp(-(along**2 + SLANT**2 * across**2) / (2 * envelope**2))
        wave = hill * torch.exp(1j * frequency * along)
        # Without a mean, so that brightness alone gives nothing.
        wave = wave - hill * (wave.sum() / hill.sum())
        kernels.append(wave * SLANT / (2 * math.pi * envelope**2))
    waves = torch.stack(kernels)
    return torch.cat([waves.real, waves.imag]).unsqueeze(1).float()
