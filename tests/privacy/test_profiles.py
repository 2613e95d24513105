"""Closed-form privacy profiles against plain numerical integration and against dp-accounting."""

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

from dpvd.privacy.profiles import add_profile, fixed_size_profile, remove_profile, replace_profile
from tests.privacy.reference import divergence, sampled

PAIRS = {
    "remove": (remove_profile, lambda q: (sampled(1.0, q), sampled(0.0, q))),
    "add": (add_profile, lambda q: (sampled(0.0, q), sampled(1.0, q))),
    "replace": (replace_profile, lambda q: (sampled(0.5, q), sampled(-0.5, q))),
}
LIBRARY = {
    "remove": (AdjacencyType.REMOVE, 1),
    "add": (AdjacencyType.ADD, 1),
    # The library's unit is the clipping norm, ours the sensitivity, twice as large: hence twice z.
    "replace": (AdjacencyType.REPLACE, 2),
}


@pytest.mark.parametrize("pair", list(PAIRS))
@pytest.mark.parametrize(("z", "q"), [(1.0, 0.1), (0.5, 0.6), (3.0, 0.02)])
def test_profiles_equal_numerical_integration(pair, z, q):
    profile, mixtures = PAIRS[pair]
    for eps in (-1.0, 0.0, 0.05, 1.5):
        exact = divergence(*mixtures(q), z, eps)
        assert float(profile(z, q, np.array(eps))) == pytest.approx(exact, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("pair", list(PAIRS))
@pytest.mark.parametrize(("z", "q"), [(0.3, 0.001), (1.0, 0.1), (40.0, 0.5)])
def test_profiles_equal_the_library(pair, z, q):
    adjacency, factor = LIBRARY[pair]
    epsilons = np.linspace(-3, 8, 501)
    library = GaussianPrivacyLoss(factor * z, sampling_prob=q, adjacency_type=adjacency)
    found = PAIRS[pair][0](z, q, epsilons)
    assert np.abs(found - library.get_delta_for_epsilon(epsilons)).max() < 1e-14


@pytest.mark.parametrize("pair", list(PAIRS))
def test_without_sampling_all_profiles_are_the_gaussian(pair):
    epsilons = np.linspace(-2, 2, 41)
    library = GaussianPrivacyLoss(2.0).get_delta_for_epsilon(epsilons)
    assert np.allclose(PAIRS[pair][0](2.0, 1.0, epsilons), library, atol=1e-13)


def contributions(rng, count):
    directions = rng.normal(size=(count, 2))
    return (
        0.5
        * directions
        / np.linalg.norm(directions, axis=1, keepdims=True)
        * rng.random((count, 1)) ** 0.5
    )


def grid_divergence(weights_and_means, other, z, eps):
    side = np.linspace(-8 * z - 1, 8 * z + 1, 301)
    x = np.stack(np.meshgrid(side, side), axis=-1)

    def density(parts):
        return sum(w * np.exp(-((x - m) ** 2).sum(-1) / (2 * z * z)) for w, m in parts) / (
            2 * np.pi * z * z
        )

    gap = density(weights_and_means) - np.exp(eps) * density(other)
    return np.maximum(gap, 0).sum() * (side[1] - side[0]) ** 2


@pytest.mark.parametrize("eps", [-0.1, 0.0, 0.1, 0.5])
def test_no_pair_of_contributions_in_the_plane_exceeds_the_replace_profiles(eps):
    rng, z, q = np.random.default_rng(0), 0.8, 0.2
    bounds = replace_profile(z, q, np.array(eps)), fixed_size_profile(z, q, np.array(eps))
    for mine, yours, other in zip(*(contributions(rng, 8) for _ in range(3)), strict=True):
        poisson = grid_divergence(
            [(1 - q, 0 * mine), (q, mine)], [(1 - q, 0 * mine), (q, yours)], z, eps
        )
        fixed = grid_divergence([(1 - q, other), (q, mine)], [(1 - q, other), (q, yours)], z, eps)
        assert poisson <= bounds[0] + 1e-6
        assert fixed <= bounds[1] + 1e-6


def test_the_fixed_size_profile_dominates_both_orders_and_is_convex():
    epsilons = np.linspace(-2, 2, 401)
    profile = fixed_size_profile(1.0, 0.3, epsilons)
    assert np.all(profile >= remove_profile(1.0, 0.3, epsilons) - 1e-15)
    assert np.all(profile >= add_profile(1.0, 0.3, epsilons) - 1e-15)
    slopes = np.diff(profile) / np.diff(np.exp(epsilons))
    assert np.all(np.diff(slopes) >= -1e-12)
