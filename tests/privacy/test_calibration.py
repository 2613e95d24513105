"""Calibration never returns the unsafe side, and wastes nothing."""

import itertools
import math
import time

import pytest

from dpvd.errors import DpvdError
from dpvd.privacy import (
    AccountantName,
    Relation,
    epsilon,
    epsilon_curve,
    fixed_size_event,
    noise_multiplier_for,
    poisson_event,
    steps_for,
)
from dpvd.privacy.bisect import largest_within_budget

FAST = [AccountantName.RDP, AccountantName.ZCDP, AccountantName.ADVANCED]
WIDE = list(itertools.product([0.05, 1.0, 20.0], [1e-8, 1e-4], [0.001, 0.05, 1.0], [1, 20000]))


def check(budget, delta, event_for, name, relation=Relation.ADD_OR_REMOVE):
    z = noise_multiplier_for(budget, delta, event_for, accountant=name, relation=relation)
    used = epsilon(event_for(z), delta, accountant=name, relation=relation)
    assert 0.9998 * budget <= used <= budget


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize(("budget", "delta", "q", "steps"), WIDE)
def test_calibrated_noise_keeps_the_budget(name, budget, delta, q, steps):
    check(budget, delta, lambda z: poisson_event(z, q, steps), name)


PLD_GRID = [
    *itertools.product([0.05, 1.0, 20.0], [1e-8, 1e-3], [1.0], [1, 20000]),
    *itertools.product([0.05, 20.0], [1e-8, 1e-3], [0.05], [100, 20000]),
    (1.0, 1e-5, 0.004, 20000),
    (0.05, 1e-5, 0.001, 20000),
]


@pytest.mark.parametrize(("budget", "delta", "q", "steps"), PLD_GRID)
def test_calibrated_noise_keeps_the_budget_by_distributions(budget, delta, q, steps):
    check(budget, delta, lambda z: poisson_event(z, q, steps), AccountantName.PLD)


@pytest.mark.parametrize("name", list(AccountantName))
@pytest.mark.parametrize("budget", [0.5, 8.0])
def test_calibrated_noise_keeps_the_budget_under_replace_one(name, budget):
    check(budget, 1e-5, lambda z: fixed_size_event(z, 50, 1000, 100), name, Relation.REPLACE_ONE)


def test_calibrated_noise_for_poisson_under_replace_one():
    check(
        1.0, 1e-5, lambda z: poisson_event(z, 0.05, 100), AccountantName.PLD, Relation.REPLACE_ONE
    )


def test_where_every_noise_is_enough_the_least_is_returned():
    # One step that misses the example with probability 0.999 is (0, 0.001)-private whatever the
    # noise.
    assert (
        noise_multiplier_for(1.0, 0.01, lambda z: poisson_event(z, 0.001, 1), accountant="advanced")
        == 1e-3
    )


def test_a_budget_out_of_reach_is_refused():
    with pytest.raises(DpvdError, match=r"no noise multiplier up to 1e\+07 .* larger epsilon"):
        noise_multiplier_for(
            1e-9, 1e-12, lambda z: poisson_event(z, 1.0, 10**8), accountant="advanced"
        )


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_a_budget_that_is_none_is_refused(bad):
    with pytest.raises(DpvdError, match="epsilon must be a finite number above 0"):
        noise_multiplier_for(bad, 1e-5, lambda z: poisson_event(z, 0.1, 10))
    with pytest.raises(DpvdError, match="epsilon must be a finite number above 0"):
        steps_for(bad, 1e-5, lambda steps: poisson_event(1.0, 0.1, steps))


@pytest.mark.parametrize("name", list(AccountantName))
@pytest.mark.parametrize(
    ("z", "q", "budget"), [(1.0, 0.05, 3.0), (8.0, 1.0, 1.0), (30.0, 0.1, 0.3)]
)
def test_one_step_more_would_pass_the_budget(name, z, q, budget):
    def spent(steps):
        return epsilon(poisson_event(z, q, steps), 1e-5, accountant=name)

    steps = steps_for(budget, 1e-5, lambda steps: poisson_event(z, q, steps), accountant=name)
    assert spent(steps) <= budget < spent(steps + 1)


def test_no_step_is_affordable_or_all_are():
    assert steps_for(0.1, 1e-5, lambda steps: poisson_event(0.5, 1.0, steps)) == 0
    assert steps_for(1.0, 1e-5, lambda steps: poisson_event(1e6, 1.0, steps)) == 10**8


def test_the_curve_is_the_account_at_each_point():
    steps = [0, 1, 10, 40]
    curve = epsilon_curve(lambda count: poisson_event(3.0, 0.25, count), steps, 1e-5)
    assert curve == [epsilon(poisson_event(3.0, 0.25, count), 1e-5) for count in steps]
    assert curve[0] == 0
    assert curve == sorted(curve)


def test_calibration_of_a_long_run_takes_seconds_at_most():
    begin = time.perf_counter()
    noise_multiplier_for(1.017, 1e-5, lambda z: poisson_event(z, 0.01, 20000))
    assert time.perf_counter() - begin < 12  # 0.5 s on an idle machine


@pytest.mark.parametrize("jump", [0.7, 3.0, 900.0])
def test_the_search_finds_the_edge_of_a_step_function(jump):
    def spent(x):
        return math.inf if x < jump else 0.0

    found = largest_within_budget(spent, 1.0, start=1.0, cheapest=1e7, costliest=1e-3)
    assert jump <= found <= jump * (1 + 1e-8)


@pytest.mark.parametrize("edge", [1, 2, 999, 1000, 1001, 77_777])
def test_the_search_for_whole_numbers_is_exact(edge):
    found = largest_within_budget(
        lambda n: n / edge, 1.0, start=1000, cheapest=1, costliest=10**8, whole=True
    )
    assert found == edge
