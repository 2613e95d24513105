"""The networks of runs: weights follow from the seed alone, inputs from the example alone."""

import pytest
import torch

from dpvd.errors import DpvdError
from dpvd.nn import VariationalLayer
from dpvd.runs import NetworkSpec, Scale

SPEC = NetworkSpec(64, 16, 10)


def weights(spec: NetworkSpec, seed: int) -> dict[str, torch.Tensor]:
    return spec.build(seed).state_dict()


@pytest.mark.parametrize("scale", list(Scale))
def test_weights_follow_from_the_seed_and_the_global_generator_is_untouched(scale):
    spec = NetworkSpec(64, 16, 10, scale)
    before = torch.get_rng_state()
    first = weights(spec, 3)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng():
        torch.manual_seed(99)
        second = weights(spec, 3)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["0.weight"], weights(spec, 4)["0.weight"])


def test_scales_share_their_initial_weights():
    drawn = [weights(NetworkSpec(64, 16, 10, scale), 0)["0.weight"] for scale in Scale]
    assert all(torch.equal(drawn[0], other) for other in drawn[1:])


@pytest.mark.parametrize(("scale", "layers"), [("privacy", 2), ("learned", 2), ("fixed", 2), ("none", 0)])
def test_only_a_scale_makes_weights_random(scale, layers):
    model = NetworkSpec(64, 16, 10, scale).build()
    assert sum(isinstance(module, VariationalLayer) for module in model.modules()) == layers


def test_parameters_are_counted():
    assert SPEC.parameters == sum(p.numel() for p in SPEC.build().parameters()) == 64 * 16 + 16 + 160 + 10


def test_inputs_are_flattened_and_scaled_one_by_one(generator):
    spec = NetworkSpec(64, 16, 10, input_norm=4.0)
    x = torch.rand(5, 8, 8, generator=generator)
    scaled = spec.inputs(x)
    torch.testing.assert_close(scaled.norm(dim=1), torch.full((5,), 4.0))
    torch.testing.assert_close(scaled[2:3], spec.inputs(x[2:3]))
    torch.testing.assert_close(SPEC.inputs(x), x.reshape(5, 64))


def test_bytes_are_taken_as_numbers():
    x = torch.full((2, 64), 255, dtype=torch.uint8)
    torch.testing.assert_close(SPEC.inputs(x), torch.full((2, 64), 255.0))


def test_other_numbers_of_features_are_refused():
    with pytest.raises(DpvdError, match=r"64 features .* got 63"):
        SPEC.inputs(torch.ones(2, 63))


def test_round_trip():
    spec = NetworkSpec(64, 16, 10, Scale.LEARNED, input_norm=4.0)
    assert NetworkSpec.from_dict(spec.to_dict()) == spec
    with pytest.raises(DpvdError, match="rate"):
        NetworkSpec.from_dict({name: value for name, value in spec.to_dict().items() if name != "rate"})


@pytest.mark.parametrize("sizes", [(0, 16, 10), (64, 0, 10), (64, 16, 0), (64, -1, 10)])
def test_sizes_are_at_least_one(sizes):
    with pytest.raises(DpvdError, match="at least 1"):
        NetworkSpec(*sizes)


def test_a_network_beyond_memory_is_refused():
    with pytest.raises(DpvdError, match="does not fit into memory"):
        NetworkSpec(64, 10**14, 10).build()
