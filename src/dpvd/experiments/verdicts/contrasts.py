"""Differences of mean accuracies, and how far they can be trusted.

Runs with the same seed start from the same weights and see the same batches; most see the same
noise. Differences are taken seed by seed, and what the seed did to both drops out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.special import stdtrit

from dpvd.experiments.aggregate import Summary

__all__ = ["FEWEST", "OF_A_NORMAL", "Contrast", "assumed_spread", "contrast", "half_width"]

FEWEST = 3  # runs from which a spread is estimated
CONFIDENCE = 0.95
ASSUMED = 0.1  # of the error rate
OF_A_NORMAL = 1.96  # half-width of its central 95 %, in standard deviations


@dataclass(frozen=True)
class Contrast:
    """A difference of means.

    Args:
        value: the difference, as a share.
        error: its standard error.
        half_width: of its 95 % interval.
        pairs: how many seeds it is the mean of.
    """

    value: float
    error: float
    half_width: float
    pairs: int


def contrast(plus: Sequence[Summary], minus: Sequence[Summary]) -> Contrast | None:
    """The sum of some cells' accuracies less that of others, over the seeds that all of them have.

    From three seeds on, the error is that of the mean of the seeds' own differences, and the
    interval Student's. Below that no spread can be estimated, and each cell is taken to have the
    one of ``assumed_spread``.

    Edge cases: None if no seed is common to all.

    Args:
        plus, minus: the cells that count for, and against.
    """
    differences = _differences(plus, minus)
    pairs = len(differences)
    if not pairs:
        return None
    if pairs >= FEWEST:
        spread = stdev(differences)
    else:
        spread = math.hypot(*(assumed_spread(cell) for cell in (*plus, *minus)))
    error = spread / math.sqrt(pairs)
    return Contrast(fmean(differences), error, half_width(error, pairs), pairs)


def _differences(plus: Sequence[Summary], minus: Sequence[Summary]) -> list[float]:
    """Of each seed that all cells have, what is for less what is against."""
    gains = [dict(cell.by_seed) for cell in plus]
    losses = [dict(cell.by_seed) for cell in minus]
    seeds = [set(accuracies) for accuracies in (*gains, *losses)]
    differences = []
    for seed in sorted(set.intersection(*seeds)):
        signed = [accuracies[seed] for accuracies in gains]
        signed += [-accuracies[seed] for accuracies in losses]
        differences.append(math.fsum(signed))
    return differences


def assumed_spread(cell: Summary) -> float:
    """Standard deviation over seeds that a cell with too few runs is taken to have, from its mean.

    A tenth of the error rate, and the sampling error of the test set: more than any cell with three
    runs or more has shown.

    >>> round(assumed_spread(Summary(0.9, None, 1, 10_000, 1.0, ())), 4)
    0.013
    """
    error_rate = 1 - cell.mean
    sampling_error = math.sqrt(cell.mean * error_rate / cell.examples)
    return ASSUMED * error_rate + sampling_error


def half_width(error: float, runs: int) -> float:
    """Of the 95 % interval of a mean of so many runs.

    Student's; the normal one where so few runs say that the spread was assumed.

    >>> [round(half_width(1.0, runs), 2) for runs in (1, 3, 10, 30)]
    [1.96, 4.3, 2.26, 2.05]
    """
    if runs < FEWEST:
        return OF_A_NORMAL * error
    return error * float(stdtrit(runs - 1, (1 + CONFIDENCE) / 2))
