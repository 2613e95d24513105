"""Counts of scores below points: how far one person moves them, their noise, and coverage."""

import math

import pytest
import torch

from dpvd.errors import DpvdError
from dpvd.plan import PrivacyPlan
from dpvd.privacy import Relation
from dpvd.statistics import coverage_lost, release_score_counts, score_count_std, score_counts
from dpvd.statistics.release import simplex_sensitivity
from tests.mechanisms.statistics import ALARM, normal_p_value
from tests.statistics.people import free, secret_plan, seeded_plan

POINTS = 40
PLACES = (-math.inf, -3.0, -1.0, -0.4, 0.0, 0.3, 7.0, 7.5, 38.2, 39.0, 39.9, math.inf, math.nan)


def sums(*places):
    """What is released, without its noise."""
    return score_counts._bounded_sums(torch.tensor(places), POINTS)


def counted(*places, z=1e-7):
    values = torch.tensor(places)
    plan = seeded_plan(len(values), z=z)
    return release_score_counts(values, POINTS, plan, purpose="scores", charge=free)


@pytest.mark.parametrize("place", PLACES)
def test_adding_a_person_moves_the_sums_by_one_at_most(place):
    others = (3.2, 0.1, 20.0)
    moved = sums(*others, place) - sums(*others)
    assert moved.norm() <= simplex_sensitivity(Relation.ADD_OR_REMOVE)


def test_the_bound_is_reached():
    assert (sums(5.0, -1.0) - sums(5.0)).norm() > 1 - 1e-9


@pytest.mark.parametrize("place", PLACES)
def test_replacing_a_person_moves_the_sums_by_root_two_at_most(place):
    for other in PLACES:
        moved = sums(3.2, place) - sums(3.2, other)
        assert moved.norm() <= simplex_sensitivity(Relation.REPLACE_ONE)


def test_counts_are_those_of_people_below_each_point():
    found = counted(-5.0, 0.0, 2.5, 38.0, 39.5, math.nan).counts
    wanted = torch.zeros(POINTS, dtype=torch.float64)
    wanted[0] = 1
    wanted[1:] = 2
    wanted[3] = 2.5  # half of the way from 2.5 to one point further
    wanted[4:] = 3
    wanted[39] = 4
    assert torch.allclose(found, wanted, atol=1e-5)


def test_rounding_a_score_moves_no_count_by_more():
    assert (sums(7.0 - 1e-6, 12.0) - sums(7.0, 12.0)).norm() < 2e-6


def test_noise_has_the_stated_scale_at_the_last_point_and_is_smaller_before():
    plan = secret_plan(50, z=2.0)
    found = [release_score_counts(torch.zeros(50), POINTS, plan, purpose="s", charge=free)]
    found += [
        release_score_counts(torch.zeros(50), POINTS, plan, purpose="s", charge=free)
        for _ in range(399)
    ]
    last = torch.stack([one.counts[-1] for one in found]) - 50
    std = found[0].std
    assert std == pytest.approx(score_count_std(plan, POINTS), rel=0.01)
    assert std == pytest.approx(2.0 * (1 + math.log(POINTS) / math.pi), rel=0.15)
    assert normal_p_value(last, std) > ALARM
    for wrong in (2 / 3, 3 / 2):
        assert normal_p_value(last, wrong * std) < ALARM
    first = torch.stack([one.counts[0] for one in found])
    assert first.std() < 0.85 * std


def test_the_plan_is_charged_once_and_other_numbers_of_people_cost_nothing():
    charged: list[PrivacyPlan] = []
    plan = seeded_plan(3)
    with pytest.raises(DpvdError, match=r"for 3 examples.*scores of shape \(2,\)"):
        release_score_counts(torch.zeros(2), POINTS, plan, purpose="s", charge=charged.append)
    assert charged == []
    release_score_counts(torch.zeros(3), POINTS, plan, purpose="s", charge=charged.append)
    assert charged == [plan]


@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.99])
def test_new_scores_lie_below_the_point_as_often_as_asked_for(coverage, generator):
    """Over 80 calibrations: on average within what noise may take away, and 0.01 above."""
    people, points = 2000, 640
    plan = secret_plan(people, z=3.0)
    reached = []
    for _ in range(80):
        scores = torch.randn(people, generator=generator, dtype=torch.float64)
        found = release_score_counts((scores + 5) * 64, points, plan, purpose="scores", charge=free)
        threshold = found.point_for(coverage) / 64 - 5
        reached.append(0.5 * (1 + math.erf(threshold / math.sqrt(2))))
    mean = sum(reached) / len(reached)
    lost = coverage_lost(people, found.std, points)
    assert 0.01 < lost < 0.03
    assert coverage - lost < mean < coverage + 0.01


def test_a_share_that_so_few_people_cannot_tell_has_no_point():
    found = counted(*[0.0] * 19)
    assert found.point_for(0.9) == 1
    assert found.point_for(0.96) == POINTS


def test_noise_that_drowns_everybody_may_lose_all_coverage():
    assert coverage_lost(100, 1e4, 640) == 1.0
    assert coverage_lost(100_000, 36.0, 640) < coverage_lost(1000, 36.0, 640) < 0.2
