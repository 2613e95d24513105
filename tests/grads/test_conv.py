"""Rules of convolutions equal the oracle, whatever their kernel, stride, dilation, groups and
padding.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import dpvd.nn as dn
from tests.grads.conformance import assert_rule_equals_oracle, normal, randomised

# torch says, once in a process, that padding an even kernel on both sides copies the input.
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")


@st.composite
def convolutions(draw, transposed: bool):
    """A convolution of any torch class, and the shape of an input that it takes."""
    dims = draw(st.integers(1, 3))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(dims))

    groups = draw(st.integers(1, 2))
    channels = [groups * draw(st.integers(1, 3)) for _ in range(2)]
    kernel, stride, dilation = each(1, 3), each(1, 3), each(1, 2)
    options = {
        "stride": stride,
        "dilation": dilation,
        "groups": groups,
        "bias": draw(st.booleans()),
    }
    span = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    if transposed:
        options["padding"] = tuple(draw(st.integers(0, (s - 1) // 2)) for s in span)
        steps = zip(stride, dilation, strict=True)
        options["output_padding"] = tuple(draw(st.integers(0, max(step) - 1)) for step in steps)
    else:
        options["padding_mode"] = draw(
            st.sampled_from(["zeros", "circular", "replicate", "reflect"])
        )
        options["padding"] = each(0, 2)
        if draw(st.booleans()):
            options |= {"padding": "same", "stride": 1}
    size = [
        s + draw(st.integers(1, 3)) for s in span
    ]  # padding may not exceed the input when it is reflected
    name = f"Conv{'Transpose' if transposed else ''}{dims}d"
    return (name, channels, kernel, options), (channels[0], *(max(n, 3) for n in size))


@settings(max_examples=80, deadline=None)
@given(
    case=st.booleans().flatmap(convolutions),
    count=st.integers(0, 3),
    mode=st.sampled_from(["flat", "per-layer"]),
    seed=st.integers(0, 2**31),
)
def test_convolution(case, count, mode, seed):
    (name, channels, kernel, options), shape = case
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(getattr(nn, name)(*channels, kernel, **options), nn.Tanh())
    assert_rule_equals_oracle(
        randomised(model, generator), normal((count, *shape), generator), mode=mode
    )


def noisy(name, channels, kernel, options, noise):
    """The variational form of a convolution of torch: additive for all, multiplicative where there
    is one.
    """
    family = noise.pop("family")
    start = {"log_sigma2": -2.0} if family == "Additive" else {"log_alpha": -1.0}
    return getattr(dn, family + name)(*channels, kernel, **options, **noise, **start)


@settings(max_examples=80, deadline=None)
@given(
    case=st.booleans().flatmap(convolutions),
    noise=st.fixed_dictionaries(
        {
            "family": st.sampled_from(["Additive", "Additive", "Multiplicative"]),
            "rates": st.sampled_from(["layer", "neuron", "weight"]),
            "learned": st.booleans(),
        }
    ),
    pruned=st.booleans(),
    count=st.integers(0, 3),
    mode=st.sampled_from(["flat", "per-layer"]),
    seed=st.integers(0, 2**31),
)
def test_noisy_convolution(case, noise, pruned, count, mode, seed):
    (name, channels, kernel, options), shape = case
    if not hasattr(dn, noise["family"] + name):
        noise = noise | {"family": "Additive"}
    if not hasattr(
        dn, noise["family"] + name
    ):  # transposed ones have a variational form in two dimensions only
        return
    generator = torch.Generator().manual_seed(seed)
    layer = noisy(name, channels, kernel, options, dict(noise))
    model = randomised(nn.Sequential(layer, nn.Tanh()), generator)
    if pruned:
        with torch.no_grad():
            layer.weight[:1] *= 1e-9
        layer.prune(3.0)
    assert_rule_equals_oracle(model, normal((count, *shape), generator), mode=mode)


@pytest.mark.parametrize("size", [3, 8])
def test_a_network_of_convolutions(size, generator):
    """The last layer has few positions and many weights (Gram form), the first the other way
    round.
    """
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 16, 2, padding=1, stride=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.LazyLinear(3),
    )
    x = normal((5, 1, size, size), generator)
    model(x.float())
    assert_rule_equals_oracle(randomised(model, generator), x)


def test_a_convolution_used_twice_and_a_weight_tied_to_another(generator):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (
                nn.Conv1d(8, 8, 3, padding=1),
                nn.Conv1d(8, 8, 3, padding=2, dilation=2),
            )
            self.second.weight = self.first.weight

        def forward(self, x):
            x = torch.tanh(self.first(x))
            return self.second(torch.tanh(self.first(x[..., :2])))

    for positions in (2, 9):  # factors joined; factors and a materialised part
        assert_rule_equals_oracle(
            randomised(Twice(), generator), normal((3, 8, positions), generator)
        )


def test_a_non_finite_example_contributes_nothing(generator):
    model = randomised(nn.Sequential(nn.Conv2d(1, 8, 2), nn.Tanh(), nn.Conv2d(8, 8, 2)), generator)
    x = normal((4, 1, 3, 3), generator)
    x[1] = torch.inf
    assert assert_rule_equals_oracle(model, x).non_finite == 1


def test_a_large_batch_is_unfolded_in_pieces(generator, monkeypatch):
    """Several pieces, the last of them shorter: the gradients are those of the whole."""
    monkeypatch.setattr("dpvd.grads.factored.represent.CACHED_ENTRIES", 100)
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Flatten()).double()
    x = torch.randn(7, 2, 5, 5, generator=generator, dtype=torch.float64)
    assert_rule_equals_oracle(model, x)
