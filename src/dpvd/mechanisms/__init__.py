"""Random bits, Gaussian noise and samplers: all the randomness that protects data."""

from dpvd.mechanisms.bits import BitSource, SeededBits, SystemBits
from dpvd.mechanisms.drawn import Draw, DrawnBatch, draw_of
from dpvd.mechanisms.noise import add_gaussian, fill_normal, standard_normal
from dpvd.mechanisms.sampling import FixedSizeSampler, PoissonSampler, Sampler

__all__ = [
    "BitSource",
    "Draw",
    "DrawnBatch",
    "FixedSizeSampler",
    "PoissonSampler",
    "Sampler",
    "SeededBits",
    "SystemBits",
    "add_gaussian",
    "draw_of",
    "fill_normal",
    "standard_normal",
]
