"""Bounds of columns: what they find, their noise, and how far one person can move the counts."""

import math
from dataclasses import replace

import pytest
import torch

from dpvd.errors import DpvdError
from dpvd.plan import PrivacyPlan
from dpvd.privacy import Relation
from dpvd.statistics import bounds, dyadic_edges, people_for_bounds, release_bounds
from dpvd.statistics.release import simplex_sensitivity
from tests.mechanisms.statistics import ALARM, normal_p_value
from tests.statistics.people import free, secret_plan, seeded_plan

EDGES = dyadic_edges()


def pair_of_plans(examples: int, z: float) -> tuple[PrivacyPlan, PrivacyPlan]:
    plan = seeded_plan(examples, z=z)
    return plan, replace(plan, initial_weights="none: fine counts were released before training")


@pytest.mark.parametrize(
    ("low", "high"), [(18.0, 90.0), (-5.0, 3.0), (0.001, 0.004), (1e5, 2e6), (-40.0, -35.0)]
)
def test_bounds_enclose_most_values_closely(low, high, generator):
    values = low + (high - low) * torch.rand(5000, generator=generator)
    found = release_bounds(values, *pair_of_plans(5000, 5.0), purpose="age", charge=free)
    inside = ((values >= found.low) & (values <= found.high)).double().mean()
    assert inside > 0.97
    assert found.high - found.low < 1.3 * (high - low)


def test_a_few_wild_values_do_not_stretch_the_bounds(generator):
    values = torch.randn(5000, generator=generator)
    values[:3] = 1e9
    values[3:6] = torch.tensor([math.nan, math.inf, -math.inf])
    found = release_bounds(values, *pair_of_plans(5000, 5.0), purpose="age", charge=free)
    assert -8 < found.low < -1.5
    assert 1.5 < found.high < 8


def test_too_few_people_are_told_so_before_anything_is_charged():
    charged: list[PrivacyPlan] = []
    plans = pair_of_plans(80, 5.0)
    assert people_for_bounds(plans[0]) == 87
    with pytest.raises(DpvdError, match=r"too few people for bounds of age: there are 80.* 87 are"):
        release_bounds(torch.full((80,), 30.0), *plans, purpose="age", charge=charged.append)
    assert charged == []


@pytest.mark.parametrize(
    ("low", "high"), [(18.0, 90.0), (-5.0, 5.0), (0.001, 0.004), (1e5, 2e6), (-90.0, -10.0)]
)
def test_as_many_people_as_are_needed_have_bounds_of_their_scale(low, high, generator):
    people = people_for_bounds(pair_of_plans(1000, 5.0)[0])
    far = 0
    for seed in range(40):
        values = low + (high - low) * torch.rand(people, generator=generator)
        plans = [replace(plan, seed=seed) for plan in pair_of_plans(people, 5.0)]
        found = release_bounds(values, *plans, purpose="age", charge=free)
        largest = max(abs(low), abs(high))
        far += not largest / 4 < max(abs(found.low), abs(found.high)) < 16 * largest
    assert far <= 8  # of 40: it is by chance, and no more is charged for it


def test_bounds_that_no_bin_stands_out_for_are_rough():
    people = people_for_bounds(pair_of_plans(1000, 5.0)[0])
    values = torch.full((people,), math.nan)
    found = release_bounds(values, *pair_of_plans(people, 5.0), purpose="age", charge=free)
    assert found.are_rough
    assert found.low < found.high


def test_both_releases_are_charged_and_one_plan_does_not_pay_for_two():
    values = torch.linspace(18, 90, 2000)
    coarse, fine = pair_of_plans(2000, 2.0)
    charged: list[PrivacyPlan] = []
    release_bounds(values, coarse, fine, purpose="age", charge=charged.append)
    assert charged == [coarse, fine]
    with pytest.raises(DpvdError, match="two plans"):
        release_bounds(values, coarse, coarse, purpose="age", charge=charged.append)
    assert len(charged) == 2


def test_noise_on_counts_has_the_planned_scale():
    samples = [
        bounds._noisy_counts(
            torch.full((4,), math.nan), EDGES, secret_plan(4, z=3.0), None, "age", free
        )[0]
        for _ in range(60)
    ]
    sample = torch.cat(samples)
    assert normal_p_value(sample, 3.0) > ALARM
    assert normal_p_value(sample, 3.0 * 2 / 3) < ALARM
    assert normal_p_value(sample, 3.0 * 3 / 2) < ALARM


@pytest.mark.parametrize("kind", ["all in one bin", "all in different bins", "random"])
def test_a_person_with_ten_rows_moves_the_counts_by_the_sensitivity_at_most(kind, generator):
    theirs = {
        "all in one bin": torch.full((10,), 3.0),
        "all in different bins": torch.pow(2.0, torch.arange(10)) * 1.5,
        "random": 100 * torch.randn(10, generator=generator),
    }[kind]
    others = torch.randn(20, generator=generator)
    plan = seeded_plan(21)
    alone = torch.arange(20)
    with_them = torch.cat([alone, torch.full((10,), 20)])
    values = torch.cat([others, theirs])
    without, _ = bounds._noisy_counts(others, EDGES, plan, alone, "age", free)
    found, _ = bounds._noisy_counts(values, EDGES, plan, with_them, "age", free)
    stated = simplex_sensitivity(Relation.ADD_OR_REMOVE)
    assert (found - without).norm() <= stated * (1 + 2**-9)
    if kind == "all in one bin":
        assert (found - without).norm() >= stated * (1 - 2**-9)


def test_replacing_a_person_moves_the_counts_by_the_root_of_two():
    plan = seeded_plan(1, relation="replace-one")
    person = torch.zeros(10, dtype=torch.int64)
    pair = [
        bounds._noisy_counts(torch.full((10,), value), EDGES, plan, person, "age", free)[0]
        for value in (1.5, 1000.0)
    ]
    moved = (pair[0] - pair[1]).norm().item()
    assert moved == pytest.approx(simplex_sensitivity(Relation.REPLACE_ONE), rel=2**-9)


def test_every_value_has_one_bin_and_the_last_edge_is_inside():
    values = torch.tensor([1.0, 2.0, 3.0, 2.0**40, 2.0**41, 0.0, -1.0, math.nan])
    plan = seeded_plan(8, z=1e-6)
    counts, _ = bounds._noisy_counts(values, EDGES, plan, None, "age", free)
    assert counts.sum().item() == pytest.approx(6.0, abs=1e-3)
    assert counts[-1].item() == pytest.approx(1.0, abs=1e-3)
