"""What a guarantee means for one person: never below the truth, and next to it where it is known.

The truth is in closed form for the Gaussian mechanism: with μ = √T/z, TPR = Φ(Φ⁻¹(FPR) + μ), even
odds are guessed rightly with probability Φ(μ/2), and the loss is normal with mean μ²/2 and
deviation μ. For one sampled step the truth is that of the pair of distributions which is attained.
"""

import itertools
import json
import math

import numpy as np
import pytest
from dp_accounting import ComposedDpEvent
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from dpvd.errors import DpvdError
from dpvd.privacy import (
    Interpretation,
    Relation,
    epsilon,
    fixed_size_event,
    gaussian_dp,
    interpret,
    poisson_event,
)
from dpvd.privacy.bounds import gaussian_log_delta
from dpvd.privacy.interpretation import PrivacyCurve, privacy_curve

DELTA = 1e-5
RATES = (0.1, 0.01, 0.001)
GAUSSIAN = [(20.0, 1), (5.0, 25), (37.3, 100), (1.0, 4), (0.5, 4)]
RELATIONS = list(Relation)
SAMPLED = [(2.0, 0.03, 300), (1.0, 0.01, 500), (8.0, 0.5, 100)]


def mu_of(noise_multiplier: float, steps: int) -> float:
    return math.sqrt(steps) / noise_multiplier


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("z", "steps"), GAUSSIAN)
def test_detection_is_bounded_from_above_and_closely(z, steps, relation):
    found = interpret(
        poisson_event(z, 1.0, steps), DELTA, relation=relation, false_positive_rates=RATES
    )
    for rate, bound in found.true_positive_rates.items():
        exact = float(ndtr(ndtri(rate) + mu_of(z, steps)))
        assert exact <= bound <= min(1.0, exact * 1.005)


@pytest.mark.parametrize(("z", "steps"), GAUSSIAN)
def test_even_guesses_are_bounded_from_above_and_closely(z, steps):
    exact = float(ndtr(mu_of(z, steps) / 2))
    assert exact <= interpret(poisson_event(z, 1.0, steps), DELTA).correct_guesses <= exact + 1e-4


@pytest.mark.parametrize("prior", [0.5, 0.01, 0.9])
@pytest.mark.parametrize(("z", "steps"), GAUSSIAN)
def test_beliefs_are_bounded_but_with_probability_delta(z, steps, prior):
    """The exact loss that is exceeded with probability δ is μ²/2 + μ Φ⁻¹(1 - δ)."""
    mu = mu_of(z, steps)
    loss = mu**2 / 2 - mu * float(ndtri(DELTA))
    exact = prior / (prior + (1 - prior) * math.exp(-loss))
    bound = interpret(poisson_event(z, 1.0, steps), DELTA, priors=(prior,)).posteriors[prior]
    close = prior / (prior + (1 - prior) * math.exp(-1.1 * loss))
    assert exact <= bound <= close


def test_the_bound_on_losses_holds_for_drawn_losses():
    """A million losses of a mechanism; at a failure of 1 % about 10,000 may exceed the bound."""
    mu = 0.8
    draws = np.random.default_rng(7).normal(mu**2 / 2, mu, 1_000_000)
    bound = privacy_curve(poisson_event(1 / mu, 1.0, 1)).loss_bound(0.01)
    above = int((draws >= bound).sum())
    assert 4_000 < above <= 10_000


def sampled_rate(z: float, q: float, rate: float) -> float:
    """The best true-positive rate against one sampled step: (1-q) N(0) + q N(1) against N(0)."""
    threshold = -float(ndtri(rate))
    return (1 - q) * rate + q * float(ndtr(1 / z - threshold))


def mirrored_rate(z: float, q: float, rate: float) -> float:
    """The same with the roles exchanged: N(0) against the mixture, low values accused."""

    def share(threshold: float) -> float:
        return (1 - q) * float(ndtr(threshold)) + q * float(ndtr(threshold - 1 / z)) - rate

    return float(ndtr(brentq(share, -40, 40)))


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize(("z", "q"), [(1.0, 0.1), (0.5, 0.3), (3.0, 0.02)])
def test_detection_of_one_sampled_step_is_never_below_the_best_test(z, q, rate):
    bound = interpret(poisson_event(z, q, 1), DELTA, false_positive_rates=(rate,))
    best = max(sampled_rate(z, q, rate), mirrored_rate(z, q, rate))
    assert best <= bound.true_positive_rates[rate] <= 1.05 * best


@pytest.mark.parametrize(("z", "steps"), GAUSSIAN)
def test_mu_without_sampling_is_root_steps_over_noise(z, steps):
    event = poisson_event(z, 1.0, steps)
    assert gaussian_dp(event) == pytest.approx(mu_of(z, steps), rel=1e-12)
    assert interpret(event, DELTA).mu_slack == 0


def test_mu_of_several_gaussian_releases_adds_up_in_squares():
    event = ComposedDpEvent([poisson_event(3.0, 1.0, 2), poisson_event(5.0, 1.0, 7)])
    assert gaussian_dp(event) == pytest.approx(math.sqrt(2 / 9 + 7 / 25), rel=1e-12)


@pytest.mark.parametrize(("z", "steps"), GAUSSIAN)
def test_mu_read_off_a_curve_is_that_of_the_mechanism(z, steps):
    """The search behind sampled events, on a curve whose μ is known; the event only bounds it."""
    event = poisson_event(z / 2, 0.999, steps)
    known = privacy_curve(poisson_event(z, 1.0, steps))
    found = gaussian_dp(event, curve=known)
    assert mu_of(z, steps) <= found <= mu_of(z, steps) * (1 + 2.5e-3)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("z", "q", "steps"), SAMPLED)
def test_mu_covers_epsilons_that_were_not_on_the_curve(z, q, steps, relation):
    event = poisson_event(z, q, steps)
    mu = gaussian_dp(event, relation=relation)
    assert mu < math.sqrt(steps) / z
    for delta in np.geomspace(1.7e-10, 0.01, 23):
        spent = epsilon(event, float(delta), relation=relation)
        assert spent == 0 or math.exp(gaussian_log_delta(1 / mu, spent)) >= delta


@pytest.mark.parametrize("relation", RELATIONS)
def test_more_noise_means_less_of_everything(relation):
    found = [
        interpret(poisson_event(z, 0.05, 200), DELTA, relation=relation) for z in (1.5, 3.0, 6.0)
    ]
    for less, more in itertools.pairwise(found):
        assert less.mu > more.mu
        assert less.correct_guesses > more.correct_guesses > 0.5
        for rate in (0.01, 0.001):
            assert less.true_positive_rates[rate] > more.true_positive_rates[rate] > rate
        for prior in (0.5, 0.01):
            assert less.posteriors[prior] > more.posteriors[prior] > prior


def test_the_curve_says_more_than_its_one_pair():
    """(1, 1e-5) alone would allow 73.1 % right guesses; this mechanism allows 55.4 %."""
    event = poisson_event(37.31, 1.0, 100)
    assert epsilon(event, DELTA) == pytest.approx(1.0, rel=1e-3)
    assert interpret(event, DELTA).correct_guesses < 0.56


def test_fixed_size_samples_have_an_interpretation_under_replace_one_only():
    event = fixed_size_event(3.0, 10, 100, 50)
    assert interpret(event, DELTA, relation="replace-one").mu < math.sqrt(50) / 3
    with pytest.raises(DpvdError, match="no theorem"):
        interpret(event, DELTA, relation="add-or-remove")


def test_without_noise_nothing_is_promised_and_no_mu_is_stated():
    event = ComposedDpEvent([poisson_event(2.0, 0.1, 5), poisson_event(0.0, 0.1, 1)])
    found = interpret(event, DELTA)
    assert found.mu is None
    assert set(found.true_positive_rates.values()) == {1.0}
    assert set(found.posteriors.values()) == {1.0}
    assert found.correct_guesses == 1.0
    with pytest.raises(DpvdError, match="no finite μ"):
        gaussian_dp(event)


def test_hardly_any_noise_is_interpreted_at_once():
    found = interpret(poisson_event(0.06, 0.5, 1000), DELTA)
    assert found.true_positive_rates[0.01] == 1.0
    assert found.mu == pytest.approx(math.sqrt(1000) / 0.06)


def test_no_event_changes_no_belief():
    found = interpret(poisson_event(1.0, 1.0, 0), DELTA)
    assert found.mu == 0
    assert found.true_positive_rates[0.01] == pytest.approx(0.01, abs=1e-9)
    assert found.posteriors[0.5] == pytest.approx(0.5, abs=1e-2)
    assert found.correct_guesses == pytest.approx(0.5, abs=1e-9)


def test_a_curve_that_ends_above_the_failure_promises_nothing_about_beliefs():
    curve = PrivacyCurve(np.array([1.0]), np.array([1e-6]))
    assert curve.loss_bound(1e-7) == math.inf
    assert curve.posterior(0.01, 1e-7) == 1.0


def test_plain_data_and_back():
    found = interpret(poisson_event(2.0, 0.1, 10), DELTA)
    assert Interpretation.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    for broken in ({}, {**found.to_dict(), "posteriors": [1]}, None):
        with pytest.raises(DpvdError, match="not an interpretation"):
            Interpretation.from_dict(broken)


@pytest.mark.parametrize("delta", [0.0, 1.0, float("nan")])
def test_delta_out_of_range_is_refused(delta):
    with pytest.raises(DpvdError, match="delta must lie strictly between 0 and 1"):
        interpret(poisson_event(2.0, 0.1, 10), delta)
