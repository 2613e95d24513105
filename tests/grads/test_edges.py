"""What is refused, what falls back, and what broken examples do."""

import logging
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dpvd.errors import DpvdError
from dpvd.grads import Clipping, ClippingMode, Engine, clipped_grad
from dpvd.nn import noise_from
from tests.grads.models import LAYERS, cross_entropy, make_batch, two_layers

ENGINES = [Engine.FACTORED, Engine.VMAP, Engine.LOOP]


def engine_used(model, batch, caplog, loss_fn=cross_entropy) -> str:
    """What AUTO settled on, from what it logged of those it passed over."""
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="dpvd"):
        clipped_grad(model, loss_fn, batch, clipping=Clipping())
    return caplog.text


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(7), nn.SyncBatchNorm(7), nn.BatchNorm1d(7, affine=False)]
)
def test_batch_norm_is_refused_with_reason_and_replacement(norm, generator):
    model = nn.Sequential(nn.Linear(5, 7), norm, nn.Linear(7, 3)).double()
    with pytest.raises(
        DpvdError, match=r"'1' normalises with statistics of the whole batch.*nn\.GroupNorm"
    ):
        clipped_grad(model, cross_entropy, make_batch(4, generator), clipping=Clipping())


def test_running_statistics_are_refused(generator):
    model = nn.Sequential(
        nn.Linear(5, 7), nn.InstanceNorm1d(7, track_running_stats=True), nn.Linear(7, 3)
    ).double()
    with pytest.raises(DpvdError, match="running statistics"):
        clipped_grad(model, cross_entropy, make_batch(4, generator), clipping=Clipping())


def test_batch_norm_with_frozen_statistics_is_fine(generator):
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3)).double().eval()
    batch = make_batch(4, generator)
    ours = clipped_grad(model, cross_entropy, batch, clipping=Clipping())
    truth = clipped_grad(model, cross_entropy, batch, clipping=Clipping(), engine="loop")
    torch.testing.assert_close(ours.grads, truth.grads)


class Centred(nn.Module):
    """A custom module that mixes examples: no list of types can know it."""

    def forward(self, x):
        return x - x.mean(0)


def test_custom_mixing_of_examples_is_refused(generator):
    model = nn.Sequential(nn.Linear(5, 7), Centred(), nn.Linear(7, 3)).double()
    with pytest.raises(
        DpvdError, match="changes when the other examples of its batch are replaced"
    ):
        clipped_grad(model, cross_entropy, make_batch(4, generator), clipping=Clipping())


def test_a_loss_that_mixes_examples_is_refused(generator):
    def contrastive(model, x, y):
        out = model(x)
        return F.cross_entropy(out @ out.T, torch.arange(len(x)), reduction="none")

    with pytest.raises(DpvdError, match="mixes examples"):
        clipped_grad(
            two_layers(LAYERS["linear"]), contrastive, make_batch(4, generator), clipping=Clipping()
        )


@pytest.mark.parametrize("loss", [F.cross_entropy, lambda logits, y: 1.0])
def test_a_reduced_loss_is_refused(loss, generator):
    with pytest.raises(DpvdError, match=r"one value per example, shape \[4\].*reduction='none'"):
        clipped_grad(
            two_layers(LAYERS["linear"]),
            lambda model, x, y: loss(model(x), y),
            make_batch(4, generator),
            clipping=Clipping(),
            engine="factored",
        )


@pytest.mark.parametrize(
    "batch", [(), (torch.zeros(3, 5), torch.zeros(2)), ("a",), torch.tensor(1.0)]
)
def test_bad_batches_are_refused(batch):
    with pytest.raises(DpvdError, match="batch"):
        clipped_grad(two_layers(LAYERS["linear"]), cross_entropy, batch, clipping=Clipping())


def test_a_model_without_parameters_is_refused(generator):
    with pytest.raises(DpvdError, match="no trainable parameter"):
        clipped_grad(nn.ReLU(), cross_entropy, make_batch(2, generator), clipping=Clipping())


def test_unknown_engine_is_refused(generator):
    with pytest.raises(
        DpvdError, match="engine must be one of auto, factored, vmap, loop; got 'warp'"
    ):
        clipped_grad(
            two_layers(LAYERS["linear"]),
            cross_entropy,
            make_batch(2, generator),
            clipping=Clipping(),
            engine="warp",
        )


@pytest.mark.parametrize("engine", [*ENGINES, Engine.AUTO])
def test_an_empty_batch_gives_zeros(engine, generator):
    model = two_layers(LAYERS["additive per weight"])
    result = clipped_grad(
        model, cross_entropy, make_batch(0, generator), clipping=Clipping(), engine=engine
    )
    assert result.count == 0
    assert result.norms.shape == (0, 1)
    assert set(result.grads) == {name for name, _ in model.named_parameters()}
    assert not any(g.any() for g in result.grads.values())


@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e200])
@pytest.mark.parametrize("mode", ClippingMode)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("layer", ["linear", "additive per weight", "no rule"])
def test_a_non_finite_example_contributes_zero_and_is_counted(
    layer, engine, mode, poison, generator
):
    model = two_layers(LAYERS[layer]).eval()
    x, y = make_batch(5, generator)
    x[2] = poison

    def loss(model, x, y):  # squares overflow for 1e200: the loss itself is then infinite
        return cross_entropy(model, x, y) + x.square().sum(1) * 0

    result = clipped_grad(model, loss, (x, y), clipping=Clipping(mode), engine=engine)
    kept = [0, 1, 3, 4]
    clean = clipped_grad(model, loss, (x[kept], y[kept]), clipping=Clipping(mode), engine=engine)
    assert result.non_finite == 1
    for name, gradient in clean.grads.items():
        torch.testing.assert_close(result.grads[name], gradient, rtol=1e-12, atol=1e-12)


def test_all_examples_non_finite(generator):
    x, y = make_batch(3, generator)
    result = clipped_grad(
        two_layers(LAYERS["linear"]), cross_entropy, (x * math.nan, y), clipping=Clipping()
    )
    assert result.non_finite == 3
    assert not any(g.any() for g in result.grads.values())


class BehindTheBack(nn.Module):
    """Uses a layer's weight without calling the layer."""

    def __init__(self):
        super().__init__()
        self.encoder, self.head = nn.Linear(5, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.encoder(x))) + F.linear(x, self.encoder.weight.square())


class SequenceFirst(nn.Module):
    """Puts the batch second before its layer: as many positions as examples would fool a check of
    shapes.
    """

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x):  # [B, T, 5]
        return torch.tanh(self.layer(x.transpose(0, 1))).transpose(0, 1).sum(1)


class Pair(nn.Module):
    """Returns two tensors from a module that owns parameters."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(5, 3))

    def forward(self, x):
        return x @ self.w, x


class TakesPair(nn.Module):
    def __init__(self):
        super().__init__()
        self.pair = Pair()

    def forward(self, x):
        return self.pair(x)[0]


class Branching(nn.Module):
    """Control flow that depends on values: torch.func cannot map it."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(5, 3))

    def forward(self, x):
        return torch.stack([row @ self.w if row.sum() > 0 else (row * 2) @ self.w for row in x])


class OverwritesInput(nn.Module):
    """Changes a layer's input in place after the call."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x):
        x = x.clone()
        out = self.layer(x)
        x.zero_()
        return out + x.sum(1, keepdim=True)


class _Opaque(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x.detach() @ w.detach()

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.T, x.T @ grad


class HidesFromTorch(nn.Module):
    """Multiplies in an autograd function of its own, in which nothing can be followed."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(5, 3))

    def forward(self, x):
        return _Opaque.apply(x, self.w)


class DropsInside(nn.Module):
    """Own parameters and torch's dropout in one module."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(5, 3))
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(x @ self.w)


@pytest.mark.parametrize(
    ("make", "positions", "passed_over"),
    [
        (HidesFromTorch, None, "factored"),
        (Branching, None, "vmap"),
    ],
)
def test_auto_falls_back_and_says_so(make, positions, passed_over, generator, caplog):
    model = make().double()
    batch = make_batch(3, generator, positions)
    text = engine_used(model, batch, caplog)
    assert f"the {passed_over} engine cannot take {make.__name__}" in text
    ours = clipped_grad(model, cross_entropy, batch, clipping=Clipping())
    truth = clipped_grad(model, cross_entropy, batch, clipping=Clipping(), engine="loop")
    torch.testing.assert_close(ours.norms, truth.norms)
    torch.testing.assert_close(ours.grads, truth.grads)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (HidesFromTorch, "parameter 'w' reaches the loss on a way that could not be followed"),
        (OverwritesInput, "changed in place"),
    ],
)
def test_the_factored_engine_by_name_says_why_it_cannot(make, why, generator):
    with pytest.raises(DpvdError, match=why):
        clipped_grad(
            make().double(),
            cross_entropy,
            make_batch(3, generator),
            clipping=Clipping(),
            engine="factored",
        )


@pytest.mark.parametrize(
    ("make", "positions"),
    [
        (BehindTheBack, None),
        (SequenceFirst, 3),
        (SequenceFirst, 4),
        (TakesPair, None),
        (DropsInside, None),
    ],
)
def test_the_fast_engine_takes_what_has_no_rule_or_the_batch_elsewhere(make, positions, generator):
    model = make().double().eval()
    batch = make_batch(3, generator, positions)
    ours = clipped_grad(model, cross_entropy, batch, clipping=Clipping(), engine="factored")
    truth = clipped_grad(model, cross_entropy, batch, clipping=Clipping(), engine="loop")
    torch.testing.assert_close(ours.norms, truth.norms, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(ours.grads, truth.grads, rtol=1e-10, atol=1e-10)


def test_a_layer_with_two_inputs_is_noticed(generator):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, x):
            return self.layer(input=x)

    with pytest.raises(DpvdError, match="more than one input"):
        clipped_grad(
            Odd().double(),
            cross_entropy,
            make_batch(3, generator),
            clipping=Clipping(),
            engine="factored",
        )


@pytest.mark.parametrize("layer", LAYERS)
def test_auto_takes_the_fast_engine_for_every_layer(layer, generator, caplog):
    text = engine_used(two_layers(LAYERS[layer]), make_batch(4, generator), caplog)
    assert "cannot take" not in text


def test_modules_without_a_rule_are_named_once_for_each_model(generator, caplog):
    batch = make_batch(3, generator)
    for _ in range(2):
        model = two_layers(LAYERS["no rule"])
        text = engine_used(model, batch, caplog)
        assert text.count("Unruly ('0') has no gradient rule") == 1
        assert text.count("Unruly ('2') has no gradient rule") == 1
        model.eval()  # is looked at anew
        assert "no gradient rule" not in engine_used(model, batch, caplog)


def test_keyword_and_constant_inputs_reach_the_fallback(generator):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(5, 3))

        def forward(self, x, factor, *, shift):
            return (x * factor) @ self.w + shift

    class Uses(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Scaled()

        def forward(self, x):
            return self.inner(x, torch.linspace(0, 1, 5, dtype=x.dtype), shift=2.0)

    model, batch = Uses().double(), make_batch(4, generator)
    ours = clipped_grad(model, cross_entropy, batch, clipping=Clipping(), engine="factored")
    truth = clipped_grad(model, cross_entropy, batch, clipping=Clipping(), engine="loop")
    torch.testing.assert_close(ours.grads, truth.grads)


def test_ordinary_dropout_trains(generator):
    """torch's dropout draws per example and needs no rule; it must not trip the check against the
    oracle.
    """
    model = nn.Sequential(nn.Linear(5, 7), nn.Dropout(0.5), nn.Linear(7, 3)).double()
    result = clipped_grad(model, cross_entropy, make_batch(6, generator), clipping=Clipping())
    assert model[1].training
    assert torch.isfinite(result.norms).all()


def test_a_model_with_randomness_of_its_own_is_not_taken_for_mixing(generator, caplog):
    class Jitter(nn.Module):
        def forward(self, x):
            return x + torch.randn_like(x)

    model = nn.Sequential(Jitter(), nn.Linear(5, 3)).double()
    assert "cannot" not in engine_used(model, make_batch(4, generator), caplog)


def test_checking_does_not_move_the_callers_noise(generator):
    """AUTO checks once against the oracle; the noise of the step must be the same with and without
    the check.
    """
    model, batch = two_layers(LAYERS["additive per weight"]), make_batch(4, generator)
    results = []
    for engine in ("auto", "auto", "factored"):
        with noise_from(torch.Generator().manual_seed(9)):
            results.append(
                clipped_grad(model, cross_entropy, batch, clipping=Clipping(), engine=engine).norms
            )
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_scale_gradients_are_clipped_in_the_units_of_weights(generator):
    """Σ clip(g/J): with σ tiny, an unscaled gradient of log σ² would be a millionth of the
    weight's.
    """
    model = two_layers(lambda i, o: LAYERS["additive per weight"](i, o))
    batch = make_batch(64, generator)
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.log_sigma2.fill_(-20.0)
    result = clipped_grad(model, cross_entropy, batch, clipping=Clipping())
    sigma = math.exp(-10)
    assert result.jacobian["0.log_sigma2"].max() == pytest.approx(sigma / 2)
    ratio = result.grads["0.log_sigma2"].norm() / result.grads["0.weight"].norm()
    assert ratio > 0.01


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (
            lambda model, x, y: (model(x).argmax(1) != y).long(),
            "floating-point type, got torch.int64",
        ),
        (
            lambda model, x, y: cross_entropy(model, x, y).detach(),
            "does not depend on any trainable parameter",
        ),
    ],
)
@pytest.mark.parametrize("engine", Engine)
def test_a_loss_that_cannot_be_differentiated_is_refused(loss, words, engine, generator):
    x = torch.randn(6, 5, generator=generator)
    batch = (x, torch.zeros(6, dtype=torch.long))
    with pytest.raises(DpvdError, match=words):
        clipped_grad(nn.Linear(5, 3), loss, batch, clipping=Clipping(), engine=engine)


def test_autocast_belongs_around_the_forward_pass_alone(generator):
    """Factors in half precision would be too coarse for the sums; so would clipping in half
    precision.
    """

    def in_half_precision(model, x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(x)
        return nn.functional.cross_entropy(logits.float(), y, reduction="none")

    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    x = torch.randn(6, 5, generator=generator)
    batch = (x, torch.zeros(6, dtype=torch.long))
    ours = clipped_grad(model, in_half_precision, batch, clipping=Clipping())
    truth = clipped_grad(model, in_half_precision, batch, clipping=Clipping(), engine="loop")
    torch.testing.assert_close(ours.grads, truth.grads, rtol=0.02, atol=0.02)
    with torch.autocast("cpu"), pytest.raises(DpvdError, match="put it into the loss"):
        clipped_grad(model, cross_entropy, batch, clipping=Clipping())
