"""Statistics that are released with noise: moments, bounds, categories, counts of scores.

Each is one Gaussian release in which everybody takes part, written down as a plan with one step, so
that the account of whatever is trained afterwards takes it in.
"""

from dpvd.statistics.bounds import NumericBounds, dyadic_edges, people_for_bounds, release_bounds
from dpvd.statistics.categories import (
    Categories,
    failure_delta,
    people_for_categories,
    release_categories,
)
from dpvd.statistics.kept import KeptReleases, kept_names
from dpvd.statistics.moments import (
    Mean,
    Moments,
    MomentWeights,
    release_mean,
    release_moments,
)
from dpvd.statistics.people import Rows, check_people, row_weights
from dpvd.statistics.release import Charge, Keeper, Part, noise_shares, release_plan
from dpvd.statistics.score_counts import (
    ScoreCounts,
    coverage_lost,
    release_score_counts,
    score_count_std,
)

__all__ = [
    "Categories",
    "Charge",
    "Keeper",
    "KeptReleases",
    "Mean",
    "MomentWeights",
    "Moments",
    "NumericBounds",
    "Part",
    "Rows",
    "ScoreCounts",
    "check_people",
    "coverage_lost",
    "dyadic_edges",
    "failure_delta",
    "kept_names",
    "noise_shares",
    "people_for_bounds",
    "people_for_categories",
    "release_bounds",
    "release_categories",
    "release_mean",
    "release_moments",
    "release_plan",
    "release_score_counts",
    "row_weights",
    "score_count_std",
]
