"""One example moves the clipped sum by at most the stated sensitivity, whatever it is."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpvd.errors import DpvdError
from dpvd.grads import Clipping, ClippingMode, Engine, GradientClipper, clipped_grad
from dpvd.nn import AdditiveLinear, noise_from
from dpvd.privacy import Relation
from tests.grads.models import FEATURES, LAYERS, cross_entropy, make_batch, two_layers

BOUNDED = [mode for mode in ClippingMode if mode is not ClippingMode.NONE]


def distance(first, second) -> float:
    return math.sqrt(
        sum(float((first.grads[n] - second.grads[n]).square().sum()) for n in first.grads)
    )


def clipped(model, batch, clipping):
    """Rows keep their noise when the last ones are left out: the draw is made row by row."""
    with noise_from(torch.Generator().manual_seed(3)):
        return clipped_grad(model, cross_entropy, batch, clipping=clipping, engine=Engine.FACTORED)


@settings(max_examples=60, deadline=None)
@given(
    layer=st.sampled_from(
        ["linear", "type B per weight", "additive per weight", "additive tied", "no rule"]
    ),
    mode=st.sampled_from(BOUNDED),
    clip_norm=st.floats(0.05, 5.0),
    size=st.floats(0, 1e6),
    seed=st.integers(0, 2**31),
)
def test_removing_or_replacing_one_example(layer, mode, clip_norm, size, seed):
    generator = torch.Generator().manual_seed(seed)
    model, clipping = two_layers(LAYERS[layer]).eval(), Clipping(mode, clip_norm)
    x, y = make_batch(5, generator)
    x[-1] *= size
    whole, without = clipped(model, (x, y), clipping), clipped(model, (x[:-1], y[:-1]), clipping)
    assert distance(whole, without) <= whole.sensitivity(Relation.ADD_OR_REMOVE) * (1 + 1e-9)
    other = x.clone()
    other[-1] = torch.randn(FEATURES, generator=generator, dtype=torch.float64) * size
    relabelled = y.clone()
    relabelled[-1] = (y[-1] + 1) % 3
    replaced = clipped(model, (other, relabelled), clipping)
    assert distance(whole, replaced) <= whole.sensitivity(Relation.REPLACE_ONE) * (1 + 1e-9)


@pytest.mark.parametrize("mode", BOUNDED)
def test_the_bound_is_reached(mode, generator):
    """A bound far above what happens would waste accuracy: a large example comes close to it."""
    model, clipping = two_layers(LAYERS["linear"]), Clipping(mode, 0.05)
    x, y = make_batch(1, generator)
    single = clipped(model, (x * 10, y), clipping)
    empty = clipped(model, (x[:0], y[:0]), clipping)
    assert distance(single, empty) >= 0.8 * single.sensitivity(Relation.ADD_OR_REMOVE)


@pytest.mark.parametrize(
    ("mode", "layers", "expected"),
    [
        (ClippingMode.FLAT, 2, 2.0),
        (ClippingMode.AUTOMATIC, 2, 2.0),
        (ClippingMode.PER_LAYER, 2, 2 * math.sqrt(2)),
    ],
)
def test_sensitivity_follows_from_the_clipping_in_force(mode, layers, expected, generator):
    model = two_layers(LAYERS["linear"])
    clipping = Clipping(mode, clip_norm=2.0)
    result = clipped(model, make_batch(3, generator), clipping)
    assert result.sensitivity(Relation.ADD_OR_REMOVE) == pytest.approx(expected, rel=1e-12)
    assert result.sensitivity(Relation.REPLACE_ONE) == pytest.approx(2 * expected, rel=1e-12)
    clipper = GradientClipper(model, cross_entropy, clipping=clipping)
    assert clipper.sensitivity(Relation.ADD_OR_REMOVE) == result.sensitivity(Relation.ADD_OR_REMOVE)
    assert result.norms.shape == (3, layers if mode is ClippingMode.PER_LAYER else 1)


def test_per_layer_clipping_reaches_beyond_the_flat_bound(generator):
    """Accounting per-layer clipping as flat would under-state the sensitivity: this sum is longer
    than C.
    """
    model, clipping = two_layers(LAYERS["linear"]), Clipping(ClippingMode.PER_LAYER, 0.1)
    x, y = make_batch(1, generator)
    single = clipped(model, (x, y), clipping)
    length = math.sqrt(sum(float(g.square().sum()) for g in single.grads.values()))
    assert length > 0.1 * 1.3
    assert length <= single.sensitivity(Relation.ADD_OR_REMOVE)


def test_gradients_shorter_than_the_clip_norm_are_left_as_they_are():
    norms = torch.tensor([[0.0], [0.3], [1.9], [8.0], [math.inf]], dtype=torch.float64)
    factors = Clipping(ClippingMode.FLAT, clip_norm=2.0).factors(norms)
    assert factors.flatten().tolist() == pytest.approx([1.0, 1.0, 1.0, 0.25, 0.0], rel=1e-12)


def test_no_clipping_has_no_bound():
    assert Clipping(ClippingMode.NONE).sensitivity(Relation.ADD_OR_REMOVE, 1) == math.inf


def test_float32_rounding_does_not_break_the_bound(generator):
    clipping = Clipping(ClippingMode.FLAT, 1.0)
    model = two_layers(LAYERS["linear"]).float()
    x, y = make_batch(256, generator)
    for i in range(256):
        single = clipped(model, (x[i : i + 1].float(), y[i : i + 1]), clipping)
        exact = math.sqrt(sum(float(g.double().square().sum()) for g in single.grads.values()))
        assert exact <= 1.0


@pytest.mark.parametrize(
    "bad", [{"clip_norm": 0.0}, {"clip_norm": -1.0}, {"clip_norm": math.nan}, {"mode": "round"}]
)
def test_bad_clipping_is_refused(bad):
    with pytest.raises(DpvdError):
        Clipping(**bad)


def test_clipping_round_trips():
    clipping = Clipping(ClippingMode.PER_LAYER, 2.0)
    assert Clipping.from_dict(clipping.to_dict()) == clipping
    with pytest.raises(DpvdError):
        Clipping.from_dict({"norm": 1})


class ChangesItsInput(nn.Module):
    """Writes over what a layer has seen in a way that autograd is not told of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = AdditiveLinear(6, 3, rates="layer", learned=False)
        self.layer.set_scale(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        x.data.mul_(1000.0)
        return y


def test_norms_are_those_of_what_is_added_up_even_if_it_was_changed_unnoticed(generator):
    """The gradient is wrong then, but no longer than allowed."""
    batch = torch.randn(1, 6, generator=generator), torch.tensor([1])
    found = clipped(ChangesItsInput(), batch, Clipping("flat", clip_norm=0.5))
    assert torch.cat([grad.flatten() for grad in found.grads.values()]).norm() <= 0.5
