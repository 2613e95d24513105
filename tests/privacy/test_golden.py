"""Values from elsewhere, as data with their source."""

import dp_accounting
import pytest
from dp_accounting.rdp import RdpAccountant

from dpvd.privacy import (
    AccountantName,
    SamplingKind,
    epsilon,
    fixed_size_event,
    noise_multiplier_for,
    poisson_event,
)
from dpvd.privacy.bounds import advanced_composition, rdp_to_epsilon, zcdp_to_epsilon
from dpvd.privacy.events import Step
from dpvd.privacy.renyi import INTEGER_ORDERS, integer_rdp

# z, q, T, delta, RDP, PLD: dp-accounting 0.6; Microsoft's PRV accountant agrees with PLD to 1e-4.
SAMPLED_GAUSSIAN = [
    (1.0, 0.01, 1000, 1e-5, 2.1014, 1.8282),
    (1.1, 256 / 60000, 14100, 1e-5, 2.6003, 2.3852),
    (1.3, 0.004, 3750, 1e-5, 0.9220, 0.8336),
    (0.7, 64 / 60000, 938, 1e-5, 1.6750, 0.6388),
    (4.0, 0.01, 10000, 1e-5, 1.0355, 0.9470),
    (1.5, 0.04, 2250, 1e-5, 7.3291, 6.7688),
    (2.0, 1.0, 100, 1e-5, 35.082, 33.104),
    (8.0, 100 / 1437, 700, 1e-4, 0.7979, 0.7125),
]


@pytest.mark.parametrize(("z", "q", "steps", "delta", "rdp", "pld"), SAMPLED_GAUSSIAN)
def test_published_epsilons_of_the_sampled_gaussian(z, q, steps, delta, rdp, pld):
    event = poisson_event(z, q, steps)
    assert epsilon(event, delta, accountant=AccountantName.RDP) == pytest.approx(rdp, rel=5e-4)
    assert epsilon(event, delta) == pytest.approx(pld, rel=5e-4)


@pytest.mark.parametrize(("z", "q", "steps", "delta"), [row[:4] for row in SAMPLED_GAUSSIAN])
def test_renyi_account_is_as_tight_as_the_library(z, q, steps, delta):
    ours = epsilon(poisson_event(z, q, steps), delta, accountant=AccountantName.RDP)
    theirs = RdpAccountant().compose(poisson_event(z, q, steps)).get_epsilon(delta)
    assert theirs * (1 - 1e-3) <= ours <= theirs * (1 + 1e-9)


def test_fixed_size_sampling_under_replace_one():
    event = fixed_size_event(4.0, 600, 60000, 10000)
    found = epsilon(event, 1e-5, accountant="rdp", relation="replace-one")
    library = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    assert found == pytest.approx(2.2211, abs=1e-4)  # dp-accounting 0.6
    assert found == pytest.approx(library.compose(event).get_epsilon(1e-5), rel=1e-6)


# rho, delta = 1e-5, classic rho + 2 sqrt(rho log 1/delta), tight conversion: computed
# independently.
@pytest.mark.parametrize(
    ("rho", "classic", "tight"),
    [
        (0.01, 0.68861, 0.54573),
        (0.1, 2.24597, 1.91424),
        (0.5, 5.29853, 4.72839),
        (1.0, 7.78614, 7.07720),
        (5.0, 20.17427, 19.04726),
    ],
)
def test_zcdp_conversion(rho, classic, tight):
    assert zcdp_to_epsilon(rho, 1e-5) == pytest.approx(tight, abs=2e-5)
    assert tight < classic


@pytest.mark.parametrize(
    ("each", "count", "slack", "total"),
    [(0.1, 100, 1e-5, 5.85024), (0.01, 1000, 1e-5, 1.61793), (0.05, 20, 1e-3, 0.88240)],
)
def test_advanced_composition_of_pure_mechanisms(each, count, slack, total):
    assert float(advanced_composition([(each, count)], slack)) == pytest.approx(total, abs=1e-5)
    split = [(each, count // 2), (each, count - count // 2)]
    assert float(advanced_composition(split, slack)) == pytest.approx(total, abs=1e-5)


# delta = 1e-5: q, T, epsilon, then the noise multiplier by advanced, RDP and PLD (dp-accounting 0.6
# on a grid of 1e-4 or 1e-3; a finer grid is tighter, so ours may be below by up to 3 % and never
# above), and zCDP with truncations of 5 and more (ours adds 2, 3 and 4, and is tighter at epsilon
# 10).
PAPER_SETTINGS = [
    (0.01, 20000, 10.0, 6.54, 1.00, 0.963, 1.02),
    (0.01, 20000, 1.0, 34.6, 5.78, 5.46, 5.78),
    (0.01, 20000, 0.1, 283.0, 48.1, 44.2, 48.1),
    (0.05, 2000, 10.0, 8.72, 1.39, 1.325, 1.44),
    (0.05, 2000, 1.0, 50.6, 9.12, 8.43, 9.12),
    (0.05, 2000, 0.1, 417.0, 76.1, 68.9, 76.1),
]


@pytest.mark.parametrize(("q", "steps", "budget", "advanced", "rdp", "pld", "zcdp"), PAPER_SETTINGS)
def test_noise_for_the_settings_of_the_paper(q, steps, budget, advanced, rdp, pld, zcdp):
    found = {
        name: noise_multiplier_for(
            budget, 1e-5, lambda z: poisson_event(z, q, steps), accountant=name
        )
        for name in AccountantName
    }
    assert found["advanced"] == pytest.approx(advanced, rel=3e-3)
    assert found["rdp"] == pytest.approx(rdp, rel=3e-3)
    assert 0.97 * pld <= found["pld"] <= 1.002 * pld
    assert found["rdp"] * 0.9999 <= found["zcdp"] <= 1.002 * zcdp
    assert found["zcdp"] >= 0.97 * zcdp


@pytest.mark.parametrize(("q", "steps", "z"), [(0.01, 20000, 1.02), (0.05, 2000, 1.44)])
def test_zcdp_with_truncation_five_gives_the_reference_value(q, steps, z):
    few = INTEGER_ORDERS <= 5
    rdp = steps * integer_rdp(Step(z, SamplingKind.POISSON, q))[few]
    rho = (rdp / INTEGER_ORDERS[few]).max()
    assert rdp_to_epsilon(INTEGER_ORDERS[few], rho * INTEGER_ORDERS[few], 1e-5) == pytest.approx(
        10, rel=5e-3
    )


@pytest.mark.parametrize(
    ("q", "steps", "sigma", "true_epsilon"),
    [
        (0.01, 20000, 2.68, 0.995),
        (0.01, 20000, 8.24, 0.29),
        (0.05, 2000, 2.97, 1.475),
        (0.05, 2000, 9.73, 0.40),
    ],
)
def test_what_the_published_sigmas_buy(q, steps, sigma, true_epsilon):
    assert epsilon(poisson_event(2 * sigma, q, steps), 1e-5) == pytest.approx(
        true_epsilon, rel=0.02
    )


@pytest.mark.parametrize(("z", "claimed"), [(1.0, 1.57), (0.6, 2.67)])
def test_plain_zcdp_would_under_report_and_ours_does_not(z, claimed):
    event = poisson_event(z, 0.01, 1000)
    naive = zcdp_to_epsilon(1000 * 0.01**2 / (2 * z**2), 1e-5)
    assert naive < claimed + 0.01
    assert naive < epsilon(event, 1e-5) < epsilon(event, 1e-5, accountant="zcdp")
