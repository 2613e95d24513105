"""What every dense layer must do, whatever its noise."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.errors import DpvdError
from dpvd.nn import NoiseTape, VariationalLayer, noise_from, sampling
from tests.nn.cases import ALL, ON_INPUTS, make, normal

pytestmark = pytest.mark.parametrize("name", ALL)
SAMPLES = 40_000


def covariance_in_weight_space(
    name: str, layer: VariationalLayer, x: Tensor, rng: torch.Generator
) -> Tensor:
    """Output covariance [out, out] from explicit samples of the whole weight matrix."""
    mean, variance = (moment.detach() for moment in layer.weight_moments())
    if (
        name in ON_INPUTS
    ):  # one factor per input unit, shared by all outputs: a Gaussian one has the moments
        relative = (variance / mean.square())[0].sqrt()
        weights = mean * (1 + relative * normal((SAMPLES, 1, len(x)), rng))
    else:
        weights = mean + variance.sqrt() * normal((SAMPLES, *mean.shape), rng)
    return (weights @ x).T.cov()


def test_output_moments_are_those_of_sampling_the_weights(
    name: str, generator: torch.Generator
) -> None:
    layer, x = make(name, generator), normal((4,), generator)
    with torch.no_grad(), noise_from(generator):
        outputs = layer(x.expand(SAMPLES, 4))
    expected = covariance_in_weight_space(name, layer, x, generator)
    spread = torch.outer(expected.diag(), expected.diag()).sqrt()
    tolerance = (
        5 * spread * (2 * 2 / SAMPLES) ** 0.5
    )  # five standard errors of a difference of covariances
    assert ((outputs.T.cov() - expected).abs() < tolerance).all()
    for wrong_scale in (2 / 3, 3 / 2):
        assert ((wrong_scale * outputs.T.cov() - expected).abs() > tolerance).any()
    mean_error = outputs.mean(0) - F.linear(x, layer.weight, layer.bias).detach()
    assert (mean_error.abs() < 5 * (expected.diag() / SAMPLES).sqrt()).all()


def test_eval_mode_is_the_plain_layer_bit_for_bit_and_draws_nothing(
    name: str, generator: torch.Generator
) -> None:
    layer, x, tape = make(name, generator).eval(), normal((5, 4), generator), NoiseTape()
    with tape.recording():
        assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    assert tape.draws == []
    with tape.recording(), sampling():
        assert not torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    assert len(tape.draws) == 1


def test_gradients_with_the_noise_held(name: str, generator: torch.Generator) -> None:
    layer, x, tape = make(name, generator), normal((3, 4), generator).requires_grad_(), NoiseTape()
    with tape.recording():
        layer(x)
    names = [parameter for parameter, _ in layer.named_parameters()]

    def forward(x: Tensor, *parameters: Tensor) -> Tensor:
        with tape.replaying():
            return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), x)

    assert torch.autograd.gradcheck(forward, (x, *layer.parameters()))


def test_kl_gradients(name: str, generator: torch.Generator) -> None:
    layer = make(name, generator)
    kl = layer.kl()
    assert kl.shape == ()
    if not kl.requires_grad:  # dropout at a fixed rate has no KL; a fixed rate's KL is constant
        assert name in {"binary", "gaussian", "B-layer-fixed"}
        return
    kl.backward()
    for parameter in layer.parameters():
        if parameter.grad is None:
            continue
        flat, step = parameter.detach().view(-1), 1e-5
        value = flat[0].item()
        flat[0] = value + step
        above = layer.kl().item()
        flat[0] = value - step
        below = layer.kl().item()
        flat[0] = value
        assert parameter.grad.view(-1)[0].item() == pytest.approx(
            (above - below) / (2 * step), abs=1e-6
        )


def test_equal_rows_get_different_noise_and_no_row_sees_another(
    name: str, generator: torch.Generator
) -> None:
    layer, x = make(name, generator, inputs=8), normal((1, 8), generator).repeat(4, 1)
    with noise_from(torch.Generator().manual_seed(5)):
        first = layer(x)
    assert len({tuple(row.tolist()) for row in first}) == 4
    x[2] += 1
    with noise_from(torch.Generator().manual_seed(5)):
        second = layer(x)
    changed = (first != second).any(1)
    assert changed.tolist() == [False, False, True, False]


def test_sequences_get_noise_at_every_position(name: str, generator: torch.Generator) -> None:
    layer, tape = make(name, generator), NoiseTape()
    x = normal((2, 5, 4), generator)
    with tape.recording():
        outputs = layer(x)
    assert outputs.shape == (2, 5, 3)
    assert tape.draws[0].shape == (x.shape if name in ON_INPUTS else outputs.shape)
    with tape.replaying(1):
        torch.testing.assert_close(layer(x[1:]), outputs[1:])


def test_zero_inputs_and_empty_batches(name: str, generator: torch.Generator) -> None:
    layer = make(name, generator)
    x = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    outputs = layer(x)
    assert torch.equal(outputs, layer.bias.expand(3, 3))
    outputs.square().sum().backward()
    for tensor in (x, *layer.parameters()):
        assert tensor.grad.isfinite().all()
    assert layer(x[:0]).shape == (0, 3)


def test_shapes_of_what_a_layer_reports(name: str, generator: torch.Generator) -> None:
    layer = make(name, generator)
    mean, variance = layer.weight_moments()
    assert mean.shape == variance.shape == layer.log_alpha().shape == (3, 4)
    torch.testing.assert_close(layer.log_alpha(), (variance / mean.square()).log())


def test_state_round_trip_pickle_and_deepcopy(name: str, generator: torch.Generator) -> None:
    layer, x = make(name, generator), normal((3, 4), generator)
    fresh = ALL[name](4, 3)
    fresh.load_state_dict(layer.state_dict())
    copies = [fresh, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]
    with noise_from(torch.Generator().manual_seed(1)):
        expected = layer(x)
    for other in copies:
        with noise_from(torch.Generator().manual_seed(1)):
            assert torch.equal(other(x), expected)
        assert torch.equal(other.kl(), layer.kl())


def test_the_state_of_a_dense_model_loads_strictly(name: str, generator: torch.Generator) -> None:
    dense = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    model = nn.Sequential(make(name, generator, 4, 6), nn.Tanh(), make(name, generator, 6, 3))
    noise_before = {
        key: value.clone() for key, value in model.state_dict().items() if "log_" in key
    }
    model.load_state_dict(dense.state_dict(), strict=True)
    x = normal((5, 4), generator)
    assert torch.equal(model.eval()(x), dense(x))
    for key, value in noise_before.items():
        assert torch.equal(model.state_dict()[key], value)


def test_a_state_that_lacks_or_adds_something_else_is_still_refused(
    name: str, generator: torch.Generator
) -> None:
    layer = make(name, generator)
    for key in ("weight", "bias"):
        state = layer.state_dict()
        del state[key]
        with pytest.raises(RuntimeError, match=key):
            layer.load_state_dict(state)
    with pytest.raises(RuntimeError, match="stranger"):
        layer.load_state_dict(layer.state_dict() | {"stranger": torch.zeros(1)})


def test_float32_stays_float32(name: str, generator: torch.Generator) -> None:
    layer = make(name, generator).float()
    assert layer(torch.ones(2, 4)).dtype == torch.float32
    assert layer.kl().dtype == torch.float32


def test_pruning_all_or_nothing_leaves_a_sound_layer(name: str, generator: torch.Generator) -> None:
    layer, x = make(name, generator), normal((3, 4), generator)
    layer.prune(-100.0)
    if not layer.prunable:
        assert layer.kept is None
        return
    assert not layer.weight.any()
    assert torch.equal(layer(x), layer.bias.expand(3, 3))
    layer(x).sum().backward()
    assert not layer.weight.grad.any()
    fresh = ALL[name](4, 3)
    fresh.load_state_dict(layer.state_dict())
    assert not fresh.kept.any()
    fresh.load_state_dict(make(name, generator).state_dict())
    assert fresh.kept is None


def test_unknown_options_are_refused(name: str, generator: torch.Generator) -> None:
    cls = type(make(name, generator))
    wrong = {"rate": 1.0} if name in {"binary", "gaussian"} else {"rates": "row"}
    with pytest.raises(DpvdError, match=next(iter(wrong))):
        cls(4, 3, **wrong)
