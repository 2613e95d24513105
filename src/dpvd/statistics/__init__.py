"""Statistics that are released with noise: moments of rows, bounds of columns, categories.

Each is one Gaussian release in which everybody takes part, written down as a plan with one step, so
that the account of whatever is trained afterwards takes it in.
"""

from dpvd.statistics.moments import (
    Mean,
    Moments,
    MomentWeights,
    release_mean,
    release_moments,
)
from dpvd.statistics.people import check_people, row_weights
from dpvd.statistics.release import Charge, Part, noise_shares, release_plan

__all__ = [
    "Charge",
    "Mean",
    "MomentWeights",
    "Moments",
    "Part",
    "check_people",
    "noise_shares",
    "release_mean",
    "release_moments",
    "release_plan",
    "row_weights",
]
