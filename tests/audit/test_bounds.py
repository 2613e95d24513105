"""Bounds on made-up scores of a known ε: seldom above it, and not far below it.

A bound at confidence 1 - p may pass the truth in a share p of all audits. Here p is a tenth, and
``AUDITS`` audits are made: more violations than ``MOST`` come about once in a million times where
the bound is valid, and nearly always where it is wrong by as much as taking |μ| makes it.
"""

import math

import numpy as np
import pytest
from scipy.stats import binom

from dpvd.audit import (
    Guesses,
    NoiseFamily,
    Scores,
    clopper_pearson,
    epsilon_by_f_dp,
    epsilon_by_guesses,
    epsilon_by_threshold,
    epsilon_of_gaussian_scores,
    guess,
    guesses_to_make,
    mu_of_gaussian_scores,
    p_value,
)
from dpvd.errors import DpvdError
from dpvd.plan import PrivacyPlan

DELTA = 1e-5
CONFIDENCE = 0.9
AUDITS = 300
MOST = int(binom.isf(1e-6, AUDITS, 1 - CONFIDENCE))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20170)


def family_of(epsilon: float, *, batch: int = 100, steps: int = 4) -> NoiseFamily:
    plan = PrivacyPlan(examples=100, batch_size=batch, steps=steps)
    return NoiseFamily(plan.calibrate(epsilon, DELTA))


def claim_of(family: NoiseFamily) -> float:
    return family.epsilon(family.claimed_noise, DELTA)


def normal_scores(rng: np.random.Generator, mu: float, trials: int) -> Scores:
    """Scores of a μ-Gaussian mechanism, in some unit and with some offset."""
    return Scores(3 * (rng.normal(size=trials) + mu) + 5, 3 * rng.normal(size=trials) + 5)


def sampled_scores(rng: np.random.Generator, family: NoiseFamily, trials: int) -> Scores:
    """Likelihood ratios of a plan that samples, with the canary and without."""
    z, q = family.claimed_noise, family.plan.sampling_prob
    noise = z * rng.normal(size=(2, family.plan.steps, trials))
    noise[0] += rng.random(noise[0].shape) < q
    ratios = np.log1p(q * np.expm1((noise - 0.5) / z**2)).sum(axis=1)
    return Scores(ratios[0], ratios[1])


@pytest.mark.parametrize("trials", [16, 200])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_gaussian_scores_seldom_pass_the_claim(
    epsilon: float, trials: int, rng: np.random.Generator
) -> None:
    family = family_of(epsilon)
    mu = family.mu(family.claimed_noise)
    bounds = [
        mu_of_gaussian_scores(normal_scores(rng, mu, trials), CONFIDENCE)
        for _ in range(10 * AUDITS)
    ]
    assert sum(bound > mu for bound in bounds) <= binom.isf(1e-6, 10 * AUDITS, 1 - CONFIDENCE)


def test_gaussian_scores_without_any_leakage_seldom_show_some(rng: np.random.Generator) -> None:
    """Where |μ| is taken for μ, one in five of these audits at 90 % finds leakage."""
    shown = [mu_of_gaussian_scores(normal_scores(rng, 0.0, 50), CONFIDENCE) for _ in range(3000)]
    assert sum(mu > 0 for mu in shown) <= binom.isf(1e-6, 3000, 1 - CONFIDENCE)
    backwards = normal_scores(rng, -3.0, 1000)
    assert mu_of_gaussian_scores(backwards, CONFIDENCE) == 0


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0, 10.0])
def test_gaussian_scores_reach_nine_tenths_of_the_claim(
    epsilon: float, rng: np.random.Generator
) -> None:
    family = family_of(epsilon)
    scores = normal_scores(rng, family.mu(family.claimed_noise), 500_000)
    bound = epsilon_of_gaussian_scores(scores, family, DELTA, 0.999)
    assert 0.9 * claim_of(family) <= bound <= claim_of(family)


@pytest.mark.parametrize("epsilon", [0.1, 4.0])
@pytest.mark.parametrize("batch", [20, 100])
def test_a_threshold_seldom_passes_the_claim(
    epsilon: float, batch: int, rng: np.random.Generator
) -> None:
    family = family_of(epsilon, batch=batch)
    claim = claim_of(family)

    def bound() -> float:
        if family.is_gaussian:
            scores = normal_scores(rng, family.mu(family.claimed_noise), 100)
        else:
            scores = sampled_scores(rng, family, 100)
        return epsilon_by_threshold(scores, family, DELTA, CONFIDENCE)

    audits = AUDITS if family.is_gaussian else 60
    violations = sum(bound() > claim for _ in range(audits))
    assert violations <= binom.isf(1e-6, audits, 1 - CONFIDENCE)


@pytest.mark.parametrize("batch", [20, 100])
def test_a_threshold_reaches_most_of_the_claim(batch: int, rng: np.random.Generator) -> None:
    family = family_of(4.0, batch=batch)
    if family.is_gaussian:
        scores = normal_scores(rng, family.mu(family.claimed_noise), 100_000)
    else:
        scores = sampled_scores(rng, family, 100_000)
    bound = epsilon_by_threshold(scores, family, DELTA, 0.999)
    assert 0.85 * claim_of(family) <= bound <= claim_of(family)


def test_the_threshold_is_chosen_on_other_scores_than_are_judged(rng: np.random.Generator) -> None:
    """The first quarter tells everything, the judged rest nothing: so does the bound."""
    scores = normal_scores(rng, 0.0, 400)
    for part, value in ((scores.inside, 1e6), (scores.outside, -1e6)):
        part[: len(part) // 4] = value
    assert epsilon_by_threshold(scores, family_of(1.0), DELTA, 0.999) == 0


def test_an_upper_bound_on_a_rate_is_that_of_clopper_and_pearson() -> None:
    for errors, trials in ((0, 10), (3, 50), (49, 50)):
        bound = clopper_pearson(errors, trials, 0.01)
        assert binom.cdf(errors, trials, bound) == pytest.approx(0.01)
    assert clopper_pearson(5, 5, 0.01) == 1


def coins_and_scores(
    rng: np.random.Generator, mu: float, canaries: int
) -> tuple[np.ndarray, np.ndarray]:
    included = rng.random(canaries) < 0.5
    return included, rng.normal(size=canaries) + mu * included


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
@pytest.mark.parametrize("share", [0.1, 1.0])
def test_one_run_seldom_passes_the_claim(
    epsilon: float, share: float, rng: np.random.Generator
) -> None:
    family = family_of(epsilon)
    claim = claim_of(family)
    violations = {"guesses": 0, "f-DP": 0}
    for _ in range(AUDITS):
        included, scores = coins_and_scores(rng, family.mu(family.claimed_noise), 200)
        guesses = guess(scores, included, round(share * 200))
        violations["guesses"] += epsilon_by_guesses(guesses, DELTA, CONFIDENCE) > claim
        violations["f-DP"] += epsilon_by_f_dp(guesses, family, DELTA, CONFIDENCE) > claim
    assert max(violations.values()) <= MOST, violations


def test_guesses_at_randomised_response_seldom_pass_its_epsilon(rng: np.random.Generator) -> None:
    """The mechanism that the bound is tight for: each coin is told, and told wrongly at times."""
    epsilon = 1.0
    share = math.exp(epsilon) / (1 + math.exp(epsilon))
    violations = 0
    for _ in range(AUDITS):
        included = rng.random(100) < 0.5
        answers = np.where(rng.random(100) < share, included, ~included)
        guesses = guess(answers.astype(float), included, 100)
        violations += epsilon_by_guesses(guesses, 0.0, CONFIDENCE) > epsilon
    assert violations <= MOST


def test_one_run_shows_most_of_what_it_can(rng: np.random.Generator) -> None:
    """Published figures: about .3 of ε by guesses, .5 by the whole curve."""
    family = family_of(8.0)
    made = guesses_to_make(10_000, family, 0.95, rng)
    included, scores = coins_and_scores(rng, family.mu(family.claimed_noise), 10_000)
    guesses = guess(scores, included, made)
    by_guesses = epsilon_by_guesses(guesses, DELTA, 0.95)
    by_curve = epsilon_by_f_dp(guesses, family, DELTA, 0.95)
    assert 0.15 * 8 < by_guesses < by_curve
    assert 0.6 * 8 < by_curve <= claim_of(family)


def test_the_p_value_without_delta_is_a_binomial_tail() -> None:
    """Steinke et al.: m = r, pure ε."""
    for epsilon, right in ((0.0, 60), (1.0, 80)):
        share = 1 / (1 + math.exp(-epsilon))
        expected = binom.sf(right - 1, 100, share)
        assert p_value(Guesses(100, 100, right), epsilon, 0.0) == pytest.approx(expected)
    assert p_value(Guesses(100, 100, 80), 1.0, 1e-3) > p_value(Guesses(100, 100, 80), 1.0, 0.0)
    assert p_value(Guesses(100, 100, 0), 1.0, 0.0) == 1


def test_the_boldest_guesses_are_made(rng: np.random.Generator) -> None:
    included = np.array([True, False, True, False, False, True])
    scores = np.array([3.0, -3.0, 0.1, 0.2, -2.0, -0.1])
    assert guess(scores, included, 3) == Guesses(6, 3, 2)  # out: -3; in: 3 and, wrongly, 0.2
    assert guess(scores, included, 0) == Guesses(6, 0, 0)


def test_no_guess_and_no_right_guess_show_nothing() -> None:
    for guesses in (Guesses(50, 0, 0), Guesses(50, 50, 0), Guesses(50, 50, 25)):
        assert epsilon_by_guesses(guesses, DELTA, 0.95) == 0
        assert epsilon_by_f_dp(guesses, family_of(1.0), DELTA, 0.95) == 0


def test_what_cannot_be_judged_is_refused() -> None:
    with pytest.raises(DpvdError, match="16 finite scores"):
        Scores(np.zeros(15), np.zeros(100))
    with pytest.raises(DpvdError, match="16 finite scores"):
        Scores(np.full(20, math.nan), np.zeros(20))
    with pytest.raises(DpvdError, match="cannot be"):
        Guesses(10, 5, 6)
    with pytest.raises(DpvdError, match="no claim"):
        NoiseFamily(PrivacyPlan(examples=10, batch_size=10, steps=1, noise_multiplier=0.0))
    with pytest.raises(DpvdError, match="by a threshold"):
        epsilon_of_gaussian_scores(
            Scores(np.arange(20.0), np.arange(20.0)), family_of(1.0, batch=20), DELTA, 0.9
        )


def test_scores_without_noise_show_an_unbounded_loss() -> None:
    scores = Scores(np.ones(20), np.zeros(20))
    assert epsilon_of_gaussian_scores(scores, family_of(1.0), DELTA, 0.9) == math.inf
