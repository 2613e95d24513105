"""The noise that all steps leave in a weight, and the posterior that is made of it."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from dpvd.errors import DpvdError
from dpvd.grads import Clipping
from dpvd.nn import sparsity, tied_layers, variational
from dpvd.plan import PrivacyPlan
from dpvd.training import Recipe, accumulated_noise, fit

STEPS = 12
PLAN = PrivacyPlan(40, 40, steps=STEPS, noise_multiplier=2.0, noise="seeded", seed=1)
RECIPE = Recipe(0.5, momentum=0.6, decay="linear", average=0.25, posterior="accumulated")


@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize("averaged", [1, 5])
@pytest.mark.parametrize("curvature", [0.0, 0.7])
def test_it_is_the_noise_of_simulated_weights(momentum, averaged, curvature, generator):
    rates = [1 / (1 + step) for step in range(STEPS)]
    weight = torch.zeros(40_000)
    velocity = torch.zeros(40_000)
    kept = []
    for rate in rates:
        noise = torch.randn(40_000, generator=generator)
        velocity = momentum * velocity + curvature * weight + noise
        weight = weight - rate * velocity
        kept.append(weight)
    measured = torch.stack(kept[-averaged:]).mean(0).std().item()
    found = accumulated_noise(rates, momentum=momentum, averaged=averaged, curvature=curvature)
    assert found == pytest.approx(measured, rel=0.025)


def test_more_iterates_than_steps_are_refused():
    with pytest.raises(DpvdError, match="3 iterates"):
        accumulated_noise([1.0, 1.0], averaged=3)


def linear_model() -> nn.Module:
    model = variational(nn.Linear(500, 8, bias=False), rates="layer", learned=False)
    nn.init.zeros_(model.weight)
    return model


def silent(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A loss without gradient: only noise moves the weights."""
    return 0.0 * model(x).sum(1)


def trained(recipe: Recipe, plan: PrivacyPlan = PLAN) -> nn.Module:
    model = linear_model()
    fit(model, (torch.ones(plan.examples, 500),), plan, recipe, delta=1e-5, loss_fn=silent)
    return model


@pytest.mark.parametrize(
    "recipe", [RECIPE, replace(RECIPE, momentum=0.0, average=0.0, decay="constant")]
)
def test_the_accumulated_posterior_is_the_noise_that_weights_really_have(recipe):
    model = trained(recipe)
    (layer,) = tied_layers(model)
    zeta = math.exp(layer.log_sigma2.item() / 2)
    assert model.weight.std().item() == pytest.approx(zeta, rel=0.06)  # 4,000 weights
    # Weights that are nothing but noise: log α ≥ 0 where |N(0, 1)| ≤ 1.
    assert sparsity(model, threshold=0.0).fraction == pytest.approx(0.683, abs=0.04)


def test_the_factor_scales_it_and_the_last_step_is_smaller():
    (whole,) = tied_layers(trained(RECIPE))
    (half,) = tied_layers(trained(replace(RECIPE, posterior_factor=0.5)))
    (last,) = tied_layers(trained(replace(RECIPE, posterior="last-step")))
    assert (whole.log_sigma2 - half.log_sigma2).item() == pytest.approx(2 * math.log(2), abs=1e-5)
    assert last.log_sigma2.item() < whole.log_sigma2.item()


def test_a_posterior_that_cannot_be_had_is_refused():
    with pytest.raises(DpvdError, match="needs sgd"):
        replace(RECIPE, optimizer="adam")
    with pytest.raises(DpvdError, match="learned scales"):
        trained(replace(RECIPE, posterior="learned"))
    with pytest.raises(DpvdError, match="adaptive"):
        trained(RECIPE, replace(PLAN, clipping=Clipping("adaptive", 1.0)))
    with pytest.raises(DpvdError, match="bands"):
        trained(RECIPE, replace(PLAN, batch_size=10, bands=2))
    model = linear_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    x = torch.ones(40, 500)
    with pytest.raises(DpvdError, match="own optimizer"):
        fit(model, (x,), PLAN, RECIPE, delta=1e-5, loss_fn=silent, optimizer=optimizer)
    with pytest.raises(DpvdError, match="has none"):
        fit(nn.Linear(500, 8), (x,), PLAN, RECIPE, delta=1e-5, loss_fn=silent)


def test_recipes_of_older_records_are_read():
    plain = RECIPE.to_dict()
    assert Recipe.from_dict(plain) == RECIPE
    del plain["posterior"], plain["posterior_factor"]
    assert str(Recipe.from_dict(plain).posterior) == "last-step"
