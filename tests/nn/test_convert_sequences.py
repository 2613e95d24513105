"""Conversion of layers that read sequences: recurrent ones, attention, encoder layers, and what
they are parts of.
"""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import dpvd.nn as dn
from dpvd.errors import DpvdError

RECURRENT = {
    "rnn": (nn.RNN, {"nonlinearity": "relu", "num_layers": 2}, dn.AdditiveRNN),
    "gru": (nn.GRU, {"bidirectional": True, "bias": False}, dn.AdditiveGRU),
    "lstm": (nn.LSTM, {"batch_first": True, "num_layers": 2, "dropout": 0.5}, dn.AdditiveLSTM),
}
ATTENTION = {
    "plain": {},
    "other widths": {"kdim": 3, "vdim": 5, "batch_first": True},
    "all options": {"bias": False, "add_bias_kv": True, "add_zero_attn": True, "dropout": 0.5},
}


def make_encoder(**options: object) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, nn.LayerNorm(4))


class Reader(nn.Module):
    """One layer of every kind that reads sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.encoder = nn.Embedding(7, 4), make_encoder()
        self.memory, self.head = nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.memory(self.encoder(self.words(x)))[0])


def assert_same_state(converted: nn.Module, plain: nn.Module) -> None:
    """Every entry of the plain layer's state is in the other, bit for bit."""
    state = converted.state_dict()
    for name, value in plain.state_dict().items():
        assert torch.equal(state[name], value), name


@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers_are_converted(kind: str, generator: torch.Generator) -> None:
    cls, options, expected = RECURRENT[kind]
    plain = cls(3, 4, **options).eval()
    converted = dn.variational(plain, log_sigma2=-3.0)
    assert type(converted) is expected
    assert_same_state(converted, plain)
    for name in (
        "input_size",
        "hidden_size",
        "mode",
        "num_layers",
        "bias",
        "batch_first",
        "dropout",
        "bidirectional",
    ):
        assert getattr(converted, name) == getattr(plain, name), name
    x = torch.randn(
        40, 2, 3, generator=generator
    )  # so many that some unit of a ReLU is on for one of them
    assert torch.equal(converted(x)[0], plain(x)[0])
    with dn.sampling():
        assert not torch.equal(converted(x)[0], plain(x)[0])
    assert converted.conversion.left == ()


@pytest.mark.parametrize("options", ATTENTION.values(), ids=ATTENTION)
@pytest.mark.parametrize("family", ["additive", "multiplicative"])
def test_attention_is_converted(family: str, options: dict, generator: torch.Generator) -> None:
    plain = nn.MultiheadAttention(6, 2, **options).eval()
    converted = dn.variational(plain, family)
    assert isinstance(
        converted, dn.AdditiveMultiheadAttention | dn.MultiplicativeMultiheadAttention
    )
    assert_same_state(converted, plain)
    for name in ("num_heads", "dropout", "kdim", "vdim", "batch_first", "add_zero_attn"):
        assert getattr(converted, name) == getattr(plain, name), name
    given = [torch.randn(2, 2, width, generator=generator) for width in (6, plain.kdim, plain.vdim)]
    assert torch.equal(converted(*given)[0], plain(*given)[0])
    with dn.sampling():
        assert not torch.equal(converted(*given)[0], plain(*given)[0])
    assert converted.conversion.left == ()  # the dense layer inside it is a part of it


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")  # torch's remark on norm_first
def test_a_stack_of_encoder_layers_is_converted(
    norm_first: bool, generator: torch.Generator
) -> None:
    plain = make_encoder(norm_first=norm_first).eval()
    converted = dn.variational(plain, rates="layer", learned=False, log_sigma2=-3.0)
    assert {type(layer) for layer in converted.layers} == {dn.VariationalTransformerEncoderLayer}
    assert {type(layer) for layer in plain.layers} == {nn.TransformerEncoderLayer}
    assert len(dn.tied_layers(converted)) == 6
    assert str(converted.conversion).startswith(
        "converted to AdditiveMultiheadAttention: layers.0.self_attn, layers.1.self_attn; converted"
        " to AdditiveLinear: layers.0.linear1, layers.0.linear2, layers.1.linear1,"
        " layers.1.linear2; left as they are: layers.0.norm1"
    )
    x = torch.randn(3, 5, 4, generator=generator)
    with torch.no_grad():  # torch's fast path, in both
        assert torch.equal(converted(x), plain(x))
        with dn.sampling():
            assert not torch.equal(converted(x), converted(x))


def test_dense_checkpoints_load_into_converted_models(generator: torch.Generator) -> None:
    converted, dense = dn.variational(Reader()), Reader().eval()
    x = torch.randint(7, (3, 5), generator=generator)
    assert not torch.equal(converted.eval()(x), dense(x))
    converted.load_state_dict(dense.state_dict(), strict=True)
    assert torch.equal(converted(x), dense(x))
    dense.load_state_dict({name: converted.state_dict()[name] for name in dense.state_dict()})
    for other in (copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        assert torch.equal(other(x), dense(x))
        assert other.conversion == converted.conversion


def test_a_decoder_is_converted_layer_by_layer(generator: torch.Generator) -> None:
    plain = nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0, batch_first=True).eval()
    converted = dn.variational(plain)
    assert converted.conversion.converted == ("self_attn", "multihead_attn", "linear1", "linear2")
    x, memory = (torch.randn(3, steps, 4, generator=generator) for steps in (5, 2))
    assert torch.equal(converted(x, memory), plain(x, memory))
    with torch.no_grad(), dn.sampling():
        assert not torch.equal(converted(x, memory), converted(x, memory))


def test_chosen_kinds_inside_encoder_layers_sample_too(generator: torch.Generator) -> None:
    model = make_encoder().eval()
    x = torch.randn(3, 5, 4, generator=generator)
    for options in ({"kinds": [nn.Linear]}, {"layer": "gaussian"}):
        converted = dn.variational(model, **options)
        assert type(converted.layers[0].self_attn) is nn.MultiheadAttention
        with torch.no_grad(), dn.sampling():
            assert not torch.equal(converted(x), converted(x))


def test_frozen_layers_stay_frozen() -> None:
    model = make_encoder()
    model.layers[0].requires_grad_(False)
    converted = dn.variational(model)
    assert not any(p.requires_grad for p in converted.layers[0].parameters())
    assert all(p.requires_grad for p in converted.layers[1].parameters())
    lstm = nn.LSTM(3, 4)
    lstm.weight_hh_l0.requires_grad_(False)
    converted = dn.variational(lstm)
    assert {name for name, p in converted.named_parameters() if not p.requires_grad} == {
        "weight_hh_l0"
    }


def test_what_has_no_counterpart_is_left() -> None:
    class Own(nn.MultiheadAttention):
        pass

    model = nn.ModuleList([nn.Linear(2, 2), nn.LSTM(3, 4, proj_size=2), Own(4, 2), nn.GRU(3, 4)])
    nn.utils.spectral_norm(model[3], "weight_hh_l0")  # a hook computes this weight; the class stays
    assert dn.variational(model).conversion.converted == ("0",)


def test_weights_shared_by_two_layers_are_refused() -> None:
    pair = nn.ModuleList([nn.GRU(4, 4), nn.GRU(4, 4)])
    pair[1].weight_hh_l0 = pair[0].weight_hh_l0
    with pytest.raises(DpvdError, match="layers 0 and 1 share one weight"):
        dn.variational(pair)
