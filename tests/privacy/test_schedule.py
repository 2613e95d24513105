"""Questions about a budget are asked of the same events that plans are made of."""

import pytest

from dpvd.errors import DpvdError
from dpvd.plan import PrivacyPlan
from dpvd.privacy import SamplingKind, sampled_event, sampling_rate, steps_in


@pytest.mark.parametrize("sampling", list(SamplingKind))
@pytest.mark.parametrize(("examples", "batch_size"), [(1437, 100), (60_000, 600), (10, 10)])
def test_the_event_is_that_of_a_plan(sampling, examples, batch_size):
    plan = PrivacyPlan(examples, batch_size, epochs=3.5, noise_multiplier=2.5, sampling=sampling)
    steps = steps_in(3.5, batch_size=batch_size, examples=examples)
    event = sampled_event(sampling, 2.5, batch_size=batch_size, examples=examples, steps=steps)
    assert event == plan.event()
    assert sampling_rate(batch_size, examples) == plan.sampling_prob


@pytest.mark.parametrize(
    ("epochs", "steps"), [(1e-9, 1), (1, 4), (1.2, 4), (1.21, 5), (0.3, 1), (3e7, 10**8)]
)
def test_epochs_are_rounded_up_to_whole_steps(epochs, steps):
    assert steps_in(epochs, batch_size=3, examples=10) == steps


@pytest.mark.parametrize(
    ("epochs", "batch_size", "examples", "words"),
    [
        (
            3.1e7,
            3,
            10,
            "3.1e\\+07 epochs of 10 examples in batches of 3 make more than 100,000,000 steps",
        ),
        (1e308, 3, 10, "more than 100,000,000 steps"),
        (float("nan"), 3, 10, "epochs must be a finite number above 0"),
        (0, 3, 10, "epochs must be a finite number above 0"),
        (1, 11, 10, "batch_size must be at most the number of examples, 10; got 11"),
        (1, 0, 10, "batch_size must be an integer"),
        (1, 1, 0, "examples must be an integer"),
    ],
)
def test_bad_questions_are_refused(epochs, batch_size, examples, words):
    with pytest.raises(DpvdError, match=words):
        steps_in(epochs, batch_size=batch_size, examples=examples)
