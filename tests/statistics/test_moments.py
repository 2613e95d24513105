"""Moments: what is released, its noise, and how far one person can move it."""

import math

import pytest
import torch

from dpvd.errors import DpvdError
from dpvd.plan import PrivacyPlan
from dpvd.privacy import Relation
from dpvd.statistics import Moments, MomentWeights, release_mean, release_moments
from tests.mechanisms.statistics import ALARM, normal_p_value
from tests.statistics.people import free, secret_plan, seeded_plan, unit_rows

WEIGHTS = MomentWeights(cross=1.3, square=0.7)
TINY = 1e-7  # noise multiplier of releases that show the sums themselves


def vector_of(found: Moments, weights: MomentWeights, people: int) -> torch.Tensor:
    """The vector that got the noise, as the release scaled it."""
    features = len(found.second)
    factors = torch.full((features, features), math.sqrt(2), dtype=torch.float64)
    factors.fill_diagonal_(1.0)
    row, column = torch.triu_indices(features, features)
    parts = [
        (found.second * factors)[row, column],
        weights.cross * found.cross.flatten(),
        weights.square * torch.tensor([found.square or 0.0], dtype=torch.float64),
    ]
    return people * torch.cat(parts)


def test_moments_are_means_over_people_of_the_means_of_their_rows(generator):
    x = unit_rows(7, 4, generator)
    t = torch.rand(7, 2, generator=generator) - 0.5
    whose = torch.tensor([0, 1, 1, 2, 2, 2, 0])
    plan = seeded_plan(3, reach=WEIGHTS.reach, z=TINY)
    found = release_moments(x, t, plan, weights=WEIGHTS, unit_index=whose, charge=free)
    people = [whose == person for person in range(3)]
    second = sum((x[one].double().T @ x[one].double()) / one.sum() for one in people) / 3
    cross = sum((x[one].double().T @ t[one].double()) / one.sum() for one in people) / 3
    square = sum(t[one].double().square().sum(1).mean() for one in people) / 3
    torch.testing.assert_close(found.second, second, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.cross, cross, atol=1e-5, rtol=0)
    assert found.square == pytest.approx(square.item(), abs=1e-5)
    assert torch.equal(found.second, found.second.T)


def test_the_mean_is_that_of_people(generator):
    x = unit_rows(5, 3, generator)
    whose = torch.tensor([0, 0, 0, 1, 2])
    found = release_mean(x, seeded_plan(3, z=TINY), unit_index=whose, charge=free)
    expected = torch.stack([x[:3].mean(0), x[3], x[4]]).double().mean(0)
    torch.testing.assert_close(found.mean, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("z", [0.5, 8.0])
def test_noise_on_every_part_has_the_stated_scale(z):
    people = 5
    nothing = torch.zeros(people, 150)
    plan = secret_plan(people, reach=WEIGHTS.reach, z=z)
    no_target = torch.zeros(people, 40)
    found = release_moments(nothing, no_target, plan, weights=WEIGHTS, charge=free)
    row, column = torch.triu_indices(150, 150, offset=1)
    samples = {
        "diagonal": (found.second.diagonal(), found.second_std),
        "off the diagonal": (found.second[row, column], found.second_std / math.sqrt(2)),
        "cross": (found.cross, found.cross_std),
    }
    assert found.second_std == pytest.approx(z * WEIGHTS.reach / people, rel=3e-3)
    assert found.cross_std == pytest.approx(z * WEIGHTS.reach / people / 1.3, rel=3e-3)
    for part, (sample, std) in samples.items():
        assert normal_p_value(sample, std) > ALARM, part
    for part in ("off the diagonal", "cross"):
        sample, std = samples[part]
        assert normal_p_value(sample, std * 2 / 3) < ALARM, part
        assert normal_p_value(sample, std * 3 / 2) < ALARM, part


def test_noise_on_the_mean_has_the_stated_scale():
    found = release_mean(torch.zeros(4, 5000), secret_plan(4, z=3.0), charge=free)
    assert found.std == pytest.approx(3.0 / 4, rel=3e-3)
    assert normal_p_value(found.mean, found.std) > ALARM
    assert normal_p_value(found.mean, found.std * 2 / 3) < ALARM
    assert normal_p_value(found.mean, found.std * 3 / 2) < ALARM


def ten_rows(kind: str, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """A person with ten rows of five features and one target, as bad as they can be."""
    axis = torch.zeros(10, 5)
    axis[:, 1] = 1.0
    one = torch.ones(10, 1)
    diagonal = torch.full((10, 5), 5**-0.5)
    return {
        "random": (unit_rows(10, 5, generator), torch.rand(10, 1, generator=generator)),
        "on an axis": (axis, one),
        "on the diagonal": (diagonal, -one),
        "far too long": (1e6 * diagonal, 1e6 * one),
        "not finite": (torch.full((10, 5), math.inf), torch.full((10, 1), math.nan)),
        "a huge number": (torch.full((10, 5), 1e38), one),
    }[kind]


KINDS = ["random", "on an axis", "on the diagonal", "far too long", "not finite", "a huge number"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weights", [MomentWeights(1.3, 0.7), MomentWeights(3.0), MomentWeights(1)])
def test_adding_a_person_with_ten_rows_moves_the_sums_by_the_sensitivity_at_most(
    kind, weights, generator
):
    x, t = unit_rows(20, 5, generator), torch.rand(20, 1, generator=generator)
    more_x, more_t = ten_rows(kind, generator)
    plan = seeded_plan(21, reach=weights.reach)
    alone = torch.arange(20)  # person 20 has no row
    with_them = torch.cat([alone, torch.full((10,), 20)])
    without = release_moments(x, t, plan, weights=weights, unit_index=alone, charge=free)
    found = release_moments(
        torch.cat([x, more_x]),
        torch.cat([t, more_t]),
        plan,
        weights=weights,
        unit_index=with_them,
        charge=free,
    )
    moved = vector_of(found, weights, 21) - vector_of(without, weights, 21)
    stated = weights.sensitivity(Relation.ADD_OR_REMOVE)
    assert moved.norm() <= stated * (1 + 2**-9)  # the rounding that the noise allows for
    if kind in ("on an axis", "on the diagonal", "far too long"):
        assert moved.norm() >= stated * (1 - 2**-9), "the stated sensitivity is not reached"


@pytest.mark.parametrize("kind", KINDS)
def test_adding_a_person_with_ten_rows_moves_the_mean_by_the_sensitivity_at_most(kind, generator):
    """Stated by the noise: its standard deviation is the multiplier times the sensitivity."""
    x = unit_rows(20, 5, generator)
    more, _ = ten_rows(kind, generator)
    z = 0.5
    plan = seeded_plan(21, z=z)
    alone = torch.arange(20)  # person 20 has no row
    with_them = torch.cat([alone, torch.full((10,), 20)])
    without = release_mean(x, plan, unit_index=alone, charge=free)
    found = release_mean(torch.cat([x, more]), plan, unit_index=with_them, charge=free)
    moved = 21 * (found.mean - without.mean).norm()
    stated = 21 * found.std / z
    assert moved <= stated  # the noise is larger by what rounding may move the sum
    if kind in ("on an axis", "on the diagonal", "far too long"):
        assert moved >= stated * (1 - 2**-8), "the stated sensitivity is not reached"


def test_replacing_a_person_moves_the_mean_by_the_sensitivity_at_most():
    row = torch.full((10, 5), 1e6)
    plan = seeded_plan(1, relation="replace-one", z=0.5)
    person = torch.zeros(10, dtype=torch.int64)
    pair = [release_mean(x, plan, unit_index=person, charge=free) for x in (row, -row)]
    stated = pair[0].std / 0.5
    assert stated * (1 - 2**-8) <= (pair[0].mean - pair[1].mean).norm() <= stated


def test_replacing_a_person_moves_the_sums_by_the_sensitivity_at_most(generator):
    """The worst pair for w² ≤ 2 has cosine -w²/2 and the same target."""
    weights = MomentWeights(1.0)
    cosine = -(weights.cross**2) / 2
    first = torch.zeros(10, 5)
    first[:, 0] = 1.0
    second = torch.zeros(10, 5)
    second[:, 0] = cosine
    second[:, 1] = math.sqrt(1 - cosine**2)
    plan = seeded_plan(1, relation="replace-one", reach=weights.reach)
    person = torch.zeros(10, dtype=torch.int64)
    same = torch.ones(10, 1)
    pair = [
        release_moments(x, same, plan, weights=weights, unit_index=person, charge=free)
        for x in (first, second)
    ]
    moved = vector_of(pair[0], weights, 1) - vector_of(pair[1], weights, 1)
    stated = weights.sensitivity(Relation.REPLACE_ONE)
    assert moved.norm().item() == pytest.approx(stated, rel=2**-9)


@pytest.mark.parametrize("cross", [0.3, 1.0, 1.5, 2.1, 2.3, 5.0])
def test_no_pair_of_people_differs_by_more_than_the_sensitivity(cross, generator):
    weights = MomentWeights(cross, 0.4)
    x = unit_rows(400, 2, generator).double() * torch.rand(400, 1, generator=generator).sqrt()
    x[:200] /= x[:200].norm(dim=1, keepdim=True)
    t = (torch.randint(0, 2, (400, 1), generator=generator) * 2 - 1).double()
    outer = (x[:, :, None] * x[:, None, :]).flatten(1)
    vectors = torch.cat([outer, cross * x * t, 0.4 * t * t], dim=1)
    assert torch.cdist(vectors, vectors).max() <= weights.sensitivity(Relation.REPLACE_ONE)
    assert vectors.norm(dim=1).max() <= weights.sensitivity(Relation.ADD_OR_REMOVE) + 1e-12


def test_weights_from_shares_divide_the_noise_as_shares_of_the_budget_would():
    weights = MomentWeights.from_shares(second=0.1, cross=0.6)
    z = 2.0
    assert z * weights.reach == pytest.approx(z / math.sqrt(0.1 / 0.7))
    assert z * weights.reach / weights.cross == pytest.approx(z / math.sqrt(0.6 / 0.7))


def test_a_release_is_charged_before_and_refused_charges_release_nothing(generator):
    x, t = unit_rows(6, 3, generator), torch.ones(6, 1)
    plan = seeded_plan(6, reach=MomentWeights(1).reach)
    charged: list[PrivacyPlan] = []
    release_moments(x, t, plan, weights=MomentWeights(1), charge=charged.append)
    assert charged == [plan]

    def refuse(_plan: PrivacyPlan) -> None:
        raise DpvdError("nothing is left")

    with pytest.raises(DpvdError, match="nothing is left"):
        release_moments(x, t, plan, weights=MomentWeights(1), charge=refuse)


@pytest.mark.parametrize(
    ("x", "t", "whose", "message"),
    [
        (torch.zeros(6), torch.zeros(6, 1), None, "matrices"),
        (torch.zeros(6, 2), torch.zeros(5, 1), None, "as many rows"),
        (torch.zeros(5, 2), torch.zeros(5, 1), None, "the plan is for 6"),
        (torch.zeros(6, 2), torch.zeros(6, 1), torch.zeros(6), "int64"),
        (torch.zeros(6, 2), torch.zeros(6, 1), torch.full((6,), 6), "between 0 and 5"),
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_charged(x, t, whose, message):
    charged: list[PrivacyPlan] = []
    plan = seeded_plan(6, reach=MomentWeights(1).reach)
    with pytest.raises(DpvdError, match=message):
        release_moments(
            x, t, plan, weights=MomentWeights(1), unit_index=whose, charge=charged.append
        )
    assert not charged
