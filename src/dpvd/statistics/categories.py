"""Categories of a column nobody listed: those that enough people have, found with noise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from dpvd.errors import DpvdError, in_unit_interval, positive, positive_int
from dpvd.plan import PrivacyPlan
from dpvd.statistics.people import row_weights, vote_counts
from dpvd.statistics.release import Charge, release_total, simplex_sensitivity

__all__ = ["Categories", "failure_delta", "people_for_categories", "release_categories"]


@dataclass(frozen=True)
class Categories:
    """Categories that enough people have.

    Attributes:
        names: sorted.
        threshold: the noisy number of people that each of them exceeded.
    """

    names: tuple[str, ...]
    threshold: float


def failure_delta(epsilon: float, failures: Sequence[float]) -> float:
    """What releases of categories add to δ: (1 + e^ε) Σ failure.

    Let D and D' be neighbours, and p the chance that a category appears in the output which only
    one person has. Without such categories the releases on D and D' are Gaussian mechanisms on the
    same categories, and everything that was done to the data together is (ε, δ')-private, δ' being
    what the account is asked with. Leaving them out changes each of the two distributions by at
    most p in total variation, so

        P[M(D) in S] ≤ P[M₀(D) in S] + p ≤ e^ε P[M₀(D') in S] + δ' + p
                     ≤ e^ε P[M(D') in S] + δ' + (1 + e^ε) p.

    To state (ε, δ), ask the account for ε at δ - failure_delta(ε, failures) and print δ: calibrate
    with ``noise_shares(epsilon, delta - failure_delta(epsilon, failures), ...)``, and take the
    statement's ε from ``guarantee(delta - failure_delta(epsilon, failures))``, which is not above
    ``epsilon``.

    Args:
        epsilon: the budget of all that is done to the data.
        failures: the ``failure`` of each column.

    >>> round(failure_delta(1.0, [1e-7, 1e-7]), 10)
    7.437e-07
    """
    positive(epsilon=epsilon)
    in_unit_interval(**{f"failure {place}": value for place, value in enumerate(failures)})
    return (1 + math.exp(epsilon)) * sum(failures)


def release_categories(
    values: Sequence[str | None],
    plan: PrivacyPlan,
    *,
    failure: float,
    rows_per_person: int = 1,
    most_categories: int = 4096,
    unit_index: Tensor | None = None,
    purpose: str,
    charge: Charge,
) -> Categories:
    """The categories whose noisy number of people exceeds a threshold.

    A category that one person alone has counts for a ≤ 1. It appears with probability
    Q((t - a)/σ), Q the upper tail of a normal distribution, t the threshold, and a person has at
    most r such categories, whose a's add up to 1 at most. Each is at most Q((t - 1)/σ), so with

        t = 1 + σ Q⁻¹(failure / r)

    one of them appears with probability ``failure`` at most.

    Guarantees:
        A person adds the average of unit vectors, one for each of their rows. The threshold does
        not depend on the data, nor does the order of the names.

    Edge cases:
        A missing value (None) is no category. The Gaussian account of the plan does not cover
        ``failure``: see `failure_delta` for what the caller has to do.

    Args:
        values: [n].
        plan: of this release, from `release_plan` with reach 1.
        failure: chance that a category of one person alone appears; far below δ.
        rows_per_person: r, the most rows that one person has.
        most_categories: a column with more different values is not one of categories.
        unit_index: int64 [n], whose row each is; None if every row is a person.
        purpose: names the stream of random bits, such as the name of the column.
        charge: pays for the plan.

    Raises:
        DpvdError: if arguments do not fit, or there are too many different values; nothing is
            charged then.
    """
    in_unit_interval(failure=failure)
    positive_int(rows_per_person=rows_per_person, most_categories=most_categories)
    votes = row_weights(plan.examples, len(values), unit_index)
    most = 1 if unit_index is None else int(torch.bincount(unit_index).max())
    if most > rows_per_person:
        raise DpvdError(
            f"rows_per_person is {rows_per_person}, but somebody has more rows: choose that many of"
            " theirs at random before"
        )
    names = sorted({value for value in values if value is not None})
    if len(names) > most_categories:
        raise DpvdError(
            f"{purpose} has more than {most_categories} different values: it is no column of"
            " categories"
        )
    places = {name: place for place, name in enumerate(names)}
    known = torch.tensor([value is not None for value in values], dtype=torch.bool)
    index = torch.tensor([places[v] for v in values if v is not None], dtype=torch.int64)
    # As many entries as there could be: neither the noise nor its grid tells how many there are.
    counts = vote_counts(index, votes[known], most_categories)
    std = release_total(
        counts,
        plan,
        sensitivity=simplex_sensitivity(plan.relation),
        purpose=purpose,
        charge=charge,
    )
    threshold = _threshold(std, failure, rows_per_person)
    above = (counts[: len(names)] > threshold).tolist()
    kept = tuple(name for name, enough in zip(names, above, strict=True) if enough)
    return Categories(kept, threshold)


def people_for_categories(plan: PrivacyPlan, failure: float, rows_per_person: int = 1) -> int:
    """How many people are needed for categories of a column, by noise and failure alone.

    With fewer, a category that a quarter of them have would rather stay hidden than appear. It is
    known before anything is charged.
    """
    std = plan.noise_std(simplex_sensitivity(plan.relation))
    return math.ceil(4 * _threshold(std, failure, rows_per_person))


def _threshold(std: float, failure: float, rows_per_person: int) -> float:
    return 1 + std * float(stats.norm.isf(failure / rows_per_person))
