"""The transforms against direct formulas, and what they must not see."""

import cmath
import math

import pytest
import torch

from dpvd.features import GradientHistograms, RandomProjection, Scattering
from dpvd.features.maps import along_edges, resizing, window_means

TRANSFORMS = [Scattering, GradientHistograms, RandomProjection]


def images(count: int = 3, channels: int = 1, height: int = 16, width: int = 20) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, channels, height, width, generator=generator)


def mirrored(index: int, size: int) -> int:
    """The pixel that stands for one beyond an edge."""
    if index < 0:
        return -index
    return 2 * (size - 1) - index if index >= size else index


def wavelet(scale: int, direction: int, radius: int) -> dict[tuple[int, int], complex]:
    """A Morlet wavelet as the formula has it, by offset."""
    deviation, frequency = 0.8 * 2**scale, 3 * math.pi / 4 / 2**scale
    angle = math.pi * direction / 8
    hill, wave = {}, {}
    for y in range(-radius, radius + 1):
        for x in range(-radius, radius + 1):
            along = x * math.cos(angle) + y * math.sin(angle)
            across = y * math.cos(angle) - x * math.sin(angle)
            hill[y, x] = math.exp(-(along**2 + across**2 / 4) / (2 * deviation**2))
            wave[y, x] = hill[y, x] * cmath.exp(1j * frequency * along)
    mean = sum(wave.values()) / sum(hill.values())
    return {at: (wave[at] - mean * hill[at]) / (4 * math.pi * deviation**2) for at in wave}


def modulus(image: list[list[float]], kernel: dict[tuple[int, int], complex]) -> list[list[float]]:
    """|x * ψ| at every second pixel, by loops."""
    height, width = len(image), len(image[0])
    return [
        [
            abs(
                sum(
                    value * image[mirrored(row + y, height)][mirrored(column + x, width)]
                    for (y, x), value in kernel.items()
                )
            )
            for column in range(0, width, 2)
        ]
        for row in range(0, height, 2)
    ]


@pytest.mark.parametrize("direction", [0, 3])
def test_scattering_is_the_formula(direction):
    """S₁ of the coarse scale, by loops over pixels in double precision."""
    image = images(1)
    direct = torch.tensor(modulus(image[0, 0].tolist(), wavelet(1, direction, 8)))
    expected = along_edges(
        direct.double(), window_means(8, 2, 0.8).double(), window_means(10, 2, 0.8).double()
    )
    found = Scattering(16, 20)(image)[0, 1 + 8 + direction]
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-6)


def test_second_order_maps_are_wavelets_of_first_order_ones():
    image = images(2)
    transform = Scattering(16, 20)
    first = torch.nn.functional.conv2d(
        torch.nn.functional.pad(image, (5,) * 4, mode="reflect"), transform.fine
    )
    moduli = torch.hypot(first[:, :8], first[:, 8:])  # [2, 8, 16, 20]
    for direction in (0, 5):
        again = transform(moduli[:, direction : direction + 1])
        found = transform(image)[:, 17 + 8 * direction : 17 + 8 * (direction + 1)]
        torch.testing.assert_close(found, again[:, 9:17], rtol=0, atol=1e-6)


@pytest.mark.parametrize("transform", [Scattering, GradientHistograms])
def test_brightness_alone_makes_no_edges(transform):
    maps = transform(16, 16)(torch.full((1, 1, 16, 16), 0.7))
    edges = maps[:, 1:] if transform is Scattering else maps
    assert edges.abs().max() < 1e-5
    if transform is Scattering:
        torch.testing.assert_close(maps[:, 0], torch.full((1, 4, 4), 0.7))


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_an_image_and_a_channel_stand_for_themselves(transform):
    module = transform(16, 20)
    batch = images(4, channels=3)
    together = module(batch)
    assert together.shape == (4, 3 * transform.MAPS, 4, 5)
    alone = torch.cat([module(batch[2:3, channel : channel + 1]) for channel in range(3)], 1)
    torch.testing.assert_close(together[2:3], alone, rtol=1e-4, atol=1e-6)
    assert list(module.parameters()) == []


def test_a_shift_of_one_pixel_changes_scattering_less_than_pixels():
    image = torch.zeros(1, 1, 28, 28)
    image[..., 8:20, 10:13] = 1
    moved = image.roll(1, -1)
    transform = Scattering(28, 28)

    def change(before: torch.Tensor, after: torch.Tensor) -> float:
        return ((before - after).norm() / before.norm()).item()

    assert change(transform(image), transform(moved)) < 0.6 * change(image, moved)


def test_histograms_know_the_direction_of_an_edge():
    upright, lying = torch.zeros(2, 1, 1, 16, 16)
    upright[..., 8:] = 1
    lying[..., 8:, :] = 1
    transform = GradientHistograms(16, 16)
    strongest = [transform(image).sum((0, 2, 3)).argmax().item() for image in (upright, lying)]
    assert strongest == [0, 4]


def test_resizing_keeps_constants_and_sizes_that_fit():
    torch.testing.assert_close(resizing(28, 28), torch.eye(28))
    for old, new in ((8, 16), (200, 32), (30, 32)):
        torch.testing.assert_close(resizing(old, new).sum(1), torch.ones(new))
        assert (resizing(old, new) >= 0).all()
    # every pixel of a large image is seen
    assert (resizing(200, 32).sum(0) > 0).all()


@pytest.mark.parametrize(("size", "stride"), [(28, 4), (16, 4), (14, 2)])
def test_windows_lie_symmetrically_and_weigh_one(size, stride):
    weights = window_means(size, stride, 1.6)
    assert weights.shape == (size // stride, size)
    torch.testing.assert_close(weights.sum(1), torch.ones(size // stride))
    torch.testing.assert_close(weights, weights.flip(0, 1))
