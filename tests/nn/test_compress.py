"""A compressed network is smaller and computes the same; a sparse state holds the same values in
fewer bytes.
"""

import copy
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpvd.nn import (
    AdditiveLinear,
    BinaryDropoutLinear,
    MultiplicativeLinear,
    compress,
    prune,
    sparse_state,
)
from dpvd.nn.pruning.links import POINTWISE

LAYERS = {
    "additive": lambda i, o, bias: AdditiveLinear(i, o, bias),
    "multiplicative": lambda i, o, bias: MultiplicativeLinear(i, o, bias),
    "dropout": lambda i, o, bias: BinaryDropoutLinear(i, o, bias),
    "plain": lambda i, o, bias: nn.Linear(i, o, bias),
}


def chain(widths, make=nn.Linear, activation=nn.Tanh, bias=True, seed=0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [make(i, o, bias) for i, o in pairwise(widths)]
    modules = [m for layer in layers for m in (layer, activation())]
    return nn.Sequential(*modules[:-1]).double()


@torch.no_grad()
def kill(model: nn.Sequential, layer: int, *, rows=(), columns=()) -> None:
    model[layer].weight[list(rows)] = 0.0
    model[layer].weight[:, list(columns)] = 0.0


def assert_same_outputs(smaller: nn.Module, model: nn.Module, inputs: int) -> None:
    x = torch.randn(6, inputs, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 2
    torch.testing.assert_close(smaller(x), copy.deepcopy(model).eval()(x), rtol=1e-12, atol=1e-12)


def widths(model: nn.Module) -> list[tuple[int, int]]:
    return [(m.in_features, m.out_features) for m in model.modules() if isinstance(m, nn.Linear)]


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=5),
    layer=st.sampled_from(sorted(LAYERS)),
    bias=st.booleans(),
    density=st.sampled_from([0.0, 0.1, 0.3, 0.6]),
    seed=st.integers(0, 99),
)
def test_outputs_are_the_same_whatever_died(sizes, layer, bias, density, seed):
    model = chain(
        sizes, LAYERS[layer], nn.Sigmoid, bias, seed
    )  # sigmoid(0) = 1/2: forgetting to fold would show
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model[::2]:
            module.weight *= torch.rand(module.weight.shape, generator=generator) < density
    prune(model)
    smaller, report = compress(model)
    assert_same_outputs(smaller, model, sizes[0])
    assert (widths(smaller)[0][0], widths(smaller)[-1][1]) == (sizes[0], sizes[-1])
    assert all(isinstance(m, nn.Linear | nn.Sigmoid) for m in smaller)
    assert [size.after for size in report.layers] == widths(smaller)
    assert not _useless(smaller)


def _useless(model: nn.Sequential) -> bool:
    """Whether a hidden unit is left that nothing enters or nothing leaves."""
    layers = [m for m in model if isinstance(m, nn.Linear)]
    return any(
        not bool(((a.weight != 0).any(1) & (b.weight != 0).any(0)).all())
        for a, b in pairwise(layers)
    )


def test_units_without_outputs_and_without_inputs_go():
    model = chain([4, 6, 5, 3])
    kill(model, 0, rows=[1, 2])  # constant
    kill(model, 2, columns=[5])  # unread
    smaller, report = compress(model)
    assert widths(smaller) == [(4, 3), (3, 5), (5, 3)]
    assert_same_outputs(smaller, model, 4)
    assert str(report) == "\n".join(
        [
            "0: 4→6 became 4→3",
            "2: 6→5 became 3→5",
            "4: 5→3 became 5→3",
            "parameters: 83 became 53 (1.6x fewer)",
        ]
    )


def test_constants_are_folded_into_a_bias_that_was_not_there():
    model = chain([4, 6, 3], activation=nn.Softplus, bias=False)  # softplus(0) = log 2
    kill(model, 0, rows=[0])
    smaller, _ = compress(model)
    assert smaller[0].bias is None
    torch.testing.assert_close(
        smaller[2].bias, model[2].weight[:, 0] * torch.tensor(2.0).double().log()
    )
    assert_same_outputs(smaller, model, 4)


def test_death_spreads_backward():
    model = chain([4, 2, 2, 3])
    kill(model, 4, columns=[0])  # unit 0 of the second hidden layer is unread,
    with torch.no_grad():
        model[2].weight[1, 1] = 0.0  # and only it read unit 1 of the first
    smaller, _ = compress(model)
    assert widths(smaller) == [(4, 1), (1, 1), (1, 3)]
    assert_same_outputs(smaller, model, 4)


def test_death_spreads_forward():
    model = chain([4, 2, 2, 3])
    kill(model, 0, rows=[0])  # unit 0 of the first hidden layer is constant,
    with torch.no_grad():
        model[2].weight[0, 1] = 0.0  # and the only input of unit 0 of the second
    smaller, _ = compress(model)
    assert widths(smaller) == [(4, 1), (1, 1), (1, 3)]
    assert_same_outputs(smaller, model, 4)


def test_a_network_that_lost_everything_is_constant():
    model = chain([4, 6, 5, 3])
    for layer in (0, 2, 4):
        kill(model, layer, rows=range(model[layer].out_features))
    smaller, report = compress(model)
    assert widths(smaller) == [(4, 0), (0, 0), (0, 3)]
    assert report.parameters_after == 3
    assert_same_outputs(smaller, model, 4)


@pytest.mark.parametrize("activation", POINTWISE)
def test_every_pointwise_activation(activation):
    model = chain([4, 6, 3], activation=activation)
    kill(model, 0, rows=[1, 4])
    smaller, _ = compress(model)
    assert widths(smaller) == [(4, 4), (4, 3)]
    assert_same_outputs(smaller, model, 4)


@pytest.mark.parametrize(
    "between", [nn.LayerNorm(6), nn.Softmax(-1), nn.PReLU(6), nn.Flatten(), nn.Conv1d(6, 6, 1)]
)
def test_units_are_kept_where_modules_see_them_together(between):
    model = nn.Sequential(nn.Linear(4, 6), between, nn.Linear(6, 3)).double()
    kill(model, 0, rows=[1])
    assert widths(compress(model)[0]) == [(4, 6), (6, 3)]


def test_modules_used_twice_are_told_apart_by_their_place():
    shared, square = nn.Sigmoid(), nn.Linear(4, 4)
    model = nn.Sequential(square, shared, shared, square, shared, nn.Linear(4, 2)).double()
    kill(model, 0, rows=[2])
    smaller, _ = compress(model)
    assert_same_outputs(smaller, model, 4)
    assert widths(smaller) == [(4, 3), (3, 3), (3, 2)]


def test_layers_with_hooks_keep_their_size():
    model = chain([4, 6, 3])
    kill(model, 0, rows=[1])
    model[0].register_forward_hook(lambda module, args, output: output * 2)
    smaller, _ = compress(model)
    assert widths(smaller) == [(4, 6), (6, 3)]
    assert_same_outputs(smaller, model, 4)


def test_sequences_nested_chains_and_single_layers():
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = chain([4, 6, 5], AdditiveLinear), AdditiveLinear(5, 2).double()

        def forward(self, x):
            return self.head(self.body(x).sum(1))

    model = Network()
    kill(model.body, 0, rows=[1, 2])
    smaller, _ = compress(model)
    assert [type(m) for m in (smaller.body[0], smaller.head)] == [nn.Linear, nn.Linear]
    x = torch.randn(3, 7, 4, dtype=torch.float64)
    torch.testing.assert_close(smaller(x), model.eval()(x), rtol=1e-12, atol=1e-12)
    assert widths(smaller) == [(4, 4), (4, 5), (5, 2)]
    assert type(compress(model.head)[0]) is nn.Linear


def test_the_model_is_untouched_and_freezing_is_kept():
    model = chain([4, 6, 3], AdditiveLinear)
    kill(model, 0, rows=[1])
    model[0].requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    smaller, _ = compress(model)
    assert model.training
    assert not smaller.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [p.requires_grad for p in smaller.parameters()] == [False, False, True, True]


@pytest.mark.parametrize("layer", LAYERS)
def test_a_sparse_state_loads_and_is_counted(layer):
    model = chain([40, 30, 20], LAYERS[layer])
    with torch.no_grad():
        model[0].weight.fill_(0.5).mul_(torch.arange(40) < 2)
    prune(model)
    state = sparse_state(model)
    assert {name: t.layout for name, t in state.tensors.items()} == {
        "0.weight": torch.sparse_csr,
        "0.bias": torch.strided,
        "2.weight": torch.strided,
        "2.bias": torch.strided,
    }
    # 60 values of 8 bytes with 4 bytes for the column, 31 row starts; the rest is dense.
    rest = 8 * (30 + 30 * 20 + 20)
    assert state.bytes == 60 * (8 + 4) + 31 * 4 + rest
    assert state.dense_bytes == 8 * 40 * 30 + rest
    assert (
        str(state) == f"1 of 4 tensors sparse: {state.dense_bytes:,} became {state.bytes:,} bytes"
    )
    for target in (chain([40, 30, 20], seed=1), chain([40, 30, 20], LAYERS[layer], seed=1)):
        target.load_state_dict(state.to_dense())
        assert torch.equal(target[0].weight, model[0].weight)
        assert_same_outputs(target.eval(), model, 40)


def test_a_sparse_state_of_one_layer_has_plain_names():
    assert set(sparse_state(AdditiveLinear(3, 2)).tensors) == {"weight", "bias"}
