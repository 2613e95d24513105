"""The posterior that a model has after training: post-processing, which costs no privacy."""

import torch
from torch import nn

from dpvd.errors import DpvdError
from dpvd.nn import set_scale, tied_layers
from dpvd.plan import PrivacyPlan
from dpvd.training.recipe import Posterior, Recipe
from dpvd.training.step import PrivateStep

__all__ = ["check_posterior", "set_posterior"]


def check_posterior(
    model: nn.Module,
    plan: PrivacyPlan,
    recipe: Recipe,
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    """Raise unless the model can be given the posterior that the recipe names.

    Args:
        model: to be trained.
        plan: under which.
        recipe: how.
        optimizer: one that takes the place of the recipe's.

    Raises:
        DpvdError: saying what would have to be different.
    """
    tied = tied_layers(model)
    if recipe.posterior is Posterior.LEARNED and tied:
        raise DpvdError("a learned posterior needs learned scales, and this model has tied ones")
    if recipe.posterior is not Posterior.ACCUMULATED:
        return
    if not tied:
        raise DpvdError(
            "an accumulated posterior is given to tied scales, of which this model has none: make"
            ' it with variational(model, "additive", rates="layer", learned=False)'
        )
    if optimizer is not None:
        raise DpvdError(
            "an accumulated posterior follows from the recipe's own optimizer: pass none, or choose"
            " another posterior"
        )
    if plan.bands > 1:
        raise DpvdError(
            "correlated noise (bands above 1) takes some of itself back, which an accumulated"
            " posterior does not know of: choose another posterior, or bands=1"
        )
    if plan.clipping.is_adaptive:
        raise DpvdError(
            "under adaptive clipping the noise of a step is not known beforehand, so what all steps"
            " leave cannot be added up: choose another posterior or clipping"
        )


def set_posterior(step: PrivateStep, recipe: Recipe) -> None:
    """Give tied layers the noise that all steps left in a weight, if the recipe says so.

        ζ = factor · zΔ/S · accumulated_noise(η₁ ... η_T)

    and log α = log ζ² - log φ² follows: a weight that is mostly privacy noise can be pruned.
    """
    if recipe.posterior is Posterior.ACCUMULATED:
        left = step.gradient_noise() * recipe.noise_left(step.plan)
        set_scale(step.model, recipe.posterior_factor * left)
