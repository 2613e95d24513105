"""Categories that nobody listed: what appears, what must not, and what that adds to δ."""

import math

import pytest
import torch
from scipy import stats

from dpvd.errors import DpvdError
from dpvd.plan import PrivacyPlan
from dpvd.statistics import failure_delta, release_categories
from tests.mechanisms.statistics import ALARM
from tests.statistics.people import free, secret_plan, seeded_plan

COMMON = ["red"] * 300 + ["blue"] * 200 + ["green"] * 150
TINY = 1e-8


def test_common_categories_appear_and_single_ones_do_not():
    values = [*COMMON, "a rare disease", None]
    plan = seeded_plan(len(values), z=5.0)
    found = release_categories(values, plan, failure=TINY, purpose="colour", charge=free)
    assert found.names == ("blue", "green", "red")


def test_a_category_with_fewer_people_than_the_threshold_stays_out():
    values = [*COMMON, *["rare"] * 12]
    plan = seeded_plan(len(values), z=5.0)
    found = release_categories(values, plan, failure=TINY, purpose="colour", charge=free)
    assert found.threshold > 25
    assert "rare" not in found.names


def appearances(values: list[str], people: int, runs: int, **arguments) -> int:
    """In how many releases a category appeared that one person alone has."""
    plan = secret_plan(people, z=2.0)
    return sum(
        any(name.startswith("own") for name in found.names)
        for found in (
            release_categories(
                values, plan, most_categories=16, purpose="colour", charge=free, **arguments
            )
            for _ in range(runs)
        )
    )


@pytest.mark.parametrize("rows", [1, 10])
def test_a_category_of_one_person_appears_as_often_as_stated_at_most(rows):
    """With one row the stated chance is reached; two thirds of it would be refused."""
    failure, runs = 0.2, 3000
    own = [f"own {row}" for row in range(rows)]
    whose = torch.zeros(rows, dtype=torch.int64)
    seen = appearances(own, 1, runs, failure=failure, rows_per_person=rows, unit_index=whose)
    assert stats.binomtest(seen, runs, failure, alternative="greater").pvalue > ALARM
    if rows == 1:
        assert stats.binomtest(seen, runs, failure * 2 / 3).pvalue < ALARM
        assert stats.binomtest(seen, runs, failure * 3 / 2).pvalue < ALARM


def test_ten_rows_of_one_person_count_as_one():
    values = ["own"] * 10
    whose = torch.zeros(10, dtype=torch.int64)
    plan = seeded_plan(1, z=0.05)
    found = release_categories(
        values,
        plan,
        failure=TINY,
        rows_per_person=10,
        unit_index=whose,
        purpose="colour",
        charge=free,
    )
    assert found.names == ()
    assert 1 < found.threshold < 2


def test_more_rows_and_a_smaller_failure_ask_for_more_people():
    plan = seeded_plan(len(COMMON), z=5.0)

    def threshold(failure: float, rows: int) -> float:
        return release_categories(
            COMMON, plan, failure=failure, rows_per_person=rows, purpose="colour", charge=free
        ).threshold

    assert threshold(1e-8, 1) > threshold(1e-6, 1)
    assert threshold(1e-6, 10) > threshold(1e-6, 1)
    exact = 1 + 5.0 * stats.norm.isf(1e-6)
    assert exact <= threshold(1e-6, 1) <= exact * 1.002


def test_failures_are_taken_from_delta_with_the_factor_of_both_directions():
    assert failure_delta(1.0, [1e-7, 2e-7]) == pytest.approx(3e-7 * (1 + math.e))


def test_what_does_not_fit_is_refused_before_it_is_charged():
    charged: list[PrivacyPlan] = []
    plan = seeded_plan(5)

    def release(values: list[str], **arguments) -> None:
        release_categories(
            values, plan, failure=TINY, purpose="colour", charge=charged.append, **arguments
        )

    with pytest.raises(DpvdError, match="more than 3 different values"):
        release(list("abcde"), most_categories=3)
    with pytest.raises(DpvdError, match="the plan is for 5"):
        release(list("abcd"))
    with pytest.raises(DpvdError, match="somebody has more rows"):
        release(list("abcdef"), unit_index=torch.tensor([0, 0, 1, 2, 3, 4]))
    with pytest.raises(DpvdError, match="failure must lie"):
        release_categories(list("abcde"), plan, failure=0.0, purpose="colour", charge=free)
    assert not charged
