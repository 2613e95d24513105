"""One suite that every accountant runs through."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest

from dpvd.errors import DpvdError
from dpvd.privacy import AccountantName, Relation, epsilon, fixed_size_event, poisson_event
from dpvd.privacy.accountants import accountant_for
from dpvd.privacy.bounds import gaussian_epsilon, gaussian_log_delta
from tests.privacy.reference import epsilon_below, sampled

ADD_OR_REMOVE, REPLACE_ONE = Relation.ADD_OR_REMOVE, Relation.REPLACE_ONE
DELTA = 1e-5


@pytest.fixture(params=list(AccountantName))
def name(request):
    return request.param


def test_no_steps_cost_nothing(name):
    assert epsilon(poisson_event(1.0, 0.1, 0), DELTA, accountant=name) == 0
    assert (
        epsilon(fixed_size_event(1.0, 1, 9, 0), DELTA, accountant=name, relation=REPLACE_ONE) == 0
    )


def test_no_noise_costs_everything(name):
    assert epsilon(poisson_event(0.0, 0.1, 1), DELTA, accountant=name) == math.inf
    assert epsilon(dp_accounting.NonPrivateDpEvent(), DELTA, accountant=name) == math.inf


def test_tiny_noise_is_accounted_without_overflow(name):
    found = epsilon(poisson_event(0.01, 0.1, 3), DELTA, accountant=name)
    assert found > 5000


def test_more_steps_less_noise_smaller_delta_cost_more(name):
    def cost(z=2.0, q=0.05, steps=50, delta=DELTA):
        return epsilon(poisson_event(z, q, steps), delta, accountant=name)

    assert cost() < min(cost(z=1.8), cost(q=0.06), cost(steps=60), cost(delta=1e-6))


def test_counts_are_multiplied_once_however_the_event_is_nested(name):
    step = poisson_event(2.0, 0.05, 1)
    flat = poisson_event(2.0, 0.05, 60)
    repeat, both = dp_accounting.SelfComposedDpEvent, dp_accounting.ComposedDpEvent
    nested = both(
        [repeat(repeat(step, 5), 4), repeat(both([step, step]), 20), dp_accounting.NoOpDpEvent()]
    )
    assert epsilon(nested, DELTA, accountant=name) == epsilon(flat, DELTA, accountant=name)
    account = accountant_for(name, ADD_OR_REMOVE).compose(step, 20).compose(repeat(step, 20), 2)
    assert account.get_epsilon(DELTA) == epsilon(flat, DELTA, accountant=name)


def test_steps_of_different_kinds_add_up(name):
    both = dp_accounting.ComposedDpEvent(
        [poisson_event(3.0, 0.05, 50), poisson_event(20.0, 1.0, 2)]
    )
    found = epsilon(both, DELTA, accountant=name)
    assert found > epsilon(poisson_event(3.0, 0.05, 50), DELTA, accountant=name)
    assert found > epsilon(poisson_event(20.0, 1.0, 2), DELTA, accountant=name)
    alike = dp_accounting.ComposedDpEvent(
        [poisson_event(3.0, 0.05, 50), poisson_event(3.0001, 0.05, 50)]
    )
    assert epsilon(alike, DELTA, accountant=name) == pytest.approx(
        epsilon(poisson_event(3.0, 0.05, 100), DELTA, accountant=name), rel=2e-3
    )


SUPPORTED = {
    ("pld", "poisson"): {ADD_OR_REMOVE, REPLACE_ONE},
    ("rdp", "poisson"): {ADD_OR_REMOVE},
    ("zcdp", "poisson"): {ADD_OR_REMOVE},
    ("advanced", "poisson"): {ADD_OR_REMOVE},
    **{(name.value, "fixed"): {REPLACE_ONE} for name in AccountantName},
    **{(name.value, "full"): {ADD_OR_REMOVE, REPLACE_ONE} for name in AccountantName},
}
EVENTS = {
    "poisson": poisson_event(2.0, 0.1, 5),
    "fixed": fixed_size_event(2.0, 10, 100, 5),
    "full": poisson_event(2.0, 1.0, 5),
}


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("kind", list(EVENTS))
def test_what_has_no_theorem_is_refused_by_name(name, kind, relation):
    if relation in SUPPORTED[name.value, kind]:
        assert 0 < epsilon(EVENTS[kind], DELTA, accountant=name, relation=relation) < 50
        assert accountant_for(name, relation).supports(EVENTS[kind])
    else:
        assert not accountant_for(name, relation).supports(EVENTS[kind])
        with pytest.raises(
            DpvdError, match=f"accountant {name} has no theorem for .* it supports: "
        ):
            epsilon(EVENTS[kind], DELTA, accountant=name, relation=relation)


def test_events_of_other_mechanisms_are_refused(name):
    for event in (
        dp_accounting.LaplaceDpEvent(1.0),
        dp_accounting.PoissonSampledDpEvent(0.1, EVENTS["full"]),
    ):
        with pytest.raises(DpvdError, match="no accountant here knows the event"):
            epsilon(event, DELTA, accountant=name)
        assert not accountant_for(name, ADD_OR_REMOVE).supports(event)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_delta_out_of_range_is_refused(name, delta):
    with pytest.raises(DpvdError, match="delta must lie strictly between 0 and 1"):
        epsilon(EVENTS["poisson"], delta, accountant=name)


GRID = list(itertools.product([0.6, 1.0, 4.0, 30.0], [0.003, 0.05, 1.0], [1, 2000], [1e-8, 1e-3]))


@pytest.mark.parametrize(("z", "q", "steps", "delta"), GRID)
def test_accountants_are_ordered(z, q, steps, delta):
    event = poisson_event(z, q, steps)
    pld, rdp, zcdp, _ = (epsilon(event, delta, accountant=name) for name in AccountantName)
    assert pld <= rdp * (1 + 1e-3)  # the grid of pld may cost up to 0.1 %
    assert rdp <= zcdp * (1 + 1e-12)


@pytest.mark.parametrize(
    ("z", "batch", "steps", "delta"), [(1.0, 10, 50, 1e-5), (4.0, 100, 500, 1e-6)]
)
def test_accountants_are_ordered_for_fixed_size_samples(z, batch, steps, delta):
    event = fixed_size_event(z, batch, 1000, steps)
    pld, rdp, zcdp, _ = (
        epsilon(event, delta, accountant=n, relation=REPLACE_ONE) for n in AccountantName
    )
    assert 0 < pld <= rdp <= zcdp * (1 + 1e-12)


INDEPENDENT = [
    (1.0, 0.1, 60, 1e-5, 4e-4),
    (0.7, 0.01, 300, 1e-5, 3e-5),
    (5.0, 0.2, 200, 1e-6, 5e-5),
]


@pytest.mark.parametrize(("z", "q", "steps", "delta", "spacing"), INDEPENDENT)
def test_no_accountant_falls_below_an_independent_account(z, q, steps, delta, spacing):
    below = epsilon_below(sampled(1.0, q), sampled(0.0, q), z, steps, delta, spacing)
    poisson, fixed = poisson_event(z, q, steps), fixed_size_event(z, round(q * 1000), 1000, steps)
    assert below > 0.05
    for name in AccountantName:
        assert epsilon(poisson, delta, accountant=name) >= below
        assert epsilon(fixed, delta, accountant=name, relation=REPLACE_ONE) >= below
    assert epsilon(poisson, delta) <= 1.01 * below + steps * spacing


@pytest.mark.parametrize(("z", "q", "steps", "delta", "spacing"), INDEPENDENT)
def test_poisson_under_replace_one_matches_an_independent_account(z, q, steps, delta, spacing):
    below = epsilon_below(sampled(0.5, q), sampled(-0.5, q), z, steps, delta, spacing)
    found = epsilon(poisson_event(z, q, steps), delta, relation=REPLACE_ONE)
    assert below <= found <= 1.01 * below + steps * spacing


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize(("z", "steps"), [(0.8, 1), (5.0, 100), (2000.0, 1_000_000)])
def test_full_batches_have_the_exact_gaussian_account(name, relation, z, steps):
    found = epsilon(poisson_event(z, 1.0, steps), DELTA, accountant=name, relation=relation)
    exact = dp_accounting.get_epsilon_gaussian(z / math.sqrt(steps), DELTA)
    assert found >= exact * (1 - 1e-9)
    if name is AccountantName.PLD:
        assert found == pytest.approx(exact, rel=1e-9)
        whole = fixed_size_event(z, 100, 100, steps)
        assert epsilon(whole, DELTA, relation=REPLACE_ONE) == found


def test_a_million_noisy_steps_are_accounted_in_bounded_memory():
    found = epsilon(poisson_event(60.0, 0.01, 1_000_000), DELTA)
    # Many small steps are nearly one Gaussian of multiplier z / (q sqrt(T)); that limit is
    # approached.
    limit = float(gaussian_epsilon(60.0 / (0.01 * 1000), DELTA))
    assert limit * 0.999 <= found <= limit * 1.01


def test_analytic_gaussian_is_never_below_its_own_delta():
    deltas = np.geomspace(1e-12, 0.3, 40)
    for z in (0.1, 1.0, 30.0):
        found = gaussian_epsilon(z, deltas)
        assert np.all(gaussian_log_delta(z, found) <= np.log(deltas))
        assert np.all(np.diff(found) <= 0)
