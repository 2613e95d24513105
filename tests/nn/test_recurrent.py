"""Recurrent layers with weight noise: the plain layer without it, the right distribution with
it.
"""

import math

import pytest
import torch
from torch import nn

from dpvd import nn as dn
from dpvd.errors import DpvdError
from dpvd.nn import AdditiveGRU, AdditiveLSTM, AdditiveRNN

PAIRS = {
    "RNN": (nn.RNN, AdditiveRNN),
    "GRU": (nn.GRU, AdditiveGRU),
    "LSTM": (nn.LSTM, AdditiveLSTM),
}
SHAPES = [
    {},
    {"batch_first": True, "bias": False},
    {"num_layers": 2, "bidirectional": True},
]
TIED = {"rates": "layer", "learned": False}


def normal(*shape: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def pair(
    kind: str,
    *,
    log_sigma2: float = -1.0,
    rates: str = "weight",
    learned: bool = True,
    **shape: object,
):
    """A torch layer and ours with its state."""
    plain, noisy = PAIRS[kind]
    torch_layer = plain(3, 4, dtype=torch.float64, **shape)
    ours = noisy(
        3, 4, dtype=torch.float64, rates=rates, learned=learned, log_sigma2=log_sigma2, **shape
    )
    ours.load_state_dict(torch_layer.state_dict(), strict=True)
    return torch_layer, ours


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", PAIRS)
def test_without_noise_it_is_the_torch_layer(kind, shape, generator):
    torch_layer, ours = pair(kind, **shape)
    x = normal(5, 5, 3, generator=generator)
    expected, got = torch_layer(x), ours.eval()(x)
    assert torch.equal(got[0], expected[0])
    torch_layer, silent = pair(kind, log_sigma2=-math.inf, **TIED, **shape)
    expected, got = torch_layer(x), silent.train()(x)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    start = (
        (normal(*expected[1][0].shape, generator=generator),) * 2
        if kind == "LSTM"
        else expected[1] / 2
    )
    torch.testing.assert_close(silent(x, start), torch_layer(x, start), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", PAIRS)
def test_one_draw_for_each_example_and_sequence(kind, generator):
    """However long the sequence: [examples, matrices times gates]."""
    _, layer = pair(kind, num_layers=2, batch_first=True)
    gates = len(layer.weight_hh_l0)
    for steps in (1, 6):
        tape = dn.NoiseTape()
        with tape.recording():
            layer(normal(5, steps, 3, generator=generator))
        assert [tuple(noise.shape) for noise in tape.draws] == [(5, 4 * gates)]


@pytest.mark.parametrize("kind", PAIRS)
def test_noise_is_the_same_at_every_step_and_differs_between_rows(kind, generator):
    _, layer = pair(kind, batch_first=True)
    with torch.no_grad():
        layer.weight_hh_l0.zero_()
        layer.log_sigma2[:, 3:] = -math.inf  # no noise and no mean from step to step
        if (
            kind != "RNN"
        ):  # make states forget: the LSTM's forget gate shut, the GRU's update gate shut
            layer.bias_ih_l0[4:8] = -60.0
            layer.log_sigma2[4:8] = -math.inf
            layer.weight_ih_l0[4:8] = 0.0
    x = normal(1, 1, 3, generator=generator).expand(6, 5, 3)
    outputs, _ = layer(x)
    torch.testing.assert_close(outputs, outputs[:, :1].expand_as(outputs), rtol=1e-12, atol=1e-12)
    assert len(outputs[:, 0].unique(dim=0)) == 6


def test_noise_has_the_variance_of_noise_on_the_weights(generator):
    """One step of an RNN: atanh(h) is Gaussian with mean W x + b and variance x²σ² + h²σ².

    The sample variance of 40,000 rows has a relative standard deviation of 0.7 %: the bound is five
    of them.
    """
    torch_layer, layer = pair("RNN", batch_first=True, log_sigma2=-4.0)
    with torch.no_grad():
        layer.log_sigma2 += normal(*layer.log_sigma2.shape, generator=generator) / 2
    rows = 40_000
    x, start = normal(1, 1, 3, generator=generator), normal(1, 1, 4, generator=generator) / 2
    with torch.no_grad(), dn.noise_from(generator):
        outputs, _ = layer(x.expand(rows, 1, 3), start.expand(1, rows, 4).contiguous())
        expected_mean = torch_layer(x, start)[0].flatten().atanh()
    sample = outputs[:, 0].atanh()
    variance = (
        torch.cat([x.flatten(), start.flatten()]).square() @ layer.log_sigma2.detach().exp().T
    )
    assert ((sample.var(0) / variance - 1).abs() < 0.036).all()
    assert ((sample.mean(0) - expected_mean).abs() < 5 * (variance / rows).sqrt()).all()


@pytest.mark.parametrize("rates", ["weight", "neuron", "layer"])
def test_kl_log_alpha_and_sparsity_cover_every_matrix(rates):
    _, layer = pair("GRU", rates=rates, num_layers=2)
    matrices = [layer.weight_ih_l0, layer.weight_hh_l0, layer.weight_ih_l1, layer.weight_hh_l1]
    expected = sum(layer.prior.kl(w, torch.tensor(-1.0, dtype=w.dtype)).sum() for w in matrices)
    torch.testing.assert_close(dn.kl(layer), expected)
    assert dn.sparsity(layer).total.weights == sum(w.numel() for w in matrices)
    assert torch.equal(layer.blocks(layer.weight)["weight_hh_l1"], layer.weight_hh_l1)
    layer.kl().backward()
    assert all(w.grad.abs().max() > 0 for w in matrices)


def test_pruned_weights_are_zero_and_stay_so(generator):
    _, layer = pair("LSTM")
    result = dn.prune(layer, 3.0)
    assert 0 < result.fraction < 1
    zero = layer.weight == 0
    assert torch.equal(zero, ~layer.kept)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(normal(4, 2, 3, generator=generator))[0].sum().backward()
    optimizer.step()
    assert torch.equal(layer.weight == 0, zero)
    again = AdditiveLSTM(3, 4, dtype=torch.float64)
    again.load_state_dict(layer.state_dict())
    x = normal(4, 2, 3, generator=generator)
    torch.testing.assert_close(again.eval()(x)[0], layer.eval()(x)[0])


def test_compressing_a_model_leaves_it_as_it_is(generator):
    _, layer = pair("GRU")
    dn.prune(layer)
    smaller, _ = dn.compress(nn.Sequential(layer))
    x = normal(4, 2, 3, generator=generator)
    torch.testing.assert_close(smaller(x)[0], layer.eval()(x)[0])


def test_tied_layers_take_their_scale_from_outside():
    _, layer = pair("LSTM", **TIED)
    assert dn.set_scale(nn.Sequential(layer), 0.5) == 1
    assert layer.log_sigma2.exp().item() == pytest.approx(0.25)


def test_reset_parameters_resets_the_noise_too():
    layer = AdditiveGRU(3, 4, log_sigma2=-7.0)
    layer.reset_parameters()
    assert (layer.log_sigma2 == -7.0).all()


def test_what_it_does_not_take_is_refused(generator):
    with pytest.raises(DpvdError, match="proj_size"):
        AdditiveLSTM(3, 4, proj_size=2)
    _, layer = pair("LSTM")
    packed = nn.utils.rnn.pack_sequence([normal(n, 3, generator=generator) for n in (3, 2)])
    for bad in (packed, normal(4, 3, generator=generator)):
        with pytest.raises(DpvdError, match="dimension 3"):
            layer(bad)
