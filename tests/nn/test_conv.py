"""What every variational convolution and embedding must do."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import dpvd.nn as dn
from dpvd.errors import DpvdError
from tests.nn.convolutions import CASES

SAMPLES = 20_000
every_case = pytest.mark.parametrize("name", CASES)
every_rate = pytest.mark.parametrize("rates", ["layer", "neuron", "weight"])


@every_rate
@every_case
def test_the_variance_is_that_of_sampling_the_weights(name, rates, generator):
    """Each output is linear in the weights: its variance is Σ (∂y/∂w)² Var[w], from torch's own
    derivatives.
    """
    case = CASES[name]
    layer, x, tape = case.make(generator, rates=rates), case.inputs(1, generator), dn.NoiseTape()
    with tape.recording():
        outputs = layer(x)
    plain, variance = case.make_plain(layer), layer.weight_moments()[1].detach()
    flat = plain(x).flatten()
    slopes = [torch.autograd.grad(y, plain.weight, retain_graph=True)[0] for y in flat]
    expected = torch.stack([(slope.square() * variance).sum() for slope in slopes]).view(
        outputs.shape
    )
    torch.testing.assert_close(
        tape.aux[0].square().expand_as(outputs), expected, rtol=1e-10, atol=1e-19
    )
    assert tape.draws[0].shape == outputs.shape
    torch.testing.assert_close(
        outputs, plain(x) + tape.aux[0] * tape.draws[0], rtol=1e-12, atol=1e-12
    )


@every_case
def test_outputs_have_the_stated_moments_and_rows_their_own_noise(name, generator):
    case = CASES[name]
    layer, x = case.make(generator), case.inputs(1, generator)
    with torch.no_grad(), dn.noise_from(generator):
        outputs = layer(x.expand(SAMPLES, *x.shape[1:])).flatten(1)
    std = (
        dn.noise_std(layer.output_moments(x)[1])
        .expand(1, *case.make_plain(layer)(x).shape[1:])
        .flatten()
        .detach()
    )
    sample = outputs.std(0)
    tolerance = 6 * std / (2 * SAMPLES) ** 0.5 + 1e-12
    assert ((sample - std).abs() < tolerance).all()
    error = (outputs.mean(0) - case.make_plain(layer)(x).flatten()).abs()
    assert (error < 6 * std / SAMPLES**0.5 + 1e-12).all()


@every_case
def test_eval_mode_is_torchs_layer_bit_for_bit(name, generator):
    case = CASES[name]
    layer, x, tape = case.make(generator).eval(), case.inputs(3, generator), dn.NoiseTape()
    with tape.recording():
        assert torch.equal(layer(x), case.make_plain(layer)(x))
    assert tape.draws == []
    with dn.sampling():
        assert not torch.equal(layer(x), case.make_plain(layer)(x))


@every_rate
@every_case
def test_shapes_kl_and_log_alpha(name, rates, generator):
    layer = CASES[name].make(generator, rates=rates, prior="ard")
    mean, variance = layer.weight_moments()
    assert mean.shape == variance.shape == layer.log_alpha().shape == layer.weight.shape
    live = variance > 0
    torch.testing.assert_close(layer.log_alpha()[live], (variance / mean.square()).log()[live])
    expected = 0.5 * (1 + mean.square()[live] / variance[live]).log().sum()
    torch.testing.assert_close(layer.kl(), expected)
    assert live.all() == (name != "embedding padded")


@every_case
def test_a_rate_per_input_unit_is_one_for_each(name, generator):
    """Input channels of a group; of a transposed convolution all; of an embedding its words."""
    case = CASES[name]
    layer = case.make(generator, rates="neuron")
    rates = getattr(layer, layer.noise_state[0])
    inputs = {
        "embedding": 5,
        "embedding padded": 5,
        "conv2d groups": 2,
        "B conv2d": 2,
        "transposed": 2,
    }
    assert rates.numel() == inputs.get(name, case.args[0])
    assert rates.expand_as(layer.weight).unique().numel() == rates.numel()


@every_case
def test_gradients_with_the_noise_held(name, generator):
    case = CASES[name]
    layer, x, tape = case.make(generator), case.inputs(2, generator), dn.NoiseTape()
    with tape.recording():
        layer(x)
    names = [parameter for parameter, _ in layer.named_parameters()]

    def forward(*parameters: Tensor) -> Tensor:
        with tape.replaying():
            return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), x)

    if (
        name != "embedding padded"
    ):  # torch leaves the padding row out of the gradient, which finite differences see
        assert torch.autograd.gradcheck(forward, tuple(layer.parameters()))
    loss = forward(*layer.parameters()).square().sum()
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, list(layer.parameters())))


@every_case
def test_noise_replays_row_by_row(name, generator):
    case = CASES[name]
    layer, x, tape = case.make(generator), case.inputs(4, generator), dn.NoiseTape()
    with tape.recording():
        outputs = layer(x)
    assert len(tape.draws) == 1
    with tape.replaying(2):
        torch.testing.assert_close(layer(x[2:3]), outputs[2:3])
    assert layer(x[:0]).shape == (0, *outputs.shape[1:])


@every_case
def test_pruned_weights_are_zero_without_noise_and_stay_so(name, generator):
    case = CASES[name]
    layer, x = case.make(generator), case.inputs(2, generator)
    with torch.no_grad():
        layer.weight += layer.weight.sign() * 10
        if not layer.noise_state[0].startswith("log_rate"):
            layer.weight[:1] *= 1e-3
        else:
            layer.log_rate[:1] = 5.0
    report = dn.prune(layer)
    assert report.total.pruned == layer.weight[0].numel()
    assert not layer.weight[0].any()
    assert not layer.weight_moments()[1][0].any()
    assert (layer.weight[1:] != 0).all()
    (layer(x).square().sum() + layer.kl()).backward()
    assert not layer.weight.grad[0].any()
    assert dn.prune(layer) == report
    fresh = case.make(generator)
    fresh.load_state_dict(layer.state_dict())
    assert dn.sparsity(fresh) == report


@every_case
def test_state_of_torchs_layer_loads_strictly_and_copies_are_equal(name, generator):
    case = CASES[name]
    source, layer, x = case.make(generator), case.make(generator), case.inputs(3, generator)
    plain = case.make_plain(source)
    noise = getattr(layer, layer.noise_state[0]).clone()
    layer.load_state_dict(plain.state_dict(), strict=True)
    assert torch.equal(getattr(layer, layer.noise_state[0]), noise)
    assert torch.equal(layer.eval()(x), plain(x))
    layer.train()
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        with dn.noise_from(torch.Generator().manual_seed(1)):
            expected = layer(x)
        with dn.noise_from(torch.Generator().manual_seed(1)):
            assert torch.equal(other(x), expected)


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("B")])
def test_a_tied_scale_is_the_standard_deviation_of_every_weight(name, generator):
    layer = CASES[name].make(generator, rates="layer", learned=False)
    assert dn.set_scale(nn.Sequential(layer), 0.25) == 1
    variance = layer.weight_moments()[1]
    torch.testing.assert_close(
        variance[variance > 0], torch.full_like(variance[variance > 0], 0.0625)
    )


@every_case
def test_a_layer_says_what_it_is_and_refuses_unknown_rates(name, generator):
    case = CASES[name]
    assert f"{case.cls.__name__}({', '.join(map(str, case.args[:2]))}" in repr(case.make(generator))
    assert "rates=weight" in repr(case.make(generator))
    with pytest.raises(DpvdError, match="rates must be one of"):
        case.make(generator, rates="row")
