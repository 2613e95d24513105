"""Rules of normalisation layers equal the oracle."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.grads.conformance import assert_rule_equals_oracle, normal, randomised

CHANNELS = 6
LAYERS = {
    "layer": lambda positions: nn.LayerNorm(CHANNELS),
    "layer without bias": lambda positions: nn.LayerNorm(CHANNELS, bias=False),
    "layer over all": lambda positions: nn.LayerNorm([*positions, CHANNELS]),
    "rms": lambda positions: nn.RMSNorm(CHANNELS),
    "rms over all": lambda positions: nn.RMSNorm([*positions, CHANNELS], eps=0.1),
}
CHANNELS_FIRST = {
    "group": lambda dims: nn.GroupNorm(3, CHANNELS),
    "one group": lambda dims: nn.GroupNorm(1, CHANNELS, eps=0.1),
    "instance": lambda dims: getattr(nn, f"InstanceNorm{dims}d")(CHANNELS, affine=True),
}


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(sorted(LAYERS)),
    count=st.integers(0, 4),
    positions=st.lists(st.integers(1, 4), max_size=2),
    mode=st.sampled_from(["flat", "per-layer"]),
    seed=st.integers(0, 2**31),
)
def test_norms_over_the_last_dimensions(name, count, positions, mode, seed):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(3, CHANNELS), LAYERS[name](positions), nn.Tanh(), nn.Linear(CHANNELS, 2)
    )
    assert_rule_equals_oracle(
        randomised(model, generator), normal((count, *positions, 3), generator), mode=mode
    )


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(sorted(CHANNELS_FIRST)),
    count=st.integers(0, 4),
    positions=st.lists(st.integers(2, 4), min_size=1, max_size=3),
    seed=st.integers(0, 2**31),
)
def test_norms_over_channels(name, count, positions, seed):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(CHANNELS_FIRST[name](len(positions)), nn.Tanh())
    assert_rule_equals_oracle(
        randomised(model, generator), normal((count, CHANNELS, *positions), generator)
    )


def test_group_norm_without_positions(generator):
    model = nn.Sequential(nn.Linear(4, CHANNELS), nn.GroupNorm(2, CHANNELS), nn.Tanh())
    assert_rule_equals_oracle(randomised(model, generator), normal((3, 4), generator))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_instance_norm_with_frozen_statistics(dims, generator):
    layer = getattr(nn, f"InstanceNorm{dims}d")(
        CHANNELS, affine=True, track_running_stats=True
    ).eval()
    layer.running_mean.normal_(generator=generator)
    layer.running_var.uniform_(0.5, 2.0, generator=generator)
    model = randomised(nn.Sequential(layer), generator)
    assert_rule_equals_oracle(model, normal((3, CHANNELS, *[2] * dims), generator))
