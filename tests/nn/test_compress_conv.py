"""Channels that pruning has left without use go, and the outputs stay."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpvd.nn import (
    AdditiveConv2d,
    AdditiveLinear,
    MultiplicativeConv2d,
    compress,
    prune,
    sparse_state,
    variational,
)

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
POOLINGS = {
    "max": lambda n: getattr(nn, f"MaxPool{n}d")(2, stride=1, padding=1),
    "max, last places": lambda n: getattr(nn, f"MaxPool{n}d")(2, ceil_mode=True),
    "mean": lambda n: getattr(nn, f"AvgPool{n}d")(2, ceil_mode=True),
    "mean with zeros": lambda n: getattr(nn, f"AvgPool{n}d")(2, stride=1, padding=1),
    "mean without zeros": lambda n: getattr(nn, f"AvgPool{n}d")(
        2, stride=1, padding=1, count_include_pad=False
    ),
    "adaptive": lambda n: getattr(nn, f"AdaptiveMaxPool{n}d")(6),
    "none": lambda n: getattr(nn, f"Dropout{n}d")(0.5),
}


def seeded(make, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make().double()


def image(dimensions: int = 2, side: int = 7) -> torch.Tensor:
    shape = (3, 2, *[side] * dimensions)
    return torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def assert_same_outputs(smaller: nn.Module, model: nn.Module, x: torch.Tensor) -> None:
    torch.testing.assert_close(smaller(x), copy.deepcopy(model).eval()(x), rtol=1e-12, atol=1e-12)


def sizes(model: nn.Module) -> list[tuple[int, int]]:
    return [
        (m.weight.shape[1], m.weight.shape[0])
        for m in model.modules()
        if hasattr(m, "weight") and m.weight.dim() > 1
    ]


@st.composite
def networks(draw) -> tuple[int, nn.Module]:
    """Two convolutions and two dense layers, of any geometry, with some or all of their weights
    dead.
    """
    dimensions, seed, bias = draw(st.integers(1, 3)), draw(st.integers(0, 99)), draw(st.booleans())
    activation = draw(
        st.sampled_from([nn.Sigmoid, nn.ReLU])
    )  # sigmoid(0) = 1/2: forgetting to fold would show
    pool = [POOLINGS[draw(st.sampled_from(sorted(POOLINGS)))](dimensions) for _ in range(2)]
    mode = draw(st.sampled_from(["zeros", "circular", "replicate", "reflect"]))
    geometry = draw(
        st.sampled_from(
            [{}, {"stride": 2}, {"padding": 1}, {"padding": "same"}, {"dilation": 2, "padding": 2}]
        )
    )
    conv = CONVOLUTIONS[dimensions]

    def make() -> nn.Module:
        body = nn.Sequential(
            *(conv(2, 4, 2, bias=bias), pool[0], activation()),
            *(
                conv(4, 3, 3, bias=bias, padding_mode=mode, **geometry),
                activation(),
                pool[1],
                nn.Flatten(),
            ),
        )
        inputs = body.double().eval()(image(dimensions, side=10)).shape[1]
        return nn.Sequential(
            *body, nn.Identity(), nn.Linear(inputs, 5, bias), activation(), nn.Linear(5, 2, bias)
        )

    model = seeded(make, seed)
    generator = torch.Generator().manual_seed(seed)
    density = draw(st.sampled_from([0.0, 0.05, 0.2, 0.6]))
    with torch.no_grad():
        for layer in model:
            if hasattr(layer, "weight"):
                layer.weight *= torch.rand(layer.weight.shape, generator=generator) < density
    return dimensions, variational(model) if draw(st.booleans()) else model


@settings(max_examples=50)
@given(networks())
def test_outputs_are_the_same_whatever_died(case):
    dimensions, model = case
    prune(model)
    smaller, report = compress(model)
    assert_same_outputs(smaller, model, image(dimensions, side=10))
    layers = [m for m in smaller if hasattr(m, "weight")]
    assert [type(m) for m in layers] == [CONVOLUTIONS[dimensions]] * 2 + [nn.Linear] * 2
    assert [size.after for size in report.layers] == sizes(smaller)
    for first, second in ((layers[0], layers[1]), (layers[1], layers[2])):
        read = (second.weight != 0).any(0).reshape(len(first.weight), -1).any(1)
        assert read.all() or len(first.weight) == 1  # nobody's channels never stay


def pair(between: list[nn.Module], constant: float = 0.5, **second) -> nn.Sequential:
    """Two convolutions; channel 1 of the first is constant."""
    model = seeded(
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), *between, nn.Conv2d(4, 3, 3, **second))
    )
    with torch.no_grad():
        model[0].weight[1] = 0.0
        model[0].bias[1] = constant
    return model


@pytest.mark.parametrize(
    ("model", "left"),
    [
        (pair([nn.ReLU()]), 3),
        (pair([nn.ReLU(), nn.MaxPool2d(2)]), 3),
        (pair([nn.AvgPool2d(2), nn.Tanh()]), 3),
        (pair([nn.AvgPool2d(2, padding=1)]), 4),  # averages with zeros at the border
        (pair([nn.AvgPool2d(2, padding=1, count_include_pad=False)]), 3),
        (pair([nn.AvgPool2d(2, divisor_override=3)]), 4),
        (
            pair([nn.ReLU(), nn.AvgPool2d(2, padding=1)], constant=-0.5),
            3,
        ),  # 0 is 0 at the border, too
        (pair([nn.ReLU()], padding=1), 4),
        (pair([nn.ReLU()], padding="same"), 4),
        (pair([nn.ReLU()], padding="valid"), 3),
        (pair([nn.ReLU()], padding=1, padding_mode="reflect"), 3),
        (pair([nn.ReLU()], constant=-0.5, padding=1), 3),
        (pair([nn.ReLU(), nn.Sigmoid()], constant=-0.5, padding=1), 4),
        (pair([nn.GroupNorm(2, 4)]), 4),
        (pair([nn.Softmax(1)]), 4),
        (pair([nn.ReLU(), nn.Upsample(scale_factor=2)]), 4),  # no rule for it
    ],
)
def test_a_constant_channel_goes_where_it_can_be_folded_exactly(model, left):
    smaller, _ = compress(model)
    assert sizes(smaller) == [(2, left), (left, 3)]
    assert_same_outputs(smaller, model, image(side=8))


def test_an_unread_channel_goes_whatever_the_padding():
    model = pair([nn.AvgPool2d(2, padding=1)], padding=1)
    with torch.no_grad():
        model[2].weight[:, [0, 1]] = 0.0
    smaller, _ = compress(model)
    assert sizes(smaller) == [(2, 2), (2, 3)]
    assert_same_outputs(smaller, model, image())


def test_channels_go_through_flatten_with_all_their_places():
    model = seeded(
        lambda: nn.Sequential(nn.Conv2d(2, 3, 4), nn.Sigmoid(), nn.Flatten(), nn.Linear(3 * 16, 5))
    )
    with torch.no_grad():
        model[0].weight[0] = 0.0  # constant
        model[3].weight[:, 32:] = 0.0  # channel 2 is unread
        model[3].weight[:, 16:31] = 0.0  # one place of channel 1 is read
    smaller, report = compress(model)
    assert str(report).splitlines()[:2] == ["0: 2→3 became 2→1", "3: 48→5 became 16→5"]
    assert_same_outputs(smaller, model, image())


@pytest.mark.parametrize(
    ("between", "inputs"),
    [
        ([nn.Flatten(2)], 25),  # units would be places
        ([nn.Flatten(), nn.Unflatten(1, (25, 4))], 4),
        ([nn.MaxPool1d(5), nn.Flatten()], 20),
        ([], 5),
    ],
)
def test_channels_stay_where_they_do_not_arrive_as_inputs(between, inputs):
    last = nn.Linear(inputs, 2)
    # MaxPool1d takes no images, so this one pools in a network that could not run: it must be a
    # stop all the same.
    model = seeded(lambda: nn.Sequential(nn.Conv2d(2, 4, 3), *between, last))
    with torch.no_grad():
        model[0].weight[1] = 0.0
    assert sizes(compress(model)[0]) == [(2, 4), (inputs, 2)]


def test_pooling_over_channels_is_a_stop():
    model = seeded(
        lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.MaxPool2d((1, 1)), nn.Conv1d(4, 3, 3))
    )
    with torch.no_grad():
        model[0].weight[1] = 0.0
    assert sizes(compress(model)[0]) == [(2, 4), (4, 3)]


def test_grouped_convolutions_keep_their_size():
    model = seeded(
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4))
    )
    model = variational(model)
    with torch.no_grad():
        model[0].weight[1] = 0.0
    smaller, _ = compress(model)
    assert [m.groups for m in smaller[::2]] == [2, 4]
    assert [tuple(m.weight.shape[:2]) for m in smaller[::2]] == [(4, 1), (4, 1)]
    assert_same_outputs(smaller, model, image())


def test_death_spreads_between_convolutions_and_dense_layers():
    model = seeded(
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3),
            nn.ReLU(),
            nn.Conv2d(4, 3, 3),
            nn.Flatten(),
            nn.Linear(27, 4),
            nn.ReLU(),
            nn.Linear(4, 2),
        )
    )
    with torch.no_grad():
        model[6].weight[:, 0] = 0.0  # dense unit 0 is unread,
        model[4].weight[1:, :9] = 0.0  # and alone read channel 0 of the second convolution,
        model[2].weight[1:, 3] = 0.0  # which alone read channel 3 of the first
    smaller, _ = compress(model)
    assert sizes(smaller) == [(2, 3), (3, 2), (18, 3), (3, 2)]
    assert_same_outputs(smaller, model, image())


def test_a_network_that_lost_everything_keeps_one_channel_and_is_constant():
    model = seeded(
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 3), nn.Flatten(), nn.Linear(27, 4)
        )
    )
    with torch.no_grad():
        for layer in (0, 2, 4):
            model[layer].weight.zero_()
    smaller, _ = compress(model)
    assert sizes(smaller) == [(2, 1), (1, 1), (9, 4)]
    assert_same_outputs(smaller, model, image())


@pytest.mark.parametrize("cls", [AdditiveConv2d, MultiplicativeConv2d])
def test_a_variational_convolution_becomes_an_ordinary_one_of_the_same_geometry(cls):
    options = {
        "stride": 2,
        "padding": (1, 0),
        "dilation": 2,
        "padding_mode": "circular",
        "bias": False,
    }
    model = seeded(lambda: cls(2, 4, (2, 3), **options)).requires_grad_(False)
    smaller, report = compress(model)
    assert type(smaller) is nn.Conv2d
    assert repr(smaller) == repr(nn.Conv2d(2, 4, (2, 3), **options))
    assert not smaller.weight.requires_grad
    assert str(report).startswith("model: 2→4 became 2→4\n")
    assert_same_outputs(smaller, model, image())


def test_the_score_is_that_of_the_means_before_and_after():
    model = nn.Sequential(AdditiveLinear(4, 3), nn.ReLU(), AdditiveLinear(3, 2))
    with torch.no_grad():
        model[2].weight[:, 1:] = 0.0
    seen = []

    def score(network: nn.Module) -> float:
        seen.append(network.training)
        return float(sizes(network)[0][1])

    _, report = compress(model, score=score)
    assert (report.score_before, report.score_after) == (3.0, 1.0)
    assert seen == [False, False]
    assert str(report).splitlines()[-1] == "score: 3.0000 became 1.0000"
    assert "score" not in str(compress(model)[1])


def test_a_sparse_state_holds_convolutions_as_rows_of_output_channels():
    model = seeded(lambda: nn.Sequential(AdditiveConv2d(20, 50, 5)))
    with torch.no_grad():
        model[0].weight.fill_(0.5).mul_(torch.arange(5) == 2)
    prune(model)
    state = sparse_state(model)
    stored = state.tensors["0.weight"]
    assert (stored.layout, stored.shape) == (torch.sparse_csr, (50, 500))
    assert stored.values().numel() == 50 * 20 * 5
    assert state.shapes["0.weight"] == (50, 20, 5, 5)
    assert state.bytes == 5_000 * (8 + 4) + 51 * 4 + 50 * 8
    assert torch.equal(state.to_dense()["0.weight"], model[0].weight)
    plain = nn.Conv2d(20, 50, 5).double()
    plain.load_state_dict(
        {name[2:]: value for name, value in state.to_dense().items() if name.startswith("0.")}
    )
    assert torch.equal(plain.weight, model[0].weight)
