"""Random bits, Gaussian noise and samplers: all the randomness that protects data."""

from dpvd.mechanisms.bits import BitSource, SeededBits, SystemBits
from dpvd.mechanisms.correlated import MOST_BANDS, CorrelatedNoise, band_coefficients
from dpvd.mechanisms.drawn import (
    Draw,
    DrawnBatch,
    carry,
    check_draw,
    draw_of,
    handed_out,
    marked,
)
from dpvd.mechanisms.joint import release_jointly
from dpvd.mechanisms.noise import (
    GridNoise,
    check_noise,
    noise_on_grid,
    release_sums,
    standard_normal,
)
from dpvd.mechanisms.sampling import (
    CyclicSampler,
    FixedSizeSampler,
    Partition,
    PoissonSampler,
    Sampler,
)

__all__ = [
    "MOST_BANDS",
    "BitSource",
    "CorrelatedNoise",
    "CyclicSampler",
    "Draw",
    "DrawnBatch",
    "FixedSizeSampler",
    "GridNoise",
    "Partition",
    "PoissonSampler",
    "Sampler",
    "SeededBits",
    "SystemBits",
    "band_coefficients",
    "carry",
    "check_draw",
    "check_noise",
    "draw_of",
    "handed_out",
    "marked",
    "noise_on_grid",
    "release_jointly",
    "release_sums",
    "standard_normal",
]
