"""The fast ways of sampling: the values and gradients of the plain formulas, which transforms still
use.
"""

import pytest
import torch
from torch import Tensor

import dpvd.nn as dn
from dpvd.nn.conv import unfolded
from dpvd.nn.noise import VARIANCE_FLOOR, add_noise_
from tests.nn.cases import normal
from tests.nn.convolutions import CASES


@pytest.mark.parametrize("shape", [(5, 3, 4), (5, 1, 4), (1, 3, 1), ()])
def test_adding_noise_has_the_gradients_of_the_formula(
    shape: tuple[int, ...], generator: torch.Generator
) -> None:
    mean, var = normal((5, 3, 4), generator).requires_grad_(), normal(shape, generator).square()
    if shape:
        var.view(-1)[:2] = torch.tensor([0.0, VARIANCE_FLOOR])
    var, weights, tape = var.requires_grad_(), normal((5, 3, 4), generator), dn.NoiseTape()
    with tape.recording():
        outputs = add_noise_(mean * 1, var)
    expected = torch.addcmul(mean, dn.noise_std(var), tape.draws[0])
    assert torch.equal(outputs, expected)
    assert torch.equal(tape.aux[0], dn.noise_std(var))
    assert not tape.aux[0].requires_grad
    gradients = [torch.autograd.grad((y * weights).sum(), (mean, var)) for y in (outputs, expected)]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=0)


def test_what_needs_no_gradient_gets_none(generator: torch.Generator) -> None:
    var = torch.ones((), dtype=torch.float64, requires_grad=True)
    constant = add_noise_(normal((4, 2), generator), var)
    (gradient,) = torch.autograd.grad(constant.sum(), var)
    assert gradient != 0
    with torch.no_grad():
        assert not add_noise_(normal((4, 2), generator), var).requires_grad


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("name", ["conv1d first", "conv2d first", "conv3d first"])
def test_a_first_convolution_has_the_gradients_of_a_later_one(
    name: str, pruned: bool, generator: torch.Generator
) -> None:
    """Inputs that need gradients go through torch's convolution, others are unfolded."""
    layer, x, tape = CASES[name].make(generator), CASES[name].inputs(3, generator), dn.NoiseTape()
    if pruned:
        layer.prune(0.5)
        assert layer.kept.any()
        assert not layer.kept.all()
    with tape.recording():
        first = layer(x)
    with tape.replaying():
        later = layer(x.clone().requires_grad_())
    torch.testing.assert_close(first, later, rtol=1e-12, atol=1e-12)
    weights, parameters = normal(first.shape, generator), list(layer.parameters())
    gradients = [torch.autograd.grad((y * weights).sum(), parameters) for y in (first, later)]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-10, atol=1e-12)


def test_only_a_first_layer_with_learned_rates_is_unfolded(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Size] = []

    def spy(x: Tensor, *geometry: object) -> Tensor:
        seen.append(x.shape)
        return unfolded(x, *geometry)

    monkeypatch.setattr("dpvd.nn.conv.unfolded", spy)
    x = torch.rand(2, 1, 6, 6)
    for options in (
        {"padding": 1},
        {"dilation": 2},
        {"rates": "layer", "learned": False},
        {"rates": "neuron"},
    ):
        dn.AdditiveConv2d(1, 2, 3, **options)(x)
    dn.AdditiveConv2d(1, 2, 3)(x.clone().requires_grad_())
    dn.AdditiveConv2d(4, 2, 3)(torch.rand(2, 4, 6, 6))
    dn.AdditiveConv2d(1, 2, 3).eval()(x)
    assert seen == []
    dn.AdditiveConv2d(1, 2, 3)(x)
    assert seen == [x.shape]


@pytest.mark.parametrize("rates", ["layer", "neuron", "weight"])
def test_the_divergence_of_kept_weights_is_that_of_all_without_the_pruned(
    rates: str, generator: torch.Generator
) -> None:
    layer = dn.AdditiveLinear(6, 5, rates=rates).double()
    with torch.no_grad():
        layer.log_sigma2.copy_(normal(layer.log_sigma2.shape, generator))
        layer.weight.copy_(normal(layer.weight.shape, generator))
    layer.prune(1.0)
    assert 0 < layer.kept.sum() < layer.weight.numel()
    kl = layer.kl()
    expected = (layer.prior.kl(layer.weight, layer.log_sigma2) * layer.kept).sum()
    torch.testing.assert_close(kl, expected, rtol=1e-12, atol=0)
    parameters = (layer.weight, layer.log_sigma2)
    gradients = [torch.autograd.grad(value, parameters) for value in (kl, expected)]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-15)
    assert (gradients[0][0][~layer.kept] == 0).all()
    transformed = torch.func.grad(
        lambda w: torch.func.functional_call(_KL(layer), {"layer.weight": w})
    )(layer.weight)
    torch.testing.assert_close(transformed, gradients[0][0], rtol=1e-12, atol=1e-15)


class _KL(torch.nn.Module):
    """A module whose output is the divergence of a layer."""

    def __init__(self, layer: dn.AdditiveLinear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self) -> Tensor:
        return self.layer.kl()


@pytest.mark.parametrize("shape", [(8, 16, 12, 12), (8, 32, 80), (4, 16, 7, 8, 8)])
def test_large_noise_lies_in_memory_as_what_it_is_added_to(shape: tuple[int, ...]) -> None:
    plain = torch.empty(shape)
    last = plain.movedim(1, -1).contiguous().movedim(-1, 1)
    noise = []
    for like in (plain, last):
        with dn.noise_from(torch.Generator().manual_seed(3)):
            noise.append(dn.draw(shape, like))
    assert [values.stride() for values in noise] == [plain.stride(), last.stride()]
    assert torch.equal(noise[0].flatten(), noise[1].movedim(1, -1).flatten())  # the same stream
