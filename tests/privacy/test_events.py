"""Names and events: what is accepted, and what is refused."""

import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent

from dpvd.errors import DpvdError
from dpvd.privacy import AccountantName, Relation, SamplingKind, fixed_size_event, poisson_event
from dpvd.privacy.events import Step, count_steps


def test_names_are_parsed():
    assert AccountantName.parse("moments") is AccountantName.RDP
    assert [AccountantName.parse(str(name)) for name in AccountantName] == list(AccountantName)
    assert [Relation.parse(str(relation)) for relation in Relation] == list(Relation)
    with pytest.raises(
        DpvdError, match="accountant must be one of pld, rdp, zcdp, advanced; got 'gdp'"
    ):
        AccountantName.parse("gdp")
    with pytest.raises(DpvdError, match="relation must be one of add-or-remove, replace-one"):
        Relation.parse("swap")


def test_events_become_counted_steps():
    assert count_steps(poisson_event(2.0, 0.1, 7)) == {Step(2.0, SamplingKind.POISSON, 0.1): 7}
    assert count_steps(poisson_event(2.0, 1.0, 7)) == {Step(2.0): 7}
    assert count_steps(fixed_size_event(2.0, 10, 40, 7), times=2) == {
        Step(2.0, SamplingKind.FIXED_SIZE, 0.25): 14
    }
    assert count_steps(poisson_event(2.0, 0.1, 0)) == {}
    both = ComposedDpEvent(
        [poisson_event(2.0, 0.1, 7), poisson_event(2.0, 0.1, 1), poisson_event(3.0, 1.0, 4)]
    )
    assert count_steps(both, times=2) == {Step(2.0, SamplingKind.POISSON, 0.1): 16, Step(3.0): 8}


def test_a_sample_of_everybody_is_no_sample():
    """Not so for a fixed size: that says something of the neighbouring data set, too."""
    assert poisson_event(2.0, 1.0, 5).event == GaussianDpEvent(2.0)
    everybody = PoissonSampledDpEvent(1.0, GaussianDpEvent(2.0))
    assert count_steps(everybody) == {Step(2.0): 1}
    assert count_steps(fixed_size_event(2.0, 40, 40, 7)) == {
        Step(2.0, SamplingKind.FIXED_SIZE, 1.0): 7
    }


@pytest.mark.parametrize(
    ("z", "q", "steps", "message"),
    [
        (-1.0, 0.1, 1, "noise_multiplier"),
        (1.0, 0.0, 1, "sampling_prob"),
        (1.0, 1.1, 1, "sampling_prob"),
        (1.0, 0.1, -1, "steps"),
        (1.0, 0.1, 1.5, "steps"),
        (1.0, 0.1, True, "steps"),
    ],
)
def test_poisson_events_out_of_range_are_refused(z, q, steps, message):
    with pytest.raises(DpvdError, match=f"{message} must be"):
        poisson_event(z, q, steps)


@pytest.mark.parametrize(
    ("batch", "examples", "message"), [(0, 5, "batch_size"), (6, 5, "at most"), (1, 0, "examples")]
)
def test_fixed_size_events_out_of_range_are_refused(batch, examples, message):
    with pytest.raises(DpvdError, match=message):
        fixed_size_event(1.0, batch, examples, 1)
