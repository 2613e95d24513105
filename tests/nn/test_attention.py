"""Attention with weight noise: torch's layer without it, the right distribution with it."""

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor, nn

from dpvd import nn as dn
from dpvd.errors import DpvdError
from dpvd.nn import AdditiveMultiheadAttention, MultiplicativeMultiheadAttention
from dpvd.nn.attention.core import matrices
from tests.nn.cases import normal

WIDTH, HEADS = 6, 2
FAMILIES = {
    "additive": (AdditiveMultiheadAttention, {"log_sigma2": -2.0}),
    "multiplicative": (MultiplicativeMultiheadAttention, {"log_alpha": -1.0}),
}
SHAPES = [
    {},
    {"batch_first": True, "bias": False, "add_bias_kv": True},
    {"kdim": 3, "vdim": 5, "add_zero_attn": True},
    {"batch_first": True, "kdim": 3, "vdim": 5, "add_bias_kv": True, "add_zero_attn": True},
]
TIED = {"rates": "layer", "learned": False}


def pair(family: str = "additive", *, noise: dict | None = None, **shape: object):
    """A torch layer and ours with its state."""
    cls, start = FAMILIES[family]
    torch_layer = nn.MultiheadAttention(WIDTH, HEADS, dtype=torch.float64, **shape)
    ours = cls(WIDTH, HEADS, dtype=torch.float64, **shape, **start | (noise or {}))
    ours.load_state_dict(torch_layer.state_dict(), strict=True)
    return torch_layer, ours


def inputs(
    layer: nn.MultiheadAttention, generator: torch.Generator, count: int = 4
) -> tuple[Tensor, ...]:
    """Query, key and value: 3 queries and 5 keys."""
    sizes = ((3, WIDTH), (5, layer.kdim), (5, layer.vdim))
    found = [normal((count, *size), generator) for size in sizes]
    return tuple(x if layer.batch_first else x.transpose(0, 1) for x in found)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_without_noise_it_is_the_torch_layer(family, shape, generator):
    torch_layer, ours = pair(family, **shape)
    given = inputs(ours, generator)
    for got, expected in zip(ours.eval()(*given), torch_layer(*given), strict=True):
        assert torch.equal(got, expected)
    with dn.sampling(False):
        assert torch.equal(ours.train()(*given)[0], torch_layer(*given)[0])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"need_weights": False},
        {"average_attn_weights": False},
        {"attn_mask": "additive", "need_weights": False},
        {"attn_mask": "boolean", "key_padding_mask": "boolean"},
        {"attn_mask": "of each head", "key_padding_mask": "additive"},
        {"attn_mask": "boolean", "is_causal": True, "need_weights": False},
        {"key_padding_mask": "boolean", "need_weights": False},
    ],
)
@pytest.mark.parametrize("shape", SHAPES)
def test_noise_of_scale_zero_gives_what_torch_gives_whatever_the_options(shape, options, generator):
    torch_layer, silent = pair(noise=TIED | {"log_sigma2": -math.inf}, **shape)
    causal = torch.ones(3, 5, dtype=torch.bool).triu(1)
    masks = {
        "boolean": causal,
        "additive": normal((3, 5), generator),
        "of each head": normal((4 * HEADS, 3, 5), generator),
    }
    padding = torch.arange(5) >= torch.tensor([5, 4, 3, 1])[:, None]
    paddings = {"boolean": padding, "additive": padding * -2.0}
    options = dict(options)
    if "attn_mask" in options:
        options["attn_mask"] = masks[options["attn_mask"]]
    if "key_padding_mask" in options:
        options["key_padding_mask"] = paddings[options["key_padding_mask"]].to(
            torch.bool if options["key_padding_mask"] == "boolean" else torch.float64
        )
    given = inputs(silent, generator)
    expected, got = torch_layer(*given, **options), silent(*given, **options)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("batch_first", [True, False])
def test_one_draw_with_the_batch_first(batch_first, generator):
    _, layer = pair(batch_first=batch_first)
    tape, given = dn.NoiseTape(), inputs(layer, generator)
    with tape.recording():
        whole, _ = layer(*given)
    assert [tuple(noise.shape) for noise in tape.draws] == [(4, 3 + 5 + 5 + 3, WIDTH)]
    batch = 0 if batch_first else 1
    with tape.replaying(2):
        alone, _ = layer(*(x.narrow(batch, 2, 1) for x in given))
    torch.testing.assert_close(alone, whole.narrow(batch, 2, 1), rtol=1e-12, atol=1e-12)


def test_rows_and_positions_have_noise_of_their_own():
    _, layer = pair(batch_first=True)
    values, weights = layer(*[torch.ones(4, 3, WIDTH, dtype=torch.float64)] * 3)
    assert len(values.flatten(0, 1).unique(dim=0)) == 12
    assert (
        len(weights.flatten(0, 1).unique(dim=0)) == 12
    )  # noise on keys that are alike does not cancel


@pytest.mark.parametrize("rates", ["layer", "neuron", "weight"])
@pytest.mark.parametrize("family", FAMILIES)
def test_noise_has_the_variance_of_noise_on_the_weights(family, rates, generator):
    """One key: attention gives back its value a = x∗θ_value, and y = a∗θ_out.

    E[y²] = (E[a]∗φ)² + Var(a)∗φ² + E[a²]∗Var(θ_out). The sample mean of y² over 40,000 rows has a
    relative standard deviation of at most 1.4 %, that of a product of two Gaussians: the bound is
    five of them.
    """
    _, layer = pair(family, noise={"rates": rates}, batch_first=True, bias=False)
    x = normal((WIDTH,), generator)
    with torch.no_grad(), dn.noise_from(generator):
        sample = layer(*[x.expand(40_000, 1, WIDTH)] * 3)[0][:, 0]
    mean, variance = (layer.blocks(part.detach()) for part in layer.weight_moments())
    of_value, spread = mean["value"] @ x, variance["value"] @ x.square()
    expected = (mean["out"] @ of_value).square() + mean["out"].square() @ spread
    expected += variance["out"] @ (of_value.square() + spread)
    assert ((sample.square().mean(0) / expected - 1).abs() < 0.07).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rates", ["weight", "neuron", "layer"])
def test_kl_log_alpha_and_sparsity_cover_every_matrix(rates, shape):
    _, layer = pair(noise={"rates": rates}, **shape)
    every = list(matrices(layer).values())
    expected = sum(layer.prior.kl(w, torch.tensor(-2.0, dtype=w.dtype)).sum() for w in every)
    torch.testing.assert_close(dn.kl(layer), expected)
    assert dn.sparsity(layer).total.weights == sum(w.numel() for w in every)
    assert dn.log_alpha(layer)[""].shape == (WIDTH, sum(w.shape[1] for w in every))
    layer.kl().backward()
    means = [p for name, p in layer.named_parameters() if "weight" in name]
    assert all(p.grad.abs().max() > 0 for p in means)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_pruned_weights_are_zero_and_stay_so(family, shape, generator):
    _, layer = pair(family, **shape)
    with torch.no_grad():
        if family == "multiplicative":
            layer.log_rate += 3 * normal(layer.log_rate.shape, generator)
    result = dn.prune(layer, 1.0)
    assert 0 < result.fraction < 1
    zero = layer.weight == 0
    assert torch.equal(zero, ~layer.kept)
    given = inputs(layer, generator)
    for mode in (True, False):
        optimizer = torch.optim.SGD(layer.train(mode).parameters(), lr=0.1)
        layer(*given)[0].square().sum().backward()
        optimizer.step()
        assert torch.equal(layer.weight == 0, zero)
    cls, start = FAMILIES[family]
    again = cls(WIDTH, HEADS, dtype=torch.float64, **shape, **start)
    again.load_state_dict(layer.state_dict())
    torch.testing.assert_close(again.eval()(*given)[0], layer.eval()(*given)[0])


def test_compressing_and_exporting_keep_what_it_computes(generator):
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            _, self.layer = pair(batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x, x, x)[0]

    model, x = Attends(), normal((2, 3, WIDTH), generator)
    dn.prune(model, 1.0)
    smaller, _ = dn.compress(model)
    torch.testing.assert_close(smaller(x), model.eval()(x))
    state = dn.sparse_state(model.layer).to_dense()
    plain = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64)
    plain.load_state_dict(state)
    torch.testing.assert_close(plain(x, x, x)[0], model(x))


def test_tied_layers_take_their_scale_from_outside():
    _, layer = pair(noise=TIED)
    assert dn.set_scale(nn.Sequential(layer), 0.5) == 1
    assert layer.log_sigma2.exp().item() == pytest.approx(0.25)


def test_it_samples_in_eval_mode_when_asked_to(generator):
    _, layer = pair(batch_first=True)
    given = inputs(layer.eval(), generator)
    with torch.no_grad(), dn.sampling():
        assert not torch.equal(layer(*given)[0], layer(*given)[0])


def test_copies_and_pickles_are_the_layer(generator):
    _, layer = pair(batch_first=True)
    given = inputs(layer, generator)
    with dn.noise_from(torch.Generator().manual_seed(0)):
        expected = layer(*given)[0]
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        with dn.noise_from(torch.Generator().manual_seed(0)):
            assert torch.equal(other(*given)[0], expected)


def test_it_shows_its_sizes_and_its_noise():
    assert "6, 2, rates=weight, learned=True" in repr(pair()[1])


def test_what_it_does_not_take_is_refused(generator):
    _, layer = pair()
    single = normal((3, WIDTH), generator)
    with pytest.raises(DpvdError, match="give a single sequence a batch of 1"):
        layer(single, single, single)
    assert layer.eval()(single, single, single)[0].shape == (3, WIDTH)
    with pytest.raises(DpvdError, match="attn_mask, which is missing"):
        layer.train()(*inputs(layer, generator), is_causal=True)
    with pytest.raises(DpvdError, match="type B only"):
        MultiplicativeMultiheadAttention(WIDTH, HEADS, kind="A", rates="layer", prior="ard")
