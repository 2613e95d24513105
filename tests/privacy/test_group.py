"""The cost of several rows together is never stated below what it is."""

import math

import dp_accounting
import numpy as np
import pytest
from scipy.stats import binom, norm

from dpvd.errors import DpvdError
from dpvd.privacy import (
    Relation,
    cyclic_event,
    epsilon,
    fixed_size_event,
    group_epsilon,
    group_event,
    poisson_event,
)
from dpvd.privacy.bounds import gaussian_log_delta
from dpvd.privacy.calibration import noise_multiplier_for

ADD = Relation.ADD_OR_REMOVE


def test_full_batches_cost_a_group_what_k_times_less_noise_costs():
    event = group_event(poisson_event(30.0, 1.0, 50), 5, relation=ADD)
    assert epsilon(event, 1e-5) == epsilon(poisson_event(6.0, 1.0, 50), 1e-5)


def test_a_group_of_one_costs_what_one_costs():
    event = poisson_event(2.0, 0.05, 100)
    alone = epsilon(event, 1e-5)
    assert alone <= epsilon(group_event(event, 1, relation=ADD), 1e-5) <= alone * (1 + 1e-4)


@pytest.mark.parametrize(("z", "q", "rows"), [(2.0, 0.1, 3), (6.0, 0.3, 4), (1.5, 0.02, 2)])
def test_one_step_is_never_below_the_mixture_of_all_ways_to_be_sampled(z, q, rows):
    """δ of Σ_j Bin(j; k, q) N(j) over N(0), and the reverse, by integration on a fine grid."""
    x = np.linspace(-40 * z, 40 * z + rows, 2_000_001)
    width = x[1] - x[0]
    without = norm.pdf(x, 0, z)
    with_group = sum(binom.pmf(j, rows, q) * norm.pdf(x, j, z) for j in range(rows + 1))
    event = group_event(poisson_event(z, q, 1), rows, relation=ADD)
    for delta in (1e-2, 1e-4):
        bound = math.exp(epsilon(event, delta))
        for one, other in ((with_group, without), (without, with_group)):
            assert np.maximum(one - bound * other, 0).sum() * width <= delta * (1 + 1e-6)


@pytest.mark.parametrize("q", [1.0, 0.05])
def test_larger_groups_cost_more(q):
    z = noise_multiplier_for(1.0, 1e-5, lambda noise: poisson_event(noise, q, 50))
    event = poisson_event(z, q, 50)
    costs = [epsilon(group_event(event, rows, relation=ADD), 1e-5) for rows in (1, 2, 5, 10)]
    assert costs == sorted(costs)
    assert costs[1] > 1.5 * costs[0]


def test_full_batches_agree_with_the_gaussian_profile():
    mu = 3 * math.sqrt(50) / 30
    spent = epsilon(group_event(poisson_event(30.0, 1.0, 50), 3, relation=ADD), 1e-5)
    assert math.exp(gaussian_log_delta(1 / mu, spent)) == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.parametrize(
    ("event", "relation"),
    [
        (fixed_size_event(2.0, 10, 100, 5), "add-or-remove"),
        (poisson_event(2.0, 0.1, 5), "replace-one"),
    ],
)
def test_what_has_no_argument_is_refused(event, relation):
    with pytest.raises(DpvdError, match="add-or-remove relation, Poisson sampling and"):
        group_event(event, 2, relation=relation)


@pytest.mark.parametrize("rows", [0, -1, 1.5, True])
def test_a_group_has_a_whole_number_of_rows(rows):
    with pytest.raises(DpvdError, match="rows must be an integer of at least 1"):
        group_event(poisson_event(2.0, 0.1, 5), rows, relation=ADD)


@pytest.mark.parametrize("rows", [2, 5, 10])
def test_the_smaller_bound_is_never_below_the_exact_cost_of_full_batches(rows):
    event = poisson_event(40.0, 1.0, 100)
    exact = epsilon(poisson_event(40.0 / rows, 1.0, 100), 1e-6)
    found = group_epsilon(event, 1e-6, rows, relation=ADD)
    assert found == exact
    chained = group_epsilon(event, 1e-6, rows, relation="replace-one")  # the chain alone
    assert exact <= chained <= 2 * exact


@pytest.mark.parametrize(("z", "q", "rows"), [(2.0, 0.1, 3), (6.0, 0.3, 4), (0.8, 0.02, 10)])
def test_the_smaller_bound_holds_for_the_mixture_of_all_ways_to_be_sampled(z, q, rows):
    x = np.linspace(-40 * z, 40 * z + rows, 2_000_001)
    width = x[1] - x[0]
    without = norm.pdf(x, 0, z)
    with_group = sum(binom.pmf(j, rows, q) * norm.pdf(x, j, z) for j in range(rows + 1))
    for delta in (1e-2, 1e-4):
        bound = math.exp(group_epsilon(poisson_event(z, q, 1), delta, rows, relation=ADD))
        for one, other in ((with_group, without), (without, with_group)):
            assert np.maximum(one - bound * other, 0).sum() * width <= delta * (1 + 1e-6)


def test_where_rows_are_rarely_drawn_together_the_chain_says_less():
    event = poisson_event(4.7, 0.07, 245)
    scaled = epsilon(group_event(event, 10, relation=ADD), 1e-6)
    assert group_epsilon(event, 1e-6, 10, relation=ADD) < scaled / 5


def test_a_group_of_one_is_accounted_as_one():
    event = fixed_size_event(3.0, 10, 100, 50)
    alone = epsilon(event, 1e-5, relation="replace-one")
    assert group_epsilon(event, 1e-5, 1, relation="replace-one") == alone


def test_without_noise_no_group_has_a_finite_cost():
    assert group_epsilon(poisson_event(0.0, 0.1, 3), 1e-5, 2, relation=ADD) == math.inf


@pytest.mark.parametrize("composed", [False, True])
def test_correlated_noise_has_the_chain_only(composed):
    """Two rows of a group are in different steps of a cycle, which have noise in common."""
    event = cyclic_event(30.0, 1.0, 4, 200)
    if composed:
        event = dp_accounting.ComposedDpEvent([poisson_event(50.0, 1.0, 1), event])
    with pytest.raises(DpvdError, match="independent noise only"):
        group_event(event, 2, relation=ADD)
    together = epsilon(group_event(poisson_event(30.0, 1.0, 50), 2, relation=ADD), 1e-5)
    assert together < group_epsilon(event, 1e-5, 2, relation=ADD) < math.inf
    assert group_epsilon(event, 1e-5, 1, relation=ADD) == epsilon(event, 1e-5)
