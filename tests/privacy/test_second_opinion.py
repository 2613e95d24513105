"""The second computation of ε agrees with the account, and with published values."""

import math

import pytest
from dp_accounting import ComposedDpEvent, NonPrivateDpEvent, NoOpDpEvent

from dpvd.errors import DpvdError
from dpvd.privacy import Relation, epsilon, fixed_size_event, poisson_event, second_opinion

# Noise multiplier, sampling probability, steps, δ and ε by numerical composition, computed with
# Google's dp-accounting and Microsoft's prv_accountant.
GOLDEN = [
    (1.0, 0.01, 1000, 1e-5, 1.8282),
    (1.1, 256 / 60000, 14100, 1e-5, 2.3852),
    (0.7, 64 / 60000, 938, 1e-5, 0.6388),
    (4.0, 0.01, 10000, 1e-5, 0.9470),
    (2.0, 1.0, 100, 1e-5, 33.104),
    (8.0, 100 / 1437, 700, 1e-4, 0.7125),
]


@pytest.mark.parametrize(("z", "q", "steps", "delta", "expected"), GOLDEN)
def test_published_values(z, q, steps, delta, expected):
    found = second_opinion(poisson_event(z, q, steps), delta)
    assert found == pytest.approx(expected, rel=2e-3, abs=1e-4)


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize(
    ("z", "q", "steps", "delta"), [(0.6, 0.02, 50, 1e-6), (20, 0.3, 500, 1e-7), (50, 1, 40, 1e-5)]
)
def test_it_agrees_with_the_account(z, q, steps, delta, relation):
    event = poisson_event(z, q, steps)
    account = epsilon(event, delta, relation=relation)
    assert second_opinion(event, delta, relation) == pytest.approx(account, rel=2e-3)


def test_steps_with_different_noise_are_composed():
    event = ComposedDpEvent(
        [poisson_event(50, 1, 1), poisson_event(30, 1, 2), poisson_event(12, 0.2, 60)]
    )
    assert second_opinion(event, 1e-5) == pytest.approx(epsilon(event, 1e-5), rel=2e-3)


def test_batches_of_a_fixed_size_are_not_above_their_bound():
    event = fixed_size_event(4, 600, 60000, 1000)
    bound = epsilon(event, 1e-5, relation=Relation.REPLACE_ONE)
    assert 0.5 * bound < second_opinion(event, 1e-5, Relation.REPLACE_ONE) <= bound * 1.001


def test_the_extremes():
    assert second_opinion(NoOpDpEvent(), 1e-5) == 0
    assert second_opinion(NonPrivateDpEvent(), 1e-5) == math.inf
    assert second_opinion(poisson_event(1e4, 0.01, 1), 1e-5) == 0
    with pytest.raises(DpvdError, match="delta"):
        second_opinion(NoOpDpEvent(), 1.0)
