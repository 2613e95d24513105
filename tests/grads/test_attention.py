"""Multi-head attention through the factored engine equals the oracle: shapes, masks, uses,
dropout.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.errors import DpvdError
from dpvd.grads import Clipping, ClippingMode, Engine, clipped_grad
from tests.grads.test_engines import assert_equal, run

CLASSES = 3


class Attends(nn.Module):
    """Attention of a sequence to itself, or to another one, and a loss on what comes out of it."""

    def __init__(
        self, layer: nn.MultiheadAttention, *, use: str = "values", masks: bool = False
    ) -> None:
        super().__init__()
        self.layer, self.use, self.masks = layer, use, masks

    def forward(
        self, x: Tensor, *memory: Tensor
    ) -> Tensor:  # [B, T, width], [B, S, kdim], [B, S, vdim]
        key, value = memory or (x, x)
        options: dict[str, object] = {
            "need_weights": self.use != "values",
            "average_attn_weights": self.use != "heads",
        }
        if self.masks:
            options["key_padding_mask"] = padding(key)
            options["attn_mask"] = torch.ones(x.shape[1], key.shape[1], dtype=torch.bool).triu(2)
        if self.layer.batch_first:
            values, weights = self.layer(x, key, value, **options)
        else:
            time_first = x.transpose(0, 1)
            others = [m.transpose(0, 1) for m in memory] if memory else [time_first, time_first]
            values, weights = self.layer(time_first, *others, **options)
            values = values.transpose(0, 1)
        result = torch.zeros(len(x), CLASSES, dtype=x.dtype)
        if self.use != "weights":
            result = result + fold(values.sin())
        return result + fold(weights.square()) if self.use != "values" else result


def padding(key: Tensor) -> Tensor:
    """Which keys of each example are hidden: those whose first entry is large, never the first
    key.
    """
    hidden = key[:, :, 0] > 0.5
    hidden[:, 0] = False
    return hidden


def fold(values: Tensor) -> Tensor:
    """[B, classes] from [B, ...], no two entries weighted alike."""
    flat = values.flatten(1)
    return flat @ torch.linspace(-1, 1, flat.shape[1] * CLASSES, dtype=flat.dtype).view(-1, CLASSES)


def loss(model: nn.Module, y: Tensor, *sequences: Tensor) -> Tensor:
    return F.cross_entropy(model(*sequences), y, reduction="none")


def sequences(
    generator: torch.Generator, count: int, *shapes: tuple[int, int]
) -> tuple[Tensor, ...]:
    y = torch.randint(CLASSES, (count,), generator=generator)
    return y, *(
        torch.randn(count, *shape, generator=generator, dtype=torch.float64) for shape in shapes
    )


def make(
    width: int = 4,
    heads: int = 2,
    *,
    kind: type[nn.MultiheadAttention] = nn.MultiheadAttention,
    use: str = "values",
    masks: bool = False,
    **options: object,
) -> Attends:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = kind(width, heads, dtype=torch.float64, **options)
        for name, parameter in layer.named_parameters():
            if "bias" in name:
                nn.init.normal_(parameter)
    return Attends(layer, use=use, masks=masks)


@pytest.mark.parametrize("mode", ClippingMode)
@pytest.mark.parametrize("batch_first", [True, False])
def test_every_mode_equals_the_oracle(batch_first, mode, generator):
    model, batch = make(batch_first=batch_first), sequences(generator, 5, (3, 4))
    clipping = Clipping(mode, clip_norm=0.5)
    truth = run(Engine.LOOP, model, loss, batch, clipping)
    assert truth.grads["layer.in_proj_weight"].abs().max() > 1e-3
    assert_equal(run(Engine.FACTORED, model, loss, batch, clipping), truth)


@settings(max_examples=60, deadline=None)
@given(
    use=st.sampled_from(["values", "weights", "both", "heads"]),
    memory=st.sampled_from(["itself", "another", "other widths"]),
    count=st.integers(0, 4),
    queries=st.integers(1, 4),
    keys=st.integers(1, 4),
    heads=st.integers(1, 3),
    per_head=st.integers(1, 3),
    masks=st.booleans(),
    bias=st.booleans(),
    add_bias_kv=st.booleans(),
    add_zero_attn=st.booleans(),
    batch_first=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_any_shape_equals_the_oracle(
    use,
    memory,
    count,
    queries,
    keys,
    heads,
    per_head,
    masks,
    bias,
    add_bias_kv,
    add_zero_attn,
    batch_first,
    seed,
):
    width = heads * per_head
    options = {
        "bias": bias,
        "add_bias_kv": add_bias_kv,
        "add_zero_attn": add_zero_attn,
        "batch_first": batch_first,
    }
    widths = (width, width)
    if memory == "other widths":
        widths = (width + 1, 2)
        options |= {"kdim": widths[0], "vdim": widths[1]}
    others = [] if memory == "itself" else [(keys, w) for w in widths]
    model = make(width, heads, use=use, masks=masks, **options)
    batch = sequences(torch.Generator().manual_seed(seed), count, (queries, width), *others)
    truth = run(Engine.LOOP, model, loss, batch, Clipping())
    for engine in (Engine.FACTORED, Engine.AUTO):
        assert_equal(run(engine, model, loss, batch, Clipping()), truth)


def test_only_the_output_map_is_trained(generator):
    """The rest frozen: the layer is still taken as a whole, since it uses the map without calling
    it.
    """
    model, batch = make(), sequences(generator, 4, (3, 4))
    model.layer.batch_first = True
    model.layer.in_proj_weight.requires_grad_(False)
    model.layer.in_proj_bias.requires_grad_(False)
    truth = run(Engine.LOOP, model, loss, batch, Clipping())
    assert set(truth.grads) == {"layer.out_proj.weight", "layer.out_proj.bias"}
    assert_equal(run(Engine.FACTORED, model, loss, batch, Clipping()), truth)


class Encoder(nn.Module):
    """A transformer encoder layer, and the mean of what it returns."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 6, dtype=torch.float64, **options)
        self.head = nn.Linear(4, CLASSES, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        if self.layer.self_attn.batch_first:
            return self.head(self.layer(x).mean(1))
        return self.head(self.layer(x.transpose(0, 1)).mean(0))


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_transformer_encoder_layer_equals_the_oracle(norm_first, generator):
    model = Encoder(batch_first=True, dropout=0.0, norm_first=norm_first)
    batch = sequences(generator, 4, (5, 4))
    truth = run(Engine.LOOP, model, loss, batch, Clipping())
    assert_equal(run(Engine.FACTORED, model, loss, batch, Clipping()), truth)


def test_auto_takes_the_fast_engine_for_a_transformer_with_dropout(generator, caplog):
    caplog.set_level("INFO", logger="dpvd")
    model = Encoder(batch_first=True)
    result = clipped_grad(model, loss, sequences(generator, 4, (5, 4)), clipping=Clipping())
    assert "cannot take" not in caplog.text
    assert torch.isfinite(result.norms).all()


@pytest.mark.parametrize("use", ["values", "both"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_dropout_is_drawn_again(batch_first, use, generator):
    """The masks of the forward pass, not others: the unclipped sum is the ordinary gradient under
    the same seed.
    """
    model = make(use=use, dropout=0.5, batch_first=batch_first)
    batch = sequences(generator, 6, (4, 4))
    with torch.random.fork_rng():
        torch.manual_seed(5)
        ours = clipped_grad(model, loss, batch, clipping=Clipping("none"), engine="factored")
        torch.manual_seed(5)
        expected = torch.autograd.grad(loss(model, *batch).sum(), list(model.parameters()))
    for gradient, truth in zip(ours.grads.values(), expected, strict=True):
        torch.testing.assert_close(gradient, truth, rtol=1e-9, atol=1e-9)


def test_keys_of_its_own_get_gradients_from_the_fast_engine(generator):
    model, batch = (
        make(use="both", add_bias_kv=True, batch_first=True),
        sequences(generator, 4, (3, 4)),
    )
    result = run(Engine.FACTORED, model, loss, batch, Clipping())
    assert min(result.grads[f"layer.bias_{role}"].abs().max() for role in "kv") > 1e-3


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_attention_over_the_batch_is_refused(dropout, generator):
    """batch_first forgotten: the layer then attends from example to example. Its dropout must not
    hide that.
    """

    class Mixes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.MultiheadAttention(4, 2, dropout=dropout, dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            return fold(self.layer(x, x, x)[0])

    with pytest.raises(DpvdError, match="mixes examples"):
        clipped_grad(Mixes(), loss, sequences(generator, 3, (3, 4)), clipping=Clipping())
