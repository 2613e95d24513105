"""The default rule: a function of public numbers that reaches what the documentation says."""

import math

import pytest

from dpvd.data import load
from dpvd.errors import DpvdError
from dpvd.grads import Clipping, ClippingMode
from dpvd.plan import PrivacyPlan
from dpvd.runs import (
    NetworkRule,
    RunOptions,
    default_batch_size,
    default_clipping,
    default_steps,
    execute,
    ordinary_recipe,
    prepare_run,
    private_recipe,
)
from dpvd.runs.recipes import Cnn, Mlp

DENSE = Mlp(64, 1000, 10).rule()
CONVOLUTIONAL = Cnn(28 * 28, 32, 10, (28, 28)).rule()


def plan(
    examples: int,
    epsilon: float,
    batch_size: int | None = None,
    rule: NetworkRule = DENSE,
    clipping: Clipping | None = None,
) -> PrivacyPlan:
    size = default_batch_size(examples, private=True) if batch_size is None else batch_size
    steps = default_steps(examples, size, rule, private=True)
    return PrivacyPlan(
        examples, size, steps=steps, clipping=clipping or default_clipping()
    ).calibrate(epsilon, 1e-5)


@pytest.mark.parametrize(
    ("examples", "batch_size", "steps"), [(1437, 1437, 100), (60_000, 2048, 309), (1, 1, 100)]
)
def test_private_sizes(examples, batch_size, steps):
    assert default_batch_size(examples, private=True) == batch_size
    assert default_steps(examples, batch_size, DENSE, private=True) == steps
    assert default_clipping().mode is ClippingMode.AUTOMATIC


def test_convolutions_take_more_and_smaller_private_steps():
    rule = CONVOLUTIONAL
    assert default_steps(60_000, 2048, rule, private=True) == 2405
    few, many = (
        PrivacyPlan(60_000, 2048, steps=t, clipping=default_clipping()).calibrate(3.0, 1e-5)
        for t in (309, 2405)
    )
    rates = [private_recipe(plan, rule).learning_rate for plan in (few, many)]
    assert rates == [pytest.approx(1.57, abs=0.01), pytest.approx(0.26, abs=0.01)]


@pytest.mark.parametrize(
    ("examples", "batch_size", "steps"), [(1437, 128, 1000), (60_000, 128, 4688), (5, 5, 1000)]
)
def test_ordinary_sizes(examples, batch_size, steps):
    assert default_batch_size(examples, private=False) == batch_size
    assert default_steps(examples, batch_size, DENSE, private=False) == steps


@pytest.mark.parametrize("epsilon", [1.0, 10.0])
@pytest.mark.parametrize("batch_size", [None, 500])
def test_all_steps_together_leave_the_same_noise_in_an_output(epsilon, batch_size):
    """η₀/(1-m) · zΔ√T/S · g = 4.5 wherever the run has enough signal."""
    the_plan = plan(4000, epsilon, batch_size)
    rate = private_recipe(the_plan, DENSE).learning_rate
    left = (
        rate
        / 0.1
        * the_plan.noise_multiplier
        * math.sqrt(the_plan.steps)
        / the_plan.batch_size
        * math.sqrt(126)
    )
    assert left == pytest.approx(4.5)


@pytest.mark.parametrize("rule", [DENSE, CONVOLUTIONAL], ids=["dense", "convolutional"])
@pytest.mark.parametrize("mode", ["flat", "per-layer"])
def test_all_steps_together_leave_the_rules_noise_in_a_weight(rule, mode):
    """Whatever the clipping: layers that are clipped one by one are noised by √L as much."""
    the_plan = plan(20_000, 1.0, rule=rule, clipping=Clipping(mode, 0.5))
    reach = 0.5 * math.sqrt(rule.layers if mode == "per-layer" else 1)
    step = (
        private_recipe(the_plan, rule).learning_rate
        / 0.1
        * the_plan.noise_multiplier
        * reach
        / the_plan.batch_size
    )
    assert step * math.sqrt(the_plan.steps) == pytest.approx(rule.weight_noise)


def test_little_signal_means_less_noise_and_no_noise_a_bounded_pace():
    assert private_recipe(plan(1437, 0.1), DENSE).learning_rate < 0.01
    assert private_recipe(
        plan(60_000, 100.0), Mlp(64, 8, 10).rule()
    ).learning_rate == pytest.approx(15.0)


def test_a_private_recipe_needs_noise():
    ordinary = PrivacyPlan(100, 10, steps=5).calibrate(math.inf, 1e-5)
    for unready in (ordinary, PrivacyPlan(100, 10, steps=5)):
        with pytest.raises(DpvdError, match="calibrate it first"):
            private_recipe(unready, DENSE)
    assert ordinary_recipe(DENSE).learning_rate == pytest.approx(15 / 126)


@pytest.mark.parametrize(
    ("recipe", "method", "epsilon", "least"),
    [
        ("best", "dpvd", 1.0, 0.945),
        ("best", "dpvd", 10.0, 0.966),
        ("paper", "dpvd", 1.0, 0.855),
        ("paper", "none", None, 0.96),
    ],
)
def test_digits_is_learnt_as_well_as_documented(recipe, method, epsilon, least, tmp_path):
    """Six standard deviations below the documented means: a rule that no longer works is found out,
    luck is not.
    """
    options = RunOptions(delta=1e-5, epsilon=epsilon, method=method, recipe=recipe)
    record = execute(prepare_run(options, load("digits")), tmp_path / "run")
    assert record.test["accuracy"] >= least
    assert record.epsilon is None or 0.99 * epsilon < record.epsilon <= epsilon


@pytest.mark.parametrize("hidden", [10, 30])
def test_narrow_networks_learn_without_privacy(hidden, tmp_path):
    """At a rate that only wide networks bear they stayed at one in ten."""
    options = RunOptions(delta=1e-5, method="none", hidden=hidden)
    record = execute(prepare_run(options, load("digits")), tmp_path / "run")
    assert record.test["accuracy"] > 0.9
