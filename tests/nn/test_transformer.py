"""Encoder layers with weight noise: torch's layer without it, alone and in stacks, and never past
the noise.
"""

import math

import pytest
import torch
from torch import Tensor, nn

from dpvd import nn as dn
from dpvd.errors import DpvdError
from dpvd.nn import VariationalTransformerEncoderLayer
from tests.nn.cases import normal

SIZES = (4, 2, 8)
SHAPES = [
    {"batch_first": True},
    {"batch_first": True, "norm_first": True, "activation": "gelu"},
    {"batch_first": False, "activation": torch.tanh, "bias": False},
    {"batch_first": False, "norm_first": True},
]
SILENT = {"rates": "layer", "learned": False, "log_sigma2": -math.inf}
LOUD = {"log_sigma2": -2.0}


def pair(noise: dict, **options: object):
    """A torch layer and ours with its state."""
    plain = nn.TransformerEncoderLayer(*SIZES, dropout=0.0, dtype=torch.float64, **options)
    ours = VariationalTransformerEncoderLayer(
        *SIZES, dropout=0.0, dtype=torch.float64, noise=noise, **options
    )
    ours.load_state_dict(plain.state_dict(), strict=True)
    return plain, ours


def sequences(layer: nn.TransformerEncoderLayer, generator: torch.Generator) -> Tensor:
    x = normal((3, 5, SIZES[0]), generator)
    return x if layer.self_attn.batch_first else x.transpose(0, 1)


@pytest.mark.parametrize("options", SHAPES)
def test_without_noise_it_is_the_torch_layer(options, generator):
    plain, ours = pair(LOUD, **options)
    x = sequences(ours, generator)
    assert torch.equal(ours.eval()(x), plain.eval()(x))
    with torch.no_grad():
        assert torch.equal(ours(x), plain(x))


@pytest.mark.parametrize("options", SHAPES)
def test_noise_of_scale_zero_gives_what_torch_gives(options, generator):
    plain, ours = pair(SILENT, **options)
    x = sequences(ours, generator)
    causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    padding = (torch.arange(5) >= torch.tensor([5, 3, 1])[:, None]).double() * -1e9
    for masks in (
        {},
        {"src_mask": causal, "is_causal": True},
        {"src_mask": causal, "src_key_padding_mask": padding},
    ):
        torch.testing.assert_close(ours(x, **masks), plain(x, **masks), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", SHAPES)
def test_all_three_layers_draw_with_the_batch_first(options, generator):
    _, ours = pair(LOUD, **options)
    tape, x = dn.NoiseTape(), sequences(ours, generator)
    with tape.recording():
        whole = ours(x)
    assert [tuple(noise.shape) for noise in tape.draws] == [(3, 20, 4), (3, 5, 8), (3, 5, 4)]
    batch = 0 if ours.self_attn.batch_first else 1
    with tape.replaying(1):
        alone = ours(x.narrow(batch, 1, 1))
    torch.testing.assert_close(alone, whole.narrow(batch, 1, 1), rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors"
)  # torch's own encoder nests sequences
@pytest.mark.parametrize("masked", [False, True])
def test_the_fast_path_of_eval_mode_does_not_go_past_the_noise(masked, generator):
    _, layer = pair(LOUD, batch_first=True)
    stack = nn.TransformerEncoder(layer, 2).eval()
    x = sequences(layer, generator)
    lengths = torch.tensor([5, 3, 1]) if masked else torch.tensor([5, 5, 5])
    hidden = torch.arange(5) >= lengths[:, None] if masked else None
    with torch.no_grad():
        still = stack(x, src_key_padding_mask=hidden)
        assert torch.equal(still, stack(x, src_key_padding_mask=hidden))
        with dn.sampling():
            first, second = (stack(x, src_key_padding_mask=hidden) for _ in range(2))
    assert first.shape == still.shape
    for row, length in enumerate(lengths):
        assert (first[row, :length] != second[row, :length]).all()
        assert not first[row, length:].any()  # torch's encoder gives zeros there
    assert (first - still).abs().max() < 20 * (second - first).abs().max()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_sequences_get_what_padded_ones_get(generator):
    plain, silent = pair(SILENT, batch_first=True)
    hidden = torch.arange(5) >= torch.tensor([5, 3, 1])[:, None]
    x = sequences(silent, generator)
    expected = nn.TransformerEncoder(plain, 2).eval()(x, src_key_padding_mask=hidden)
    with torch.no_grad(), dn.sampling():
        got = nn.TransformerEncoder(silent, 2).eval()(x, src_key_padding_mask=hidden)
    torch.testing.assert_close(got[~hidden], expected[~hidden], rtol=1e-12, atol=1e-12)


def test_a_stack_has_layers_of_its_own_with_the_same_settings():
    stack = nn.TransformerEncoder(VariationalTransformerEncoderLayer(*SIZES, batch_first=True), 3)
    noises = [layer.self_attn.log_sigma2 for layer in stack.layers]
    assert len({id(noise) for noise in noises}) == 3
    assert len(dn.sparsity(stack).layers) == 9
    torch.testing.assert_close(dn.kl(stack), 3 * dn.kl(stack.layers[0]))


def test_every_family_can_be_asked_for():
    kinds = {}
    for family in ("additive", "multiplicative", "gaussian"):
        noise = {"rate": 0.2} if family == "gaussian" else {}
        layer = VariationalTransformerEncoderLayer(*SIZES, layer=family, noise=noise)
        kinds[family] = [
            type(getattr(layer, name)).__name__ for name in ("self_attn", "linear1", "linear2")
        ]
    assert kinds == {
        "additive": ["AdditiveMultiheadAttention", "AdditiveLinear", "AdditiveLinear"],
        "multiplicative": [
            "MultiplicativeMultiheadAttention",
            "MultiplicativeLinear",
            "MultiplicativeLinear",
        ],
        "gaussian": ["MultiheadAttention", "GaussianDropoutLinear", "GaussianDropoutLinear"],
    }
    with pytest.raises(DpvdError, match=r"AdditiveMultiheadAttention.*colour"):
        VariationalTransformerEncoderLayer(*SIZES, noise={"colour": 1})
