"""From images to features: alone, of any size, the same everywhere, and without real data."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from dpvd.errors import DpvdError
from dpvd.features import FeatureSpec, Whitening, extract, random_shapes
from dpvd.features.whitening import principal_directions

SMALL = FeatureSpec((8, 8))


def rows(count: int, spec: FeatureSpec = SMALL) -> torch.Tensor:
    return torch.rand(count, spec.inputs, generator=torch.Generator().manual_seed(1))


def test_features_have_norm_one_and_nothing_to_train():
    module = SMALL.build()
    found = module(rows(5))
    assert found.shape == (5, SMALL.outputs) == (5, 128)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(5))
    assert list(module.parameters()) == []


@pytest.mark.parametrize("change", [1e6, -1.0, 0.0])
def test_no_image_reaches_the_features_of_another(change):
    module = SMALL.build()
    batch = rows(6)
    others = batch.clone()
    others[1:] *= change
    torch.testing.assert_close(module(batch)[0], module(others)[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(module(batch)[:1], module(batch[:1]), rtol=1e-5, atol=1e-6)


def test_the_scale_of_pixels_does_not_matter_and_black_images_stay_finite():
    module = SMALL.build()
    torch.testing.assert_close(module(rows(3) * 255), module(rows(3)), rtol=1e-4, atol=1e-5)
    assert torch.isfinite(module(torch.zeros(1, 64))).all()


def test_whitening_follows_from_the_shape_alone():
    before = torch.random.get_rng_state()
    first, second = SMALL.build().state_dict(), SMALL.build().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_module_is_stored_and_read_as_tensors(tmp_path):
    module = SMALL.build()
    save_file(module.state_dict(), tmp_path / "features.safetensors")
    again = SMALL.empty()
    again.load_state_dict(load_file(tmp_path / "features.safetensors"))
    assert torch.equal(again(rows(4)), module(rows(4)))
    assert FeatureSpec.from_dict(SMALL.to_dict()) == SMALL


@pytest.mark.parametrize(
    ("image", "size"),
    [
        ((28, 28), (28, 28)),
        ((6, 6), (16, 16)),
        ((32, 32, 3), (32, 32)),
        ((300, 200, 3), (32, 20)),
        ((30, 18), (32, 16)),
        ((6, 600), (16, 32)),
    ],
)
def test_images_of_any_size_are_brought_to_one_that_transforms_take(image, size):
    spec = FeatureSpec(image)
    assert spec.size == size
    module = spec.empty()
    spread = module.spread(rows(2, spec))
    assert spread.shape == (2, spec.transformed)
    torch.testing.assert_close(spread.norm(dim=1), torch.ones(2))


def test_channels_are_read_from_the_last_dimension():
    spec = FeatureSpec((8, 8, 3), "hog")
    colours = torch.rand(2, 8, 8, 3)
    grey = FeatureSpec((8, 8), "hog").empty()
    together = spec.empty().spread(colours.flatten(1)).reshape(2, 3, -1)
    for channel in range(3):
        alone = grey.spread(colours[..., channel].flatten(1))
        part = together[:, channel]
        torch.testing.assert_close(part / part.norm(dim=1, keepdim=True), alone)


@pytest.mark.parametrize("image", [(64,), (5, 28), (28, 28, 5), (2, 28, 28, 1), (8, 0)])
def test_what_is_no_image_is_refused(image):
    assert not FeatureSpec.fits(image)
    with pytest.raises(DpvdError):
        FeatureSpec(image)


def test_many_images_are_streamed_and_counted():
    module = SMALL.build()
    seen: list[tuple[int, int]] = []
    batch = rows(250)
    found = extract(module, batch, SMALL.outputs, lambda done, total: seen.append((done, total)))
    torch.testing.assert_close(found, module(batch), rtol=1e-5, atol=1e-6)
    assert seen == [(100, 250), (200, 250), (250, 250)]
    assert not found.requires_grad


def test_principal_directions_are_those_of_the_covariance():
    generator = torch.Generator().manual_seed(0)
    spread = torch.randn(500, 300, generator=generator) * 0.97 ** torch.arange(300)
    spread -= spread.mean(0)
    vectors, variances = principal_directions(spread, 20)
    exact = torch.linalg.eigvalsh(spread.T @ spread / 500).flip(0)[:20]
    torch.testing.assert_close(variances, exact, rtol=1e-3, atol=0)
    torch.testing.assert_close(vectors.T @ vectors, torch.eye(20), rtol=0, atol=1e-5)


def test_whitened_features_are_uncorrelated_where_they_vary():
    generator = torch.Generator().manual_seed(0)
    spread = 3 + torch.randn(2000, 40, generator=generator) @ torch.randn(
        40, 40, generator=generator
    )
    whitening = Whitening(40, 10)
    whitening.fit(spread, ridge=0.0)
    white = whitening(spread)
    torch.testing.assert_close(white.T @ white / 2000, torch.eye(10), rtol=0, atol=1e-3)
    torch.testing.assert_close(white.mean(0), torch.zeros(10), rtol=0, atol=1e-3)


def test_shapes_are_made_up_the_same_for_everybody():
    made = random_shapes(300, 12, 20, channels=3)
    assert made.shape == (300, 3, 12, 20)
    assert torch.equal(made, random_shapes(300, 12, 20, channels=3))
    assert not torch.equal(made, random_shapes(300, 12, 20, channels=3, seed=1))
    assert (made >= 0).all()
    assert (made <= 1).all()
    assert (made.flatten(1).std(dim=1) > 0).float().mean() > 0.9
