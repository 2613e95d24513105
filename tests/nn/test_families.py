"""What distinguishes the layers: rates, scales, types A and B, limits of α."""

import math
import warnings

import pytest
import torch
from torch.nn import functional as F

from dpvd.errors import DpvdError
from dpvd.nn import (
    VARIANCE_FLOOR,
    AdditiveLinear,
    GaussianDropoutLinear,
    LogUniform,
    MultiplicativeLinear,
    NoiseTape,
    gaussian_sample,
    noise_from,
    noise_std,
    prior_from,
)
from tests.nn.cases import make, normal


@pytest.mark.parametrize(
    ("rates", "parameter", "variance"),
    [("layer", (), 1), ("neuron", (4,), 1), ("weight", (3, 4), 3)],
)
def test_shared_rates_cost_no_second_matmul(
    rates: str, parameter: tuple[int, ...], variance: int, generator: torch.Generator
) -> None:
    layer, tape = make(f"additive-{rates}", generator), NoiseTape()
    x = normal((2, 4), generator)
    with tape.recording():
        layer(x)
    assert layer.log_sigma2.shape == parameter
    assert tape.aux[0].shape == (2, variance)
    full = x.square() @ layer.log_sigma2.exp().expand(3, 4).T
    torch.testing.assert_close(tape.aux[0].expand(2, 3).square(), full)


@pytest.mark.parametrize("kind", ["A", "B"])
@pytest.mark.parametrize("rates", ["layer", "neuron"])
def test_one_rate_covers_all_it_should(kind: str, rates: str) -> None:
    layer = MultiplicativeLinear(4, 3, kind=kind, rates=rates, log_alpha=-1.0, prior="ard")
    assert layer.log_rate.shape == (() if rates == "layer" else (4,))
    terms = (
        4 if kind == "A" else 12
    )  # type A has one random variable per input unit, type B one per weight
    assert layer.kl().item() == pytest.approx(terms * 0.5 * math.log1p(math.e), rel=1e-6)


def test_kl_is_a_sum_over_weights() -> None:
    for outputs in (3, 30):
        layer = MultiplicativeLinear(4, outputs, log_alpha=0.0)
        assert layer.kl().item() == pytest.approx(4 * outputs * 0.4266856, rel=1e-5)


def test_a_learned_rate_is_a_parameter_and_a_given_one_is_not() -> None:
    assert "log_sigma2" in dict(AdditiveLinear(4, 3).named_parameters())
    fixed = AdditiveLinear(4, 3, learned=False)
    assert "log_sigma2" not in dict(fixed.named_parameters())
    assert "log_sigma2" in fixed.state_dict()
    assert "log_rate" in dict(MultiplicativeLinear(4, 3).named_parameters())
    assert "log_rate" in dict(MultiplicativeLinear(4, 3, learned=False).named_buffers())


def test_scale_jacobian_is_the_derivative_of_the_scale(generator: torch.Generator) -> None:
    layer = make("additive-weight", generator)
    (layer.log_sigma2 / 2).exp().sum().backward()
    jacobian = layer.scale_jacobian()
    torch.testing.assert_close(jacobian["log_sigma2"], layer.log_sigma2.grad)
    assert not jacobian["log_sigma2"].requires_grad
    for name in ("additive-tied", "B-weight", "binary"):
        assert make(name, generator).scale_jacobian() == {}


def test_the_tied_scale_is_the_standard_deviation_of_every_weight(
    generator: torch.Generator,
) -> None:
    layer, tape = make("additive-tied", generator), NoiseTape()
    x = normal((2, 4), generator)
    layer.set_scale(0.25)
    with tape.recording():
        layer(x)
    torch.testing.assert_close(tape.aux[0], 0.25 * x.norm(dim=1, keepdim=True))
    torch.testing.assert_close(layer.log_alpha(), 2 * math.log(0.25) - layer.weight.square().log())


def test_scale_zero_is_the_plain_layer_without_nan_anywhere(generator: torch.Generator) -> None:
    layer, x = make("additive-tied", generator), normal((2, 4), generator).requires_grad_()
    layer.set_scale(0.0)
    outputs = layer(x)
    assert torch.equal(outputs, F.linear(x, layer.weight, layer.bias))
    outputs.sum().backward()
    assert x.grad.isfinite().all()
    assert (layer.log_alpha() == -math.inf).all()
    assert not layer.weight_moments()[1].any()
    layer.weight.grad = None
    kl = layer.kl()
    kl.backward()
    assert kl == math.inf
    torch.testing.assert_close(layer.weight.grad, 1 / layer.weight.detach())
    layer.set_scale(0.5)
    assert not torch.equal(layer(x), outputs)


def test_only_a_tied_layer_takes_a_scale_and_only_a_sensible_one(
    generator: torch.Generator,
) -> None:
    with pytest.raises(DpvdError, match="rates='weight', learned=True"):
        make("additive-weight", generator).set_scale(1.0)
    for zeta in (-1.0, math.nan, math.inf):
        with pytest.raises(DpvdError, match="zeta"):
            make("additive-tied", generator).set_scale(zeta)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_learned_scale_needs_a_finite_start(value: float) -> None:
    with pytest.raises(DpvdError, match="log_sigma2 must be a finite number"):
        AdditiveLinear(4, 3, log_sigma2=value)
    with pytest.raises(DpvdError, match="log_alpha must be a finite number"):
        MultiplicativeLinear(4, 3, log_alpha=value)


def test_type_a_cannot_have_a_rate_per_weight() -> None:
    with pytest.raises(DpvdError, match="cannot have rates='weight'"):
        MultiplicativeLinear(4, 3, kind="A", rates="weight")
    with pytest.raises(DpvdError, match="kind must be one of A, B"):
        MultiplicativeLinear(4, 3, kind="C")


def test_type_a_learned_under_the_log_uniform_prior_warns_and_others_do_not() -> None:
    for prior in ("log-uniform", "molchanov", LogUniform("kingma")):
        with pytest.warns(UserWarning, match=r"1711\.02989") as caught:
            MultiplicativeLinear(4, 3, kind="A", rates="neuron", prior=prior)
        assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MultiplicativeLinear(4, 3, kind="A", rates="neuron", prior="ard")
        MultiplicativeLinear(4, 3, kind="A", rates="neuron", learned=False)
        MultiplicativeLinear(4, 3, kind="B")


@pytest.mark.parametrize("kind", ["A", "B"])
def test_alpha_zero_is_the_plain_layer(kind: str, generator: torch.Generator) -> None:
    layer = MultiplicativeLinear(
        4, 3, kind=kind, rates="layer", learned=False, log_alpha=-math.inf
    ).double()
    x = normal((2, 4), generator)
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    assert layer.kl() == math.inf


def test_for_large_alpha_the_kl_vanishes(generator: torch.Generator) -> None:
    for name in ("log-uniform", "molchanov", "ard"):
        layer = MultiplicativeLinear(4, 3, log_alpha=60.0, prior=name)
        assert layer.kl().item() == pytest.approx(0, abs=1e-20)
    layer = AdditiveLinear(4, 3, log_sigma2=0.0)
    with torch.no_grad():
        layer.weight.zero_()
    assert layer.kl().item() == pytest.approx(0, abs=1e-12)
    assert (layer.log_alpha() > 30).all()


def test_gaussian_dropout_is_type_a_at_the_fixed_rate(generator: torch.Generator) -> None:
    dropout = GaussianDropoutLinear(4, 3, rate=0.2).double()
    type_a = MultiplicativeLinear(
        4, 3, kind="A", rates="layer", learned=False, log_alpha=math.log(0.25)
    ).double()
    type_a.load_state_dict(dropout.state_dict())
    x = normal((5, 4), generator)
    outputs = []
    for layer in (dropout, type_a):
        with noise_from(torch.Generator().manual_seed(2)):
            outputs.append(layer(x))
    torch.testing.assert_close(outputs[0], outputs[1])


def test_binary_masks_are_zero_or_scaled_at_the_rate(generator: torch.Generator) -> None:
    layer = make("binary", generator)
    uniform = torch.rand(100_000, generator=generator, dtype=torch.float64)
    multiplier = layer.multiplier(uniform)
    assert set(multiplier.tolist()) == {0.0, 1 / 0.7}
    assert (multiplier == 0).double().mean().item() == pytest.approx(0.3, abs=0.01)


def test_the_floor_gives_exact_zeros_and_no_gradient() -> None:
    var = torch.tensor(
        [0.0, VARIANCE_FLOOR, 4 * VARIANCE_FLOOR, 9.0], dtype=torch.float64, requires_grad=True
    )
    std = noise_std(var)
    std.sum().backward()
    assert std.tolist() == pytest.approx([0, 0, 2e-10, 3], rel=1e-12)
    assert var.grad.tolist() == pytest.approx([0, 0, 0.25e10, 1 / 6], rel=1e-12)
    assert noise_std(torch.tensor(math.nan)).isnan()
    mean = torch.tensor([[1.0, 2.0]])
    assert torch.equal(gaussian_sample(mean, torch.zeros(1, 1)), mean)


def test_a_layer_says_what_it_is() -> None:
    assert "in_features=4, out_features=3, bias=True, rates=neuron" in repr(
        AdditiveLinear(4, 3, rates="neuron")
    )
    assert "kind=B, rates=layer, learned=False" in repr(
        MultiplicativeLinear(4, 3, rates="layer", learned=False, prior=prior_from("ard"))
    )
    assert "rate=0.2" in repr(GaussianDropoutLinear(4, 3, rate=0.2))
