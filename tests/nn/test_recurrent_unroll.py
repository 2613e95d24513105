"""The recurrence written out: torch's layers give its values, finite differences its gradients."""

import pytest
import torch
from torch import Tensor, nn

from dpvd.nn.recurrent.scan import Noise
from dpvd.nn.recurrent.unroll import Pass, Weights, own_weights, unroll

INPUTS, HIDDEN, COUNT, STEPS = 2, 3, 2, 4
KINDS = {
    "RNN": nn.RNN,
    "RNN relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
    "GRU": nn.GRU,
    "LSTM": nn.LSTM,
    "LSTM projected": lambda i, hidden, **options: nn.LSTM(
        i, hidden + 1, proj_size=hidden, **options
    ),
}
SHAPES = [{}, {"bias": False, "batch_first": True}, {"num_layers": 2, "bidirectional": True}]


def make(kind: str, **shape: object) -> nn.RNNBase:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return KINDS[kind](INPUTS, HIDDEN, dtype=torch.float64, **shape)


def normal(*shape: int, generator: torch.Generator) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def tensors(result: tuple[Tensor, Tensor | tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    outputs, state = result
    return (outputs, *state) if isinstance(state, tuple) else (outputs, state)


def a_start(layer: nn.RNNBase, generator: torch.Generator) -> tuple[Tensor, ...]:
    rows = layer.num_layers * (2 if layer.bidirectional else 1)
    sizes = (HIDDEN, layer.hidden_size) if layer.mode == "LSTM" else (HIDDEN,)
    return tuple(normal(rows, COUNT, size, generator=generator) for size in sizes)


def as_state(parts: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    return parts if len(parts) > 1 else parts[0]


@pytest.mark.filterwarnings(
    "ignore:LSTM with projections"
)  # torch says which library it does not use then
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_all_gradients_are_those_of_the_torch_layer(kind, shape, generator):
    layer = make(kind, **shape)
    x, start = normal(COUNT, COUNT, INPUTS, generator=generator), a_start(layer, generator)
    arguments = [value.requires_grad_() for value in (x, *start)] + list(layer.parameters())
    theirs = tensors(layer(x, as_state(start)))
    ours = tensors(unroll(layer, x, as_state(start), own_weights(layer)))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    arriving = [normal(*value.shape, generator=generator) for value in theirs]
    expected = torch.autograd.grad(theirs, arguments, arriving)
    torch.testing.assert_close(
        torch.autograd.grad(ours, arguments, arriving), expected, rtol=1e-11, atol=1e-12
    )
    for place in range(len(ours)):  # each output alone: the others get no gradient at all then
        theirs, ours = (
            tensors(layer(x, as_state(start))),
            tensors(unroll(layer, x, as_state(start), own_weights(layer))),
        )
        expected = torch.autograd.grad(
            theirs[place], arguments, arriving[place], materialize_grads=True
        )
        got = torch.autograd.grad(ours[place], arguments, arriving[place], materialize_grads=True)
        torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("rows", ["one", "all"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_gradients_through_noise_are_those_of_finite_differences(
    kind, bidirectional, rows, generator
):
    layer = make(kind, bidirectional=bidirectional)
    gates = len(layer.weight_hh_l0)
    draws = {side: normal(COUNT, gates, generator=generator) for side in ("ih", "hh")}
    height = 1 if rows == "one" else gates
    variances = [
        normal(height, width, generator=generator).exp() / 10 for width in (INPUTS, HIDDEN)
    ]
    values = [normal(STEPS, COUNT, INPUTS, generator=generator), *variances]
    values += [parameter.detach().clone() for parameter in (layer.weight_ih_l0, layer.weight_hh_l0)]

    def total(
        x: Tensor, variance_ih: Tensor, variance_hh: Tensor, ih: Tensor, hh: Tensor
    ) -> Tensor:
        noise = Noise(variance_ih, draws["ih"]), Noise(variance_hh, draws["hh"])
        result = unroll(layer, x, None, lambda end: Weights(ih, hh, None, None, None, *noise))
        return sum((part.sin().sum() for part in tensors(result)), torch.zeros(()))

    found = torch.autograd.grad(total(*(value.requires_grad_() for value in values)), values)
    for place, gradient in enumerate(found):
        step = 1e-5 * normal(*gradient.shape, generator=generator)
        ends = [
            [v + sign * step if i == place else v for i, v in enumerate(values)] for sign in (1, -1)
        ]
        with torch.no_grad():
            difference = total(*ends[0]) - total(*ends[1])
        torch.testing.assert_close(2 * (gradient * step).sum(), difference, rtol=1e-6, atol=1e-11)
        assert gradient.abs().max() > 1e-3


def test_with_passes_weights_are_constants_and_gradients_arrive_at_the_gates(generator):
    """δ alone gives every weight's gradient, here that of torch; and nothing else flows to the
    parameters.
    """
    layer, passes = make("GRU", num_layers=2, bidirectional=True), []
    x = normal(STEPS, COUNT, INPUTS, generator=generator)
    outputs, _ = unroll(layer, x, None, own_weights(layer), passes)
    edges = [edge for one in passes for edge in one.edges.values()]
    deltas = iter(torch.autograd.grad(outputs.sin().sum(), edges))
    layer(x)[0].sin().sum().backward()
    assert [one.end for one in passes] == ["l0", "l0_reverse", "l1", "l1_reverse"]
    for one in passes:
        for side, value in (("ih", one.inputs), ("hh", one.before())):
            gradient = torch.einsum("tbo,tbi->oi", next(deltas), value)
            torch.testing.assert_close(gradient, getattr(layer, f"weight_{side}_{one.end}").grad)
    again, _ = unroll(layer, x, None, own_weights(layer), [])
    nothing = torch.autograd.grad(again.sum(), list(layer.parameters()), allow_unused=True)
    assert all(gradient is None for gradient in nothing)


def test_outputs_changed_in_place_are_noticed(generator):
    layer = make("RNN")
    outputs, _ = unroll(
        layer, normal(STEPS, COUNT, INPUTS, generator=generator), None, own_weights(layer)
    )
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs.mul_(2).sum().backward()


def test_going_back_twice_is_refused_not_wrong(generator):
    """The first time has overwritten the activations with gradients."""
    layer = make("LSTM")
    outputs, _ = unroll(
        layer, normal(STEPS, COUNT, INPUTS, generator=generator), None, own_weights(layer)
    )
    outputs.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs.sum().backward()


def test_a_pass_knows_the_states_before_each_step(generator):
    layer, passes = make("LSTM", bidirectional=True), list[Pass]()
    start = a_start(layer, generator)
    outputs, _ = unroll(
        layer, normal(3, COUNT, INPUTS, generator=generator), start, own_weights(layer), passes
    )
    forwards, backwards = outputs.detach().chunk(2, -1)
    assert torch.equal(passes[0].before(), torch.stack([start[0][0], forwards[0], forwards[1]]))
    assert torch.equal(passes[1].before(), torch.stack([backwards[1], backwards[2], start[0][1]]))
