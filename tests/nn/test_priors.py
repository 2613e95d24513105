"""Priors: values against closed forms, finite gradients, parsing."""

import pickle

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from dpvd.errors import DpvdError
from dpvd.nn import ARD, Approximation, Gaussian, LogUniform, prior_from
from tests.nn.cases import normal

NAMES = {
    "log-uniform": LogUniform(),
    "molchanov": LogUniform("molchanov"),
    "kingma": LogUniform(Approximation.KINGMA),
    "ard": ARD(),
    "gaussian": Gaussian(1.0),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_stands_for_its_prior(name: str) -> None:
    assert prior_from(name) == NAMES[name]
    assert prior_from(NAMES[name]) is NAMES[name]
    assert pickle.loads(pickle.dumps(prior_from(name))) == NAMES[name]


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(DpvdError, match=r"log-uniform, molchanov.*got 'laplace'"):
        prior_from("laplace")
    with pytest.raises(DpvdError, match="exact, molchanov, kingma"):
        LogUniform("cubic")
    with pytest.raises(DpvdError, match="std must be"):
        Gaussian(std=0.0)


def test_gaussian_against_torch_distributions(generator: torch.Generator) -> None:
    mean, log_sigma2 = normal((5, 4), generator), normal((5, 4), generator)
    expected = kl_divergence(Normal(mean, (log_sigma2 / 2).exp()), Normal(0.0, 0.3))
    torch.testing.assert_close(Gaussian(0.3).kl(mean, log_sigma2), expected)


def test_ard_is_the_gaussian_prior_with_the_best_scale(generator: torch.Generator) -> None:
    mean, log_sigma2 = normal((5,), generator), normal((5,), generator)
    best = (log_sigma2.exp() + mean.square()).sqrt()
    expected = kl_divergence(
        Normal(mean, (log_sigma2 / 2).exp()), Normal(torch.zeros(5).double(), best)
    )
    torch.testing.assert_close(ARD().kl(mean, log_sigma2), expected)


@pytest.mark.parametrize("name", NAMES)
def test_additive_and_multiplicative_forms_agree(name: str, generator: torch.Generator) -> None:
    mean, log_alpha = normal((3, 4), generator), normal((4,), generator)
    additive = prior_from(name).kl(mean, log_alpha + mean.square().log())
    multiplicative = prior_from(name).kl_multiplicative(mean, log_alpha)
    assert multiplicative.shape == (3, 4)
    torch.testing.assert_close(additive, multiplicative)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_are_finite_at_weight_zero_and_at_extreme_scales(
    name: str, dtype: torch.dtype
) -> None:
    grid = torch.cartesian_prod(
        torch.tensor([0.0, 1e-12, -1e-8, 1e-3, 1.0, -50.0], dtype=dtype),
        torch.tensor([-60.0, -10.0, 0.0, 10.0], dtype=dtype),
    )
    mean, log_sigma2 = (column.clone().requires_grad_() for column in grid.unbind(1))
    value = prior_from(name).kl(mean, log_sigma2)
    value.sum().backward()
    assert value.isfinite().all()
    assert mean.grad.isfinite().all()
    assert log_sigma2.grad.isfinite().all()


@pytest.mark.parametrize("name", ["log-uniform", "molchanov", "kingma", "ard"])
def test_scale_free_priors_do_not_see_the_mean_of_multiplicative_noise(
    name: str, generator: torch.Generator
) -> None:
    mean = normal((3, 4), generator).requires_grad_()
    log_alpha = torch.full((), -1.0, dtype=torch.float64, requires_grad=True)
    prior_from(name).kl_multiplicative(mean, log_alpha).sum().backward()
    assert mean.grad is None or not mean.grad.any()
    assert log_alpha.grad.item() < 0
