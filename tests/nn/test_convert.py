"""Conversion of ordinary models."""

import copy
import logging
import pickle

import pytest
import torch
from torch import nn

import dpvd.nn as dn
from dpvd.errors import DpvdError


class Tower(nn.Module):
    """One layer used twice, one weight tied to an embedding, one module that is no nn.Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.mix = nn.Linear(4, 4)
        self.again = nn.ModuleList([self.mix, nn.LayerNorm(4)])
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.mix(self.words(x)).tanh()
        for module in self.again:
            hidden = module(hidden)
        return self.out(hidden)


def mlp() -> nn.Sequential:
    """Seeded: with other weights all hidden units could be off, and there would be no noise behind
    them.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


@pytest.mark.parametrize(
    ("layer", "options", "cls"),
    [
        ("additive", {"rates": "layer", "learned": False}, dn.AdditiveLinear),
        ("multiplicative", {"rates": "neuron", "log_alpha": -1.0}, dn.MultiplicativeLinear),
        ("gaussian", {"rate": 0.2}, dn.GaussianDropoutLinear),
        ("binary", {"rate": 0.2}, dn.BinaryDropoutLinear),
    ],
)
def test_every_layer_can_be_asked_for_with_its_options(
    layer: str, options: dict, cls: type
) -> None:
    model = mlp()
    converted = dn.variational(model, layer, **options)
    assert type(converted[0]) is type(converted[2]) is cls
    for name, value in options.items():
        if name != "log_alpha":
            assert getattr(converted[0], name) == value
    x = torch.ones(6, 4)
    assert torch.equal(converted.eval()(x), model(x))
    assert not torch.equal(converted.train()(x), model(x))


def test_noise_starts_where_the_options_say_and_the_model_is_untouched() -> None:
    model = mlp()
    state = copy.deepcopy(model.state_dict())
    converted = dn.variational(model, log_sigma2=-7.0)
    assert converted[0].log_sigma2.eq(-7).all()
    assert converted[0].log_sigma2.requires_grad
    with torch.no_grad():
        converted[0].weight.zero_()
    assert type(model[0]) is nn.Linear
    assert all(torch.equal(model.state_dict()[key], value) for key, value in state.items())


def test_mode_dtype_and_frozen_layers_are_kept() -> None:
    model = mlp().double().eval()
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    converted = dn.variational(model, frozen=True)
    assert {p.dtype for p in converted.parameters()} == {torch.float64}
    assert not any(module.training for module in converted.modules())
    frozen = {name for name, p in converted.named_parameters() if not p.requires_grad}
    assert frozen == {"0.weight", "0.bias", "0.log_sigma2", "2.bias"}


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="stands in for an accelerator where there is none"
)
def test_the_device_is_kept() -> None:
    converted = dn.variational(mlp().to("meta"))
    assert {p.device.type for p in converted.parameters()} == {"meta"}


def test_shared_layers_and_tied_weights_stay_so() -> None:
    model = Tower()
    converted = dn.variational(model)
    assert converted.mix is converted.again[0]
    assert isinstance(converted.mix, dn.AdditiveLinear)
    assert converted.out.weight is converted.words.weight
    assert converted.out.weight is not model.out.weight
    assert converted.out.bias is None
    x = torch.tensor([[1, 2], [3, 4]])
    assert torch.equal(converted.eval()(x), model(x))


def test_it_says_what_it_converted_and_what_it_left(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="dpvd"):
        converted = dn.variational(Tower())
    conversion = converted.conversion
    assert conversion.converted == ("mix", "out")
    assert conversion.left == (("words", "Embedding"), ("again.1", "LayerNorm"))
    expected = (
        "converted to AdditiveLinear: mix, out; left as they are: words (Embedding), again.1"
        " (LayerNorm)"
    )
    assert str(conversion) == expected
    assert caplog.messages == [expected]


def test_a_single_linear_layer_is_a_model_too() -> None:
    linear = nn.Linear(4, 3)
    converted = dn.variational(linear)
    assert isinstance(converted, dn.AdditiveLinear)
    assert torch.equal(converted.weight, linear.weight)
    assert converted.conversion.converted == ("model",)
    assert converted.conversion.left == ()


def test_hooks_are_kept() -> None:
    seen = []
    model = mlp()
    model[0].register_forward_hook(lambda module, args, output: seen.append(type(module)))
    dn.variational(model)(torch.ones(2, 4))
    assert seen == [dn.AdditiveLinear]


def test_no_random_numbers_are_used_up() -> None:
    model, before = mlp(), torch.get_rng_state()
    dn.variational(model)
    assert torch.equal(before, torch.get_rng_state())


def test_subclasses_and_reparametrised_layers_are_left() -> None:
    model = nn.Sequential(
        nn.Linear(4, 4),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        nn.Bilinear(4, 4, 2),
    )
    converted = dn.variational(model)
    assert converted.conversion.converted == ("0",)
    assert torch.equal(converted[1].weight, model[1].weight)
    with pytest.raises(
        DpvdError, match=r"MultiheadAttention has nothing to convert, no nn\.Linear; subclasses"
    ):
        dn.variational(nn.MultiheadAttention(4, 2), "binary")


def test_what_cannot_be_converted_is_refused_with_the_reason() -> None:
    with pytest.raises(DpvdError, match="nothing to convert"):
        dn.variational(dn.variational(mlp()))
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    with pytest.raises(DpvdError, match="layers 0 and 1 share one weight"):
        dn.variational(tied)
    with pytest.raises(DpvdError, match="layer must be one of additive"):
        dn.variational(mlp(), "dense")
    with pytest.raises(DpvdError, match=r"AdditiveLinear.*rate"):
        dn.variational(mlp(), "additive", rate=0.5)


def pictures() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect", groups=1, bias=False),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 2, 2, stride=2, output_padding=1),
        nn.Flatten(2),
        nn.Conv1d(2, 3, 3, stride=2, dilation=2),
        nn.Unflatten(2, (1, 1, -1)),
        nn.Conv3d(3, 2, 1),
        nn.Flatten(),
        nn.LazyLinear(3),
    )


def test_convolutions_are_converted_and_keep_their_geometry() -> None:
    model, x = pictures(), torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    expected = model(x)
    converted = dn.variational(model, rates="layer", learned=False, log_sigma2=-3.0)
    assert torch.equal(converted.eval()(x), expected)
    assert not torch.equal(converted.train()(x), expected)
    assert [type(converted[i]).__name__ for i in (0, 2, 4, 6, 8)] == [
        "AdditiveConv2d",
        "AdditiveConvTranspose2d",
        "AdditiveConv1d",
        "AdditiveConv3d",
        "AdditiveLinear",
    ]
    assert str(converted.conversion).startswith(
        "converted to AdditiveConv2d: 0; converted to AdditiveConvTranspose2d: 2"
    )
    assert converted.conversion.left == ()
    assert all(converted[i].tied for i in (0, 2, 4, 6, 8))
    converted.load_state_dict(model.state_dict())


def test_a_family_converts_what_it_has_and_says_what_it_left() -> None:
    model = pictures()
    model(torch.ones(2, 1, 4, 4))
    multiplicative = dn.variational(model, "multiplicative", kind="B").conversion
    assert multiplicative.converted == ("0", "4", "6", "8")
    assert multiplicative.left == (("2", "ConvTranspose2d"),)
    assert [name for name, _ in dn.variational(model, "binary").conversion.left] == [
        "0",
        "2",
        "4",
        "6",
    ]
    with pytest.raises(DpvdError, match="type B only"):
        dn.variational(model, "multiplicative", kind="A", rates="layer", prior="ard")


def test_the_kinds_to_convert_can_be_chosen() -> None:
    model = pictures()
    model(torch.ones(2, 1, 4, 4))
    chosen = dn.variational(model, kinds=[nn.Linear, nn.Conv2d])
    assert chosen.conversion.converted == ("0", "8")
    with pytest.raises(
        DpvdError, match=r"layer='binary' has no form of nn\.Conv2d; kinds may be nn\.Linear"
    ):
        dn.variational(model, "binary", kinds=[nn.Conv2d])
    with pytest.raises(DpvdError, match="nothing to convert"):
        dn.variational(model, kinds=[])


@pytest.mark.parametrize("padding", [None, 2])
def test_embeddings_are_converted(padding: int | None) -> None:
    model, x = (
        nn.Sequential(nn.Embedding(7, 4, padding), nn.Linear(4, 2)),
        torch.tensor([[1, 2], [3, 2]]),
    )
    converted = dn.variational(model)
    assert isinstance(converted[0], dn.AdditiveEmbedding)
    assert converted[0].padding_idx == padding
    assert converted[0].weight is not model[0].weight
    assert torch.equal(converted.eval()(x), model(x))


@pytest.mark.parametrize(
    "option", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}]
)
def test_embeddings_with_options_that_have_no_variational_form_are_left(option: dict) -> None:
    converted = dn.variational(nn.Sequential(nn.Embedding(7, 4, **option), nn.Linear(4, 2)))
    assert converted.conversion.left == (("0", "Embedding"),)


def test_a_tied_embedding_alone_is_converted_and_stays_tied() -> None:
    converted = dn.variational(Tower(), kinds=[nn.Embedding])
    assert converted.conversion.converted == ("words",)
    assert converted.out.weight is converted.words.weight
    twins = nn.ModuleList([nn.Embedding(5, 2), nn.Embedding(5, 2)])
    twins[1].weight = twins[0].weight
    with pytest.raises(DpvdError, match="share one weight"):
        dn.variational(twins)


def test_a_converted_model_copies_pickles_and_loads_a_dense_checkpoint() -> None:
    converted = dn.variational(mlp())
    for other in (copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        assert other.conversion == converted.conversion
        assert torch.equal(other[0].weight, converted[0].weight)
    dense = mlp()
    converted.load_state_dict(dense.state_dict())
    x = torch.ones(2, 4)
    assert torch.equal(converted.eval()(x), dense(x))


def test_only_layers_whose_names_fit_are_converted() -> None:
    model = nn.ModuleDict(
        {"body": nn.Linear(4, 4), "lora_A": nn.ModuleDict({"x": nn.Linear(4, 2)}), "head": mlp()}
    )
    chosen = {
        "lora": ("lora_A.x",),
        ("lora", r"head\.2$"): ("lora_A.x", "head.2"),
        r"^(?!head)": ("body", "lora_A.x"),
    }
    for only, names in chosen.items():
        conversion = dn.variational(model, only=only).conversion
        assert conversion.converted == names
        assert len(conversion.left) == 4 - len(names)


def test_frozen_layers_are_left_unless_asked_for() -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    model[:3].requires_grad_(False)
    model[1].bias.requires_grad_(True)  # a bias has no noise: the layer's weight is what counts
    conversion = dn.variational(model).conversion
    assert conversion.converted == ("3",)
    assert str(conversion) == (
        "converted to AdditiveLinear: 3; left as they are: 1 (Linear); frozen, and left:"
        " 1 Embedding, 1 LayerNorm"
    )
    every = dn.variational(model, frozen=True)
    assert set(every.conversion.converted) == {"0", "1", "3"}
    assert not every[1].log_sigma2.requires_grad


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"only": "loar"}, "only='loar' fits none of the layers that can be converted: 0, 2"),
        ({"only": "*.lora"}, r"regular expression.*any text is '\.\*', not '\*'"),
        ({"only": [3]}, "regular expression"),
        ({"only": "0"}, r"all layers that could be converted are frozen: 0\. frozen=True"),
    ],
)
def test_patterns_that_fit_nothing_are_refused(options: dict, words: str) -> None:
    model = mlp()
    model[0].requires_grad_(False)
    with pytest.raises(DpvdError, match=words):
        dn.variational(model, **options)
