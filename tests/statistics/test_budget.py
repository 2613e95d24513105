"""Budgets that several uses of the data share."""

import math

import pytest
from dp_accounting import ComposedDpEvent

from dpvd.errors import DpvdError
from dpvd.plan import PrivacyPlan
from dpvd.privacy import epsilon, noise_multiplier_for, poisson_event
from dpvd.statistics import Part, noise_shares, release_plan

PARTS = {"mean": Part(0.2), "moments": Part(0.3), "training": Part(0.5, steps=30)}


@pytest.mark.parametrize("relation", ["add-or-remove", "replace-one"])
def test_parts_cost_the_budget_together(relation):
    noise = noise_shares(0.8, 1e-6, PARTS, relation=relation)
    event = ComposedDpEvent(
        [
            poisson_event(noise["mean"], 1.0, 1),
            poisson_event(noise["moments"], 1.0, 1),
            poisson_event(noise["training"], 1.0, 30),
        ]
    )
    assert 0.799 < epsilon(event, 1e-6, relation=relation) <= 0.8


def test_shares_divide_the_budget_as_they_say():
    noise = noise_shares(0.8, 1e-6, PARTS)
    whole = noise_multiplier_for(0.8, 1e-6, lambda z: poisson_event(z, 1.0, 1))
    assert noise["mean"] == pytest.approx(whole / math.sqrt(0.2), rel=2e-3)
    assert noise["moments"] == pytest.approx(whole / math.sqrt(0.3), rel=2e-3)
    assert noise["training"] == pytest.approx(whole * math.sqrt(30 / 0.5), rel=2e-3)


@pytest.mark.parametrize("parts", [{}, {"mean": Part(0.5)}, {"a": Part(0.7), "b": Part(0.7)}])
def test_shares_that_do_not_add_up_are_refused(parts):
    with pytest.raises(DpvdError, match="add up to 1"):
        noise_shares(1.0, 1e-5, parts)


def test_releases_with_the_same_noise_are_two_entries():
    """An account knows runs by their plans: equal plans would be one run, charged once."""
    base = PrivacyPlan(examples=50, batch_size=50, steps=1)
    first = release_plan(base, name="the mean row", noise_multiplier=3.0, reach=1.0)
    second = release_plan(base, name="the mean residual", noise_multiplier=3.0, reach=1.0)
    assert first.fingerprint != second.fingerprint
