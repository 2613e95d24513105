"""Every engine equals the oracle: every layer, clipping mode and loss, all batch sizes."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from dpvd.grads import ClippedSum, Clipping, ClippingMode, Engine, clipped_grad
from dpvd.nn import noise_from
from tests.grads.models import LAYERS, LOSSES, cross_entropy, make_batch, two_layers

FAST = [Engine.FACTORED, Engine.VMAP]
TOLERANCE = 1e-10


def run(engine, model, loss_fn, batch, clipping) -> ClippedSum:
    with noise_from(torch.Generator().manual_seed(1)):
        return clipped_grad(model, loss_fn, batch, clipping=clipping, engine=engine)


def assert_equal(ours: ClippedSum, truth: ClippedSum) -> None:
    assert ours.grads.keys() == truth.grads.keys()
    for name, expected in truth.grads.items():
        assert ours.grads[name].shape == expected.shape, name
        assert (ours.grads[name] - expected).abs().max() <= TOLERANCE * (
            1 + expected.abs().max()
        ), name
    torch.testing.assert_close(ours.norms, truth.norms, rtol=TOLERANCE, atol=TOLERANCE)
    torch.testing.assert_close(ours.losses, truth.losses, rtol=TOLERANCE, atol=TOLERANCE)
    assert (ours.count, ours.non_finite, ours.groups) == (
        truth.count,
        truth.non_finite,
        truth.groups,
    )


@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize("mode", ClippingMode)
@pytest.mark.parametrize("layer", LAYERS)
def test_engine_equals_oracle_for_every_layer_and_mode(layer, mode, engine, generator):
    model = two_layers(LAYERS[layer])
    batch = make_batch(6, generator)
    clipping = Clipping(mode, clip_norm=0.8)
    truth = run(Engine.LOOP, model, cross_entropy, batch, clipping)
    assert_equal(run(engine, model, cross_entropy, batch, clipping), truth)
    if mode is ClippingMode.FLAT:  # the case must exercise both sides of the clip
        assert truth.norms.max() > 0.8


@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("layer", LAYERS)
def test_engine_equals_oracle_for_every_loss(layer, loss, engine, generator):
    model = two_layers(LAYERS[layer])
    batch = make_batch(5, generator)
    truth = run(Engine.LOOP, model, LOSSES[loss], batch, Clipping())
    assert_equal(run(engine, model, LOSSES[loss], batch, Clipping()), truth)


@pytest.mark.parametrize("layer", LAYERS)
def test_factored_engine_equals_oracle_on_sequences(layer, generator):
    """[B, T, features]: with T=2 the Gram form is cheaper, with T=6 the gradient is
    materialised.
    """
    model = two_layers(LAYERS[layer])
    for positions in (1, 2, 6):
        batch = make_batch(3, generator, positions)
        truth = run(Engine.LOOP, model, cross_entropy, batch, Clipping())
        assert_equal(run(Engine.FACTORED, model, cross_entropy, batch, Clipping()), truth)


@settings(max_examples=60, deadline=None)
@given(
    layer=st.sampled_from(sorted(LAYERS)),
    mode=st.sampled_from(list(ClippingMode)),
    count=st.integers(0, 9),
    widths=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    clip_norm=st.floats(0.01, 10.0),
    seed=st.integers(0, 2**31),
)
def test_engines_agree_on_any_shape(layer, mode, count, widths, clip_norm, seed):
    generator = torch.Generator().manual_seed(seed)
    stack: list[nn.Module] = []
    for i, o in pairwise(widths):
        stack += [LAYERS[layer](i, o), nn.ReLU()]
    model = nn.Sequential(*stack[:-1]).double()
    x = torch.randn(count, widths[0], generator=generator, dtype=torch.float64)
    y = torch.randint(widths[-1], (count,), generator=generator)
    clipping = Clipping(mode, clip_norm)
    truth = run(Engine.LOOP, model, cross_entropy, (x, y), clipping)
    for engine in (*FAST, Engine.AUTO):
        assert_equal(run(engine, model, cross_entropy, (x, y), clipping), truth)


class Tied(nn.Module):
    """One parameter under two names, one layer called twice, one layer unused."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.second.weight = self.first.weight
        self.out = nn.Linear(5, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        h = torch.tanh(self.second(torch.tanh(self.first(x))))
        return self.out(torch.tanh(self.first(h)))


@pytest.mark.parametrize("engine", [*FAST, Engine.AUTO])
@pytest.mark.parametrize("mode", [ClippingMode.FLAT, ClippingMode.PER_LAYER])
def test_tied_reused_and_unused_parameters(mode, engine, generator):
    model = Tied().double()
    batch = make_batch(4, generator)
    truth = run(Engine.LOOP, model, cross_entropy, batch, Clipping(mode, 0.5))
    ours = run(engine, model, cross_entropy, batch, Clipping(mode, 0.5))
    assert_equal(ours, truth)
    assert not ours.grads["unused.weight"].any()


class SharedModule(nn.Module):
    """One module under three names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.second = self.first
        self.rest = nn.Sequential(self.first, nn.Linear(5, 3))

    def forward(self, x):
        return self.rest(torch.tanh(self.second(torch.tanh(self.first(x)))))


class LossModule(nn.Module):
    """A loss that holds the model as well."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, model, x, y):
        return cross_entropy(self.model, x, y)


@pytest.mark.parametrize("engine", [*FAST, Engine.AUTO])
@pytest.mark.parametrize("held", [False, True])
def test_parameters_of_a_module_with_several_names_stay_parameters(held, engine, generator):
    model = SharedModule().double()
    loss_fn = LossModule(model) if held else cross_entropy
    batch = make_batch(4, generator)
    truth = run(Engine.LOOP, model, loss_fn, batch, Clipping())
    assert_equal(run(engine, model, loss_fn, batch, Clipping()), truth)
    assert isinstance(model.first.weight, nn.Parameter)
    assert model.first.weight.requires_grad


def test_in_place_activations_are_seen_rightly(generator):
    """ReLU(inplace=True) overwrites a layer's output after the engine has seen it."""
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(inplace=True), nn.Linear(7, 3)).double()
    batch = make_batch(4, generator)
    truth = run(Engine.LOOP, model, cross_entropy, batch, Clipping())
    assert_equal(run(Engine.FACTORED, model, cross_entropy, batch, Clipping()), truth)


def test_frozen_parameters_take_no_part(generator):
    model = two_layers(LAYERS["linear"])
    model[0].weight.requires_grad_(False)
    batch = make_batch(4, generator)
    truth = run(Engine.LOOP, model, cross_entropy, batch, Clipping())
    ours = run(Engine.FACTORED, model, cross_entropy, batch, Clipping())
    assert_equal(ours, truth)
    assert "0.weight" not in ours.grads


def test_eval_mode_has_no_noise(generator):
    model = two_layers(LAYERS["additive per weight"]).eval()
    batch = make_batch(4, generator)
    truth = run(Engine.LOOP, model, cross_entropy, batch, Clipping())
    assert_equal(run(Engine.FACTORED, model, cross_entropy, batch, Clipping()), truth)
    assert not truth.grads["0.log_sigma2"].any()


def test_unclipped_sum_is_the_ordinary_gradient(generator):
    model = two_layers(LAYERS["linear"])
    x, y = make_batch(8, generator)
    expected = torch.autograd.grad(
        F.cross_entropy(model(x), y, reduction="sum"), list(model.parameters())
    )
    ours = run(Engine.FACTORED, model, cross_entropy, (x, y), Clipping(ClippingMode.NONE))
    for gradient, truth in zip(ours.grads.values(), expected, strict=True):
        torch.testing.assert_close(gradient, truth, rtol=1e-12, atol=1e-12)


def test_nothing_of_the_model_is_changed(generator):
    model = two_layers(LAYERS["additive per weight"])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run(Engine.AUTO, model, cross_entropy, make_batch(4, generator), Clipping())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_noise_differs_between_examples(generator):
    """One weight draw shared by the batch would couple examples: equal rows must get unequal
    noise.
    """
    model = two_layers(LAYERS["additive per weight"])
    x, y = make_batch(1, generator)
    result = run(Engine.FACTORED, model, cross_entropy, (x.repeat(16, 1), y.repeat(16)), Clipping())
    assert len(result.norms.unique()) == 16
