"""Random bits, Gaussian noise and samplers: all the randomness that protects data."""

from dpvd.mechanisms.bits import BitSource, SeededBits, SystemBits
from dpvd.mechanisms.drawn import Draw, DrawnBatch, check_draw, draw_of
from dpvd.mechanisms.noise import (
    GridNoise,
    check_noise,
    noise_on_grid,
    release_sums,
    standard_normal,
)
from dpvd.mechanisms.sampling import FixedSizeSampler, PoissonSampler, Sampler

__all__ = [
    "BitSource",
    "Draw",
    "DrawnBatch",
    "FixedSizeSampler",
    "GridNoise",
    "PoissonSampler",
    "Sampler",
    "SeededBits",
    "SystemBits",
    "check_draw",
    "check_noise",
    "draw_of",
    "noise_on_grid",
    "release_sums",
    "standard_normal",
]
