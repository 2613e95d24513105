"""Epsilon by numerical composition of privacy loss distributions, through dp-accounting.

The profile of one step is put on a grid by the pessimistic connect-the-dots method and composed by fast
Fourier transform. Rounding is always towards more privacy loss.

References: Doroshenko et al. (2022), arXiv 2207.04380v1.
"""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np
from dp_accounting.pld.pld_pmf import PLDPmf, create_pmf_pessimistic_connect_dots_fixed_gap
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from dpvd.privacy.bounds import Array
from dpvd.privacy.events import Sampling, Step
from dpvd.privacy.names import Relation
from dpvd.privacy.profiles import (
    add_profile,
    fixed_size_profile,
    largest_loss,
    remove_profile,
    replace_profile,
    smallest_loss,
)

__all__ = ["LEAST_NOISE", "grid_spacing", "pld_epsilon"]

LEAST_NOISE = 0.05
"""Noise multipliers below this are not put on a grid: a single step then costs an epsilon of hundreds."""

_POINTS_PER_DEVIATION = 20  # inflates the variance of a step by about 1/(6 * 20^2) = 0.04 %
_COARSEST = 1e-3
_MOST_POINTS = 50_000  # for one step; a step so skewed that this binds needs no finer grid


def pld_epsilon(steps: Mapping[Step, int], delta: float, relation: Relation) -> float:
    """Return the epsilon at ``delta`` of all ``steps`` together.

    Guarantees: an upper bound, typically within 0.1 % of the exact value.

    Args:
        steps: how often each kind of step is taken, at least one; noise multipliers of at least
            ``LEAST_NOISE``, relative to the sensitivity under ``relation``.
        delta: in (0, 1).
        relation: which data sets count as neighbours.
    """
    spacing = min(grid_spacing(step) for step in steps)
    parts = [_step_distribution(step, relation, spacing).self_compose(n) for step, n in steps.items()]
    total = parts[0]
    for part in parts[1:]:
        total = total.compose(part)
    return float(total.get_epsilon_for_delta(delta))


def grid_spacing(step: Step) -> float:
    """Return the distance of grid points that suits the privacy loss of one step.

    The loss of one step has standard deviation about q sqrt(e^{1/z^2} - 1); the grid must resolve that,
    however small, or the rounding of many steps adds up. A large loss needs no finer grid than 1e-3.
    """
    z, q = step.noise_multiplier, step.sampling_prob
    deviation = q * min(math.sqrt(math.expm1(min(z**-2, 10.0))), 5.0)
    finest = largest_loss(z, q) / _MOST_POINTS
    return max(min(deviation / _POINTS_PER_DEVIATION, _COARSEST), finest)


@lru_cache(maxsize=32)
def _step_distribution(step: Step, relation: Relation, spacing: float) -> PrivacyLossDistribution:
    """Return the privacy loss distribution of one step on the grid."""
    z, q = step.noise_multiplier, step.sampling_prob
    top = largest_loss(z, q)
    if step.sampling is Sampling.FIXED_SIZE:
        return PrivacyLossDistribution(_on_grid(fixed_size_profile, z, q, -top, top, spacing))
    if relation is Relation.REPLACE_ONE:
        return PrivacyLossDistribution(_on_grid(replace_profile, z, q, -top, top, spacing))
    bottom = smallest_loss(z, q)
    remove = _on_grid(remove_profile, z, q, bottom, top, spacing)
    return PrivacyLossDistribution(remove, _on_grid(add_profile, z, q, -top, -bottom, spacing))


def _on_grid(
    profile: Callable[[float, float, Array], Array], z: float, q: float, low: float, high: float, spacing: float
) -> PLDPmf:
    """Return a distribution on multiples of ``spacing`` whose profile lies on or above the given one."""
    first, last = math.floor(low / spacing), math.ceil(high / spacing)
    epsilons = spacing * np.arange(first, last + 1, dtype=np.float64)
    deltas = np.clip(profile(z, q, epsilons), 0.0, 1.0)
    return create_pmf_pessimistic_connect_dots_fixed_gap(spacing, first, last, deltas)
