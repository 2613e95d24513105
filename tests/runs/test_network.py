"""The networks of runs: weights follow from the seed alone, inputs from the example alone."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from dpvd.errors import DpvdError
from dpvd.nn import VariationalLayer
from dpvd.runs import NetworkKind, NetworkSpec, Scale

SPEC = NetworkSpec(64, 16, 10)
IMAGES = NetworkSpec(16 * 20, 7, 10, kind=NetworkKind.CNN, image=(16, 20))


def weights(spec: NetworkSpec, seed: int) -> dict[str, torch.Tensor]:
    return spec.build(seed).state_dict()


def first_weight(spec: NetworkSpec, seed: int) -> torch.Tensor:
    return next(value for name, value in weights(spec, seed).items() if name.endswith("weight"))


@pytest.mark.parametrize("network", [SPEC, IMAGES], ids=["mlp", "cnn"])
@pytest.mark.parametrize("scale", list(Scale))
def test_weights_follow_from_the_seed_and_the_global_generator_is_untouched(scale, network):
    spec = replace(network, scale=scale)
    before = torch.get_rng_state()
    first = weights(spec, 3)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng():
        torch.manual_seed(99)
        second = weights(spec, 3)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first_weight(spec, 3), first_weight(spec, 4))


@pytest.mark.parametrize("network", [SPEC, IMAGES], ids=["mlp", "cnn"])
def test_scales_share_their_initial_weights(network):
    drawn = [first_weight(replace(network, scale=scale), 0) for scale in Scale]
    assert all(torch.equal(drawn[0], other) for other in drawn[1:])


@pytest.mark.parametrize(
    ("scale", "dense", "convolutional"),
    [("privacy", 2, 4), ("learned", 2, 4), ("fixed", 2, 2), ("none", 0, 0)],
)
def test_only_a_scale_makes_weights_random(scale, dense, convolutional):
    for network, layers in ((SPEC, dense), (IMAGES, convolutional)):
        model = replace(network, scale=scale).build()
        assert sum(isinstance(module, VariationalLayer) for module in model.modules()) == layers


def test_parameters_are_counted():
    assert (
        SPEC.parameters
        == sum(p.numel() for p in SPEC.build().parameters())
        == 64 * 16 + 16 + 160 + 10
    )
    dense = (32 * 1 * 2 + 1) * 7 + (7 + 1) * 10
    assert (
        IMAGES.parameters
        == sum(p.numel() for p in IMAGES.build().parameters())
        == 16 * 65 + 32 * 257 + dense
    )


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
    assert NetworkSpec.from_dict(json.loads(json.dumps(IMAGES.to_dict()))) == IMAGES
    with pytest.raises(DpvdError, match="rate"):
        NetworkSpec.from_dict(
            {name: value for name, value in spec.to_dict().items() if name != "rate"}
        )


@pytest.mark.parametrize("sizes", [(0, 16, 10), (64, 0, 10), (64, 16, 0), (64, -1, 10)])
def test_sizes_are_at_least_one(sizes):
    with pytest.raises(DpvdError, match="at least 1"):
        NetworkSpec(*sizes)


def test_a_network_beyond_memory_is_refused():
    with pytest.raises(DpvdError, match="does not fit into memory"):
        NetworkSpec(64, 10**14, 10).build()


def test_networks_of_records_from_before_there_were_several_kinds_are_read():
    old = {name: value for name, value in SPEC.to_dict().items() if name not in ("kind", "image")}
    assert NetworkSpec.from_dict(old) == SPEC


def test_convolutions_see_the_image_as_it_lies():
    """A bright pixel moves the first layer's outputs around its place, and no others."""
    first = nn.Sequential(*list(IMAGES.build())[:2])
    image = torch.zeros(1, 16, 20)
    image[0, 4, 10] = 1.0
    seen = first(IMAGES.inputs(image)).abs().sum(1).squeeze(0)
    rows, columns = seen.nonzero().T.unique(dim=1)
    assert seen.shape == (8, 10)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (0, 3, 3, 6)


@pytest.mark.parametrize(
    ("image", "words"), [((13, 20), "got 13 by 20"), ((8, 8), "at least 14 by 14")]
)
def test_images_too_small_for_convolutions_are_refused(image, words):
    with pytest.raises(DpvdError, match=words):
        NetworkSpec(image[0] * image[1], 7, 10, kind="cnn", image=image)


@pytest.mark.parametrize("image", [None, (28, 28)])
def test_convolutions_need_an_image_with_all_features(image):
    with pytest.raises(DpvdError, match="use the mlp"):
        NetworkSpec(785, 7, 10, kind="cnn", image=image)
