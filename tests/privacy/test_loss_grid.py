"""Composition on a grid: on the safe side, tight, and the same for ten million steps as for ten."""

import math
from functools import partial

import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from dpvd.privacy import Relation, SamplingKind, epsilon, fixed_size_event, poisson_event
from dpvd.privacy import pld as pld_module
from dpvd.privacy.events import Step
from dpvd.privacy.loss_grid import GridTooFine, LossGrid, composed_epsilon, loss_grid
from dpvd.privacy.pld import grid_spacing, pld_epsilon
from dpvd.privacy.profiles import (
    add_profile,
    largest_loss,
    remove_profile,
    replace_profile,
    smallest_loss,
)
from tests.privacy.reference import exact_delta, sampled

ALWAYS = [(1.0, 0.0)]  # a distribution without the example
MANY = 10**7

# z, q, T, delta: long runs, tiny rates, epsilons from 1e-4 to 100.
LONG_RUNS = [
    (4.0, 0.01, 10_000, 1e-5),
    (118.0, 0.01, MANY, 1e-5),
    (118.0, 0.01, MANY, 1e-10),
    (1000.0, 0.5, MANY, 1e-5),
    (5.0, 1e-4, MANY, 1e-6),
    (100.0, 1e-6, MANY, 1e-9),
    (15.8, 0.01, MANY, 1e-5),
    (3.07, 0.01, MANY, 1e-5),
]


@pytest.mark.parametrize(("z", "q", "steps", "delta"), LONG_RUNS)
def test_epsilon_is_on_the_safe_side_and_tight_for_any_number_of_steps(z, q, steps, delta):
    found = epsilon(poisson_event(z, q, steps), delta)
    removed = exact_delta(sampled(1.0, q), ALWAYS, z, steps, found)
    added = exact_delta(ALWAYS, sampled(-1.0, q), z, steps, found)
    assert 0.97 * delta < max(removed, added) <= delta


@pytest.mark.parametrize(("z", "q", "steps", "delta"), [LONG_RUNS[0], LONG_RUNS[1], LONG_RUNS[4]])
def test_epsilon_under_replace_one_is_on_the_safe_side_and_tight(z, q, steps, delta):
    found = epsilon(poisson_event(z, q, steps), delta, relation=Relation.REPLACE_ONE)
    assert 0.97 * delta < exact_delta(sampled(0.5, q), sampled(-0.5, q), z, steps, found) <= delta


def test_the_oracle_agrees_with_the_gaussian_mechanism_and_rejects_an_epsilon_too_small():
    exact = 4.377172  # analytic Gaussian mechanism, z = 1, delta = 1e-5
    assert exact_delta([(1.0, 1.0)], ALWAYS, 20.0, 400, exact) == pytest.approx(1e-5, rel=1e-3)
    z, q, steps, delta = LONG_RUNS[1]
    found = epsilon(poisson_event(z, q, steps), delta)
    assert exact_delta(sampled(1.0, q), ALWAYS, z, steps, 0.998 * found) > delta


@pytest.mark.parametrize(("z", "q", "steps", "delta"), [*LONG_RUNS[:3], (0.3, 1e-3, 1000, 1e-6)])
def test_a_coarser_grid_only_costs(z, q, steps, delta):
    """Rounding goes one way: halving the spacing never raises epsilon."""
    step = Step(z, SamplingKind.POISSON, q)
    remove, add = partial(remove_profile, z, q), partial(add_profile, z, q)

    def on_grid(spacing):
        top, bottom = largest_loss(z, q), smallest_loss(z, q)
        return composed_epsilon(
            [(loss_grid(remove, add, spacing, highest=top, lowest=bottom), steps)], delta
        )

    spacing = grid_spacing(step)
    coarse, medium, fine = (on_grid(factor * spacing) for factor in (16.0, 4.0, 1.0))
    assert coarse > medium > fine


@pytest.mark.parametrize(
    ("z", "q", "steps", "delta"),
    [(1.0, 0.01, 1000, 1e-5), (0.9, 0.1, 30, 1e-6), (3.0, 0.5, 1, 0.05)],
)
def test_the_library_agrees(z, q, steps, delta):
    event = poisson_event(z, q, steps)
    library = PLDAccountant().compose(event).get_epsilon(delta)  # on its grid of 1e-4
    assert epsilon(event, delta) == pytest.approx(library, rel=2e-3)


@pytest.mark.parametrize(
    ("z", "q"), [(0.06, 0.9), (0.3, 0.01), (1.0, 0.5), (1e7, 1e-9), (1e6, 0.999)]
)
def test_extremes_are_accounted(z, q):
    """From an epsilon of millions to one of nothing, in bounded memory; below the sum of what
    single steps cost.
    """
    found = epsilon(poisson_event(z, q, MANY), 1e-6)
    unsampled = epsilon(poisson_event(z, 1.0, MANY), 1e-6)
    assert 0 <= found <= unsampled * (1 + 1e-3)
    assert found < epsilon(poisson_event(z, q, 2 * MANY), 1e-6) or found < 1e-9


def test_different_kinds_of_steps_add_up():
    one = Step(2.0, SamplingKind.POISSON, 0.02)
    other = Step(2.0, SamplingKind.POISSON, 0.02 + 1e-12)
    together = pld_epsilon({one: 300, other: 700}, 1e-5, Relation.ADD_OR_REMOVE)
    assert together == pytest.approx(
        pld_epsilon({one: 1000}, 1e-5, Relation.ADD_OR_REMOVE), rel=1e-6
    )
    assert together < pld_epsilon(
        {one: 300, Step(1.0, SamplingKind.POISSON, 0.02): 700}, 1e-5, Relation.ADD_OR_REMOVE
    )


def test_a_grid_too_fine_is_made_coarser_and_epsilon_stays_an_upper_bound(monkeypatch):
    steps = {Step(30.0, SamplingKind.POISSON, 0.1): 10**5}
    fine = pld_epsilon(steps, 1e-5, Relation.ADD_OR_REMOVE)
    monkeypatch.setattr("dpvd.privacy.loss_grid.MOST_CELLS", 5000)
    with pytest.raises(GridTooFine):
        composed_epsilon(
            [(pld_module._step_losses(*steps, Relation.ADD_OR_REMOVE, 1e-5)[0], 10**5)], 1e-5
        )
    assert fine < pld_epsilon(steps, 1e-5, Relation.ADD_OR_REMOVE) < 1.5 * fine


@pytest.mark.parametrize(
    ("z", "q", "spacing"), [(1.0, 0.1, 0.05), (0.5, 0.6, 0.2), (40.0, 0.01, 1e-4)]
)
def test_the_grid_is_exact_at_its_points_and_above_the_profile_between(z, q, spacing):
    pairs = [
        (remove_profile, add_profile),
        (add_profile, remove_profile),
        (replace_profile, replace_profile),
    ]
    for profile, reverse in pairs:
        grid = loss_grid(
            partial(profile, z, q), partial(reverse, z, q), spacing, highest=8.0, lowest=-8.0
        )
        assert grid.probs.sum() + grid.infinite == pytest.approx(1, abs=1e-14)
        for place in (-3.0, -1.0, 0.0, 1.0, 2.5, 4.0):
            at = place * spacing
            found = grid.infinite + float(
                (grid.probs * np.maximum(-np.expm1(at - grid.losses), 0)).sum()
            )
            exact = float(profile(z, q, np.array(at)))
            slack = 1e-13 if place == round(place) else math.inf
            assert exact - 1e-13 <= found <= exact + slack


def test_losses_that_are_infinite_are_not_forgotten():
    grid = LossGrid(0.1, 0, np.array([0.9, 0.1 - 1e-6]), 1e-6)
    assert composed_epsilon([(grid, 10)], 0.9e-5) == math.inf
    assert composed_epsilon([(grid, 10)], 1.2e-5) < math.inf


@pytest.mark.parametrize("delta", [1e-12, 0.01, 0.1, 0.5])
def test_two_points_have_the_epsilon_of_pencil_and_paper(delta):
    """Randomised response: losses +-x; two rounds by hand."""
    x = 1.0
    p = math.exp(x) / (1 + math.exp(x))
    grid = LossGrid(x, -1, np.array([1 - p, 0.0, p]), 0.0)
    masses = {-2 * x: (1 - p) ** 2, 0.0: 2 * p * (1 - p), 2 * x: p**2}
    low, high = 0.0, 3.0
    for _ in range(60):
        middle = (low + high) / 2
        reached = sum(m * max(0.0, -math.expm1(middle - loss)) for loss, m in masses.items())
        low, high = (middle, high) if reached > delta else (low, middle)
    assert composed_epsilon([(grid, 2)], delta) == pytest.approx(high, abs=1e-6)


def test_fixed_size_samples_cost_more_than_poisson_ones_and_less_than_no_sampling():
    fixed = epsilon(fixed_size_event(20.0, 100, 10_000, MANY), 1e-6, relation=Relation.REPLACE_ONE)
    poisson = epsilon(poisson_event(20.0, 0.01, MANY), 1e-6, relation=Relation.REPLACE_ONE)
    assert poisson < fixed < epsilon(poisson_event(20.0, 1.0, MANY), 1e-6)
