"""Tables of people for the tests: rows, targets, and what a release was charged."""

from dataclasses import replace

import torch
from torch import Tensor

from dpvd.plan import PrivacyPlan
from dpvd.statistics import release_plan


def seeded_plan(
    examples: int, *, relation: str = "add-or-remove", reach: float = 1.0, z: float = 1.0
) -> PrivacyPlan:
    """The plan of one release with reproducible noise."""
    base = PrivacyPlan(
        examples=examples,
        batch_size=examples,
        steps=1,
        relation=relation,
        noise="seeded",
        seed=11,
        unit="patient",
    )
    return release_plan(base, name="a statistic", noise_multiplier=z, reach=reach)


def secret_plan(examples: int, *, reach: float = 1.0, z: float = 1.0) -> PrivacyPlan:
    """The same with noise that nobody can repeat."""
    return replace(seeded_plan(examples, reach=reach, z=z), noise="system", seed=None)


def free(_plan: PrivacyPlan) -> None:
    """Charges nothing: for tests that look at one release by itself."""


def unit_rows(count: int, features: int, generator: torch.Generator) -> Tensor:
    rows = torch.randn(count, features, generator=generator)
    return rows / rows.norm(dim=1, keepdim=True)
