"""The gradient of the KL term that is added in place is the one that autograd finds."""

import math

import pytest
import torch
from scipy.special import dawsn
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import dpvd.nn as dn
from dpvd.nn import prior_from
from dpvd.nn.kl_term.gradient import add_mean_gradient, exact_gradients
from tests.nn.cases import normal

PRIORS = ["log-uniform", "molchanov", "kingma", "ard", "gaussian"]
TIED = {"rates": "layer", "learned": False, "log_sigma2": -3.0, "dtype": torch.float64}
LAYERS = {
    "linear": lambda: dn.AdditiveLinear(4, 3, **TIED),
    "conv": lambda: dn.AdditiveConv2d(2, 3, 2, **TIED),
    "embedding": lambda: dn.AdditiveEmbedding(6, 3, **TIED),
    "padded embedding": lambda: dn.AdditiveEmbedding(6, 3, padding_idx=2, **TIED),
    "lstm": lambda: dn.AdditiveLSTM(3, 2, num_layers=2, bidirectional=True, **TIED),
    "attention": lambda: dn.AdditiveMultiheadAttention(4, 2, **TIED),
    "attention of other sizes": lambda: dn.AdditiveMultiheadAttention(4, 2, kdim=3, vdim=5, **TIED),
}


def mean_gradient(prior: dn.Prior, mean: torch.Tensor, sigma: float) -> torch.Tensor:
    total = torch.zeros_like(mean)
    add_mean_gradient(prior, total, mean, sigma, 1.0)
    return total


def by_autograd(model: nn.Module) -> dict[str, torch.Tensor]:
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(dn.kl(model), list(parameters.values()), allow_unused=True)
    return {
        name: gradient
        for name, gradient in zip(parameters, found, strict=True)
        if gradient is not None
    }


def added(model: nn.Module, weight: float = 1.0) -> dict[str, torch.Tensor]:
    totals = {}
    for name, gradient in dn.kl_gradients(model, weight).items():
        totals[name] = torch.zeros_like(model.get_parameter(name))
        gradient.add_to(totals[name], 1.0)
    return totals


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(gradient.any() for gradient in expected.values())
    for name, gradient in expected.items():
        torch.testing.assert_close(
            found[name], gradient, rtol=1e-7, atol=1e-8
        )  # the table of the KL is as exact


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("sigma", [0.03, 0.7, 5.0])
def test_gradients_are_those_of_autograd_and_of_finite_differences(name, sigma, generator):
    prior, log_sigma2 = prior_from(name), torch.tensor(2 * math.log(sigma), dtype=torch.float64)
    mean = torch.cat(
        [normal((50,), generator), torch.zeros(1, dtype=torch.float64)]
    ).requires_grad_()
    (expected,) = torch.autograd.grad(prior.kl(mean, log_sigma2).sum(), mean)
    found, step = mean_gradient(prior, mean.detach(), sigma), 1e-4 * sigma
    # ∂KL/∂mean = -2/mean · ∂KL/∂log α, and the table gives the latter to 1e-9
    error = (found - expected).abs() * mean.detach().abs().clamp(1e-3, 1) / 2
    assert error.max().item() < 1e-9
    with torch.no_grad():
        difference = (prior.kl(mean + step, log_sigma2) - prior.kl(mean - step, log_sigma2)) / (
            2 * step
        )
    torch.testing.assert_close(found[:50], difference[:50], rtol=2e-3, atol=1e-4 / sigma)


def test_the_log_uniform_gradient_is_the_dawson_function(generator):
    mean, sigma = normal((200,), generator), 0.3
    expected = math.sqrt(2) / sigma * torch.from_numpy(dawsn(mean.numpy() / (math.sqrt(2) * sigma)))
    torch.testing.assert_close(
        mean_gradient(prior_from("log-uniform"), mean, sigma), expected, rtol=1e-14, atol=0
    )
    single = mean_gradient(prior_from("log-uniform"), mean.float(), sigma)
    torch.testing.assert_close(single.double(), expected, rtol=2e-6, atol=0)
    square = mean.view(10, 20).float()
    transposed = mean_gradient(
        prior_from("log-uniform"), square.t(), sigma
    )  # not contiguous: computed apart
    torch.testing.assert_close(transposed.t().reshape(-1).double(), expected, rtol=2e-6, atol=0)


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sigma", [0.0, 1e-30, 1e-20, 1e-12, 1e10])
def test_gradients_are_finite_and_zero_at_zero(name, dtype, sigma):
    mean = torch.tensor([0.0, 1e-12, 1e-3, 1.0, -50.0], dtype=dtype)
    found = mean_gradient(prior_from(name), mean, sigma)
    assert found.isfinite().all()
    assert found[0] == 0
    if name != "gaussian" and sigma < 1e-6:
        torch.testing.assert_close(found[2:], 1 / mean[2:])


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gradient_can_be_added_to_the_mean_itself(name, dtype, generator):
    mean = normal((5, 7), generator).to(dtype)
    expected = mean - 0.1 * mean_gradient(prior_from(name), mean, 0.4)
    add_mean_gradient(prior_from(name), mean, mean, 0.4, -0.1)
    torch.testing.assert_close(mean, expected)


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
def test_the_gradient_of_every_tied_layer_is_that_of_its_kl(kind, pruned, generator):
    layer = LAYERS[kind]()
    for parameter in layer.parameters():
        parameter.data = normal(parameter.shape, generator)
    if pruned:
        layer.prune(0.0)
        for parameter in layer.parameters():  # as noise does: a pruned weight need not stay 0
            parameter.data += 0.1
        assert not layer.kept.all()
    assert all(found.gradient is None for found in dn.kl_gradients(layer).values())
    assert_same(
        added(layer, 2.0), {name: 2 * gradient for name, gradient in by_autograd(layer).items()}
    )


LEARNED = {"log_sigma2": -3.0, "dtype": torch.float64}
LEARNED_LAYERS = {
    "linear": lambda: dn.AdditiveLinear(4, 3, **LEARNED),
    "linear, one rate for each input": lambda: dn.AdditiveLinear(4, 3, rates="neuron", **LEARNED),
    "linear, another prior": lambda: dn.AdditiveLinear(4, 3, prior="ard", **LEARNED),
    "conv": lambda: dn.AdditiveConv2d(2, 3, 2, **LEARNED).to(memory_format=torch.channels_last),
    "padded embedding": lambda: dn.AdditiveEmbedding(6, 3, padding_idx=2, **LEARNED),
    "lstm": lambda: dn.AdditiveLSTM(3, 2, **LEARNED),
    "multiplicative": lambda: dn.MultiplicativeLinear(4, 3, prior="gaussian", dtype=torch.float64),
}


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("kind", LEARNED_LAYERS)
def test_the_gradient_of_every_layer_with_learned_scales_is_that_of_its_kl(kind, pruned, generator):
    layer = LEARNED_LAYERS[kind]()
    for parameter in layer.parameters():
        parameter.data += normal(parameter.shape, generator)
    if pruned:
        layer.prune(layer.log_alpha().median().item())
        for parameter in layer.parameters():
            parameter.data += 0.1
        assert not layer.kept.all()
    assert_same(
        added(layer, 2.0), {name: 2 * gradient for name, gradient in by_autograd(layer).items()}
    )


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 4e-6), (torch.float64, 1e-13)])
def test_gradients_of_learned_scales_are_the_dawson_function(dtype, rtol, generator):
    mean, log_sigma2 = normal((500,), generator), 4 * normal((500,), generator)
    x, sigma = mean / (math.sqrt(2) * (log_sigma2 / 2).exp()), (log_sigma2 / 2).exp()
    dawson = torch.from_numpy(dawsn(x.numpy()))
    of_mean, of_scale = exact_gradients(mean.to(dtype), log_sigma2.to(dtype))
    torch.testing.assert_close(of_mean.double(), math.sqrt(2) * dawson / sigma, rtol=rtol, atol=0)
    torch.testing.assert_close(of_scale.double(), -x * dawson, rtol=rtol, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_learned_scales_are_finite(dtype):
    mean = torch.tensor([0.0, 1e-12, 1e-3, 1.0, -50.0], dtype=dtype)
    for log_sigma2, expected in ((-1e4, -0.5), (1e4, 0.0)):
        of_mean, of_scale = exact_gradients(mean, torch.full_like(mean, log_sigma2))
        assert of_mean.isfinite().all()
        torch.testing.assert_close(of_scale[2:], torch.full_like(mean[2:], expected))
        torch.testing.assert_close(of_mean[2:], -2 * expected / mean[2:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("log_sigma2", [0.0, -40.0, -68.0, -75.0, -90.0, -1000.0])
def test_one_scale_for_all_and_one_for_each_weight_have_the_same_gradient(log_sigma2, dtype):
    mean = torch.tensor([0.0, 1e-18, 1e-15, 3e-14, 1e-8, 0.1, -7.0], dtype=dtype)
    of_mean, _ = exact_gradients(mean, torch.full_like(mean, log_sigma2))
    tied = mean_gradient(prior_from("log-uniform"), mean, math.exp(log_sigma2 / 2))
    torch.testing.assert_close(tied, of_mean, rtol=2e-6, atol=0)


def test_a_prior_of_ones_own_is_differentiated():
    class Doubled(dn.Gaussian):
        def kl(self, mean: torch.Tensor, log_sigma2: torch.Tensor) -> torch.Tensor:
            return 2 * super().kl(mean, log_sigma2)

    mean = torch.tensor([1.0, -2.0], dtype=torch.float64)
    torch.testing.assert_close(mean_gradient(Doubled(), mean, 0.5), 2 * mean)


def test_parametrised_scales_get_their_gradient():
    class Doubled(nn.Module):
        def forward(self, log_sigma2: torch.Tensor) -> torch.Tensor:
            return 2 * log_sigma2

    layer = dn.AdditiveLinear(4, 3, **LEARNED)
    parametrize.register_parametrization(layer, "log_sigma2", Doubled())
    expected = by_autograd(layer)
    assert set(expected) == {"weight", "parametrizations.log_sigma2.original"}
    assert_same(added(layer), expected)


def test_models_mix_tied_learned_fixed_shared_and_parametrised_layers(generator):
    model = nn.Sequential(
        *(dn.AdditiveLinear(3, 3, **TIED) for _ in range(4)), dn.AdditiveLinear(3, 3).double()
    )
    model.append(dn.MultiplicativeLinear(3, 3, prior="gaussian").double()).append(
        nn.Linear(3, 3).double()
    )
    model[1].weight = model[4].weight = model[
        0
    ].weight  # two tied layers and a learned one on one matrix
    parametrizations.orthogonal(model[2])
    expected = by_autograd(model)
    assert set(expected) == {
        "0.weight",
        "2.parametrizations.weight.original",
        "3.weight",
        "4.log_sigma2",
        "5.weight",
        "5.log_rate",
    }
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    assert_same(added(model), expected)
    for name, gradient in dn.kl_gradients(model).items():
        gradient.add_to(model.get_parameter(name).data, 0.5)
    assert_same({n: 2 * (model.get_parameter(n).detach() - before[n]) for n in expected}, expected)


def test_frozen_weights_and_plain_models_have_no_kl_gradient():
    layer = dn.AdditiveLinear(3, 3, **TIED)
    layer.weight.requires_grad_(False)
    assert dn.kl_gradients(layer) == {}
    assert dn.kl_gradients(nn.Linear(3, 3)) == {}
