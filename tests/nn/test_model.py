"""Functions over whole models."""

import math

import pytest
import torch
from torch import nn

import dpvd.nn as dn
from tests.nn.cases import make, normal


def half_noise(generator: torch.Generator, name: str = "additive-weight") -> nn.Sequential:
    """Two layers; in the first, the first two of the five outputs' weights are far below their
    noise.
    """
    model = nn.Sequential(
        make(name, generator, 4, 5), nn.Tanh(), make("additive-weight", generator, 5, 2)
    )
    with torch.no_grad():
        model[0].weight[:2] *= 1e-3
        model[0].weight[2:] += 10 * model[0].weight[2:].sign()
        model[2].weight += 10 * model[2].weight.sign()
    return model


def test_kl_adds_up_every_layer_once(generator: torch.Generator) -> None:
    shared = make("additive-weight", generator, 4, 4)
    model = nn.Sequential(
        shared, nn.Tanh(), shared, make("B-layer", generator, 4, 2), nn.Linear(2, 2).double()
    )
    assert dn.kl(model).item() == pytest.approx((shared.kl() + model[3].kl()).item())
    dn.kl(model).backward()
    assert shared.weight.grad.any()


@pytest.mark.parametrize("model", [nn.Linear(2, 2), nn.Linear(2, 2).double(), nn.ReLU()])
def test_kl_without_variational_layers_is_a_zero_tensor(model: nn.Module) -> None:
    total = dn.kl(model)
    assert total.shape == ()
    assert total == 0
    assert total.dtype == next((p.dtype for p in model.parameters()), torch.float32)


def test_log_alpha_by_name_within_the_range_of_display(generator: torch.Generator) -> None:
    model = half_noise(generator)
    reported = dn.log_alpha(model)
    assert list(reported) == ["0", "2"]
    assert torch.equal(reported["0"], model[0].log_alpha().clamp(-8, 8))
    assert not reported["0"].requires_grad
    tied = dn.AdditiveLinear(3, 2, rates="layer", learned=False, log_sigma2=-math.inf)
    assert (dn.log_alpha(tied)[""] == -8).all()


def test_sparsity_counts_by_layer_and_in_total(generator: torch.Generator) -> None:
    report = dn.sparsity(half_noise(generator))
    assert [(layer.name, layer.weights, layer.pruned) for layer in report.layers] == [
        ("0", 20, 8),
        ("2", 10, 0),
    ]
    assert (report.total.weights, report.total.pruned) == (30, 8)
    assert report.fraction == pytest.approx(8 / 30)
    assert report.compression == pytest.approx(30 / 22)
    assert "0: 8 of 20 weights pruned (40.0%, compression 1.7x)" in str(report)
    assert str(report).splitlines()[-1].startswith("total: 8 of 30")


def test_sparsity_of_nothing_and_of_everything() -> None:
    assert dn.sparsity(nn.ReLU()).fraction == 0
    assert dn.sparsity(nn.ReLU()).compression == 1
    assert dn.sparsity(dn.AdditiveLinear(3, 2), threshold=-100.0).compression == math.inf


@pytest.mark.parametrize(
    "name", ["additive-weight", "additive-neuron", "additive-layer", "additive-tied"]
)
def test_pruned_weights_are_zero_without_noise_and_stay_so(
    name: str, generator: torch.Generator
) -> None:
    model = half_noise(generator, name)
    kl_of_the_rest = model[0].prior.kl(model[0].weight, model[0].log_sigma2)[2:].sum().item()
    before = dn.sparsity(model)
    report = dn.prune(model)
    assert report == before
    assert report.layers[0].pruned == 8
    first, x = model[0], normal((3, 4), generator)
    assert not first.weight[:2].any()
    assert (first.weight[2:] != 0).all()
    outputs = first(x)
    assert torch.equal(outputs[:, :2], first.bias[:2].expand(3, 2))
    assert not torch.equal(
        outputs[:, 2:], torch.nn.functional.linear(x, first.weight, first.bias)[:, 2:]
    )
    assert first.kl().item() == pytest.approx(kl_of_the_rest)

    state = {key: value.clone() for key, value in model.state_dict().items()}
    assert dn.prune(model) == report
    assert all(torch.equal(model.state_dict()[key], value) for key, value in state.items())
    assert dn.sparsity(model, threshold=1000.0).layers[0].pruned == 8

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (model(x).square().sum() + dn.kl(model)).backward()
    optimizer.step()
    assert not first.weight[:2].any()
    assert (first.weight[2:] != state["0.weight"][2:]).all()


def test_a_pruned_model_moves_to_a_fresh_one_by_its_state(generator: torch.Generator) -> None:
    pruned, fresh = half_noise(generator), half_noise(generator)
    dn.prune(pruned)
    fresh.load_state_dict(pruned.state_dict())
    assert dn.sparsity(fresh) == dn.sparsity(pruned)


def test_dropout_at_a_given_rate_has_nothing_to_prune() -> None:
    model = nn.Sequential(
        dn.BinaryDropoutLinear(4, 3, rate=0.99),
        dn.GaussianDropoutLinear(3, 3, rate=0.99),
        dn.MultiplicativeLinear(3, 2, learned=False, log_alpha=6.0),
    )
    assert dn.prune(model).fraction == 0
    assert model[0].weight.any()


def test_set_scale_reaches_tied_layers_only(generator: torch.Generator) -> None:
    model = nn.Sequential(
        make("additive-tied", generator),
        make("additive-layer", generator, 3, 3),
        make("additive-tied", generator, 3, 3),
        make("B-layer-fixed", generator, 3, 3),
    )
    before = model[1].log_sigma2.item(), model[3].log_rate.item()
    assert dn.set_scale(model, 0.5) == 2
    assert (
        model[0].log_sigma2.item() == model[2].log_sigma2.item() == pytest.approx(2 * math.log(0.5))
    )
    assert (model[1].log_sigma2.item(), model[3].log_rate.item()) == before
    assert dn.set_scale(nn.Linear(2, 2), 0.5) == 0
