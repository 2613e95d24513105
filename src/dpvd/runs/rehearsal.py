"""Rehearsals of a network on made-up data: what accuracy a budget may buy, before any is touched.

A table of normal features is made for the shape asked for, its classes drawn from a logistic model
of known strength. Nothing in it comes from anybody's data, so trying things out costs no privacy.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpvd.plan import NoiseKind, PrivacyPlan
from dpvd.runs.network import NetworkSpec, Scale
from dpvd.runs.recipes import Mlp, default_clipping, private_recipe
from dpvd.training import fit

__all__ = [
    "MOST_ROWS",
    "SIGNALS",
    "TEST_ROWS",
    "Rehearsal",
    "Shape",
    "made_up",
    "rehearse",
]

MOST_ROWS = 20_000
"""Larger tables are rehearsed with so many rows, and noise that matters as much as in the plan."""

MOST_CELLS = 20_000_000  # rows times features that are made up; wide tables get fewer rows
BATCH = 1000
HIDDEN = 100
TEST_ROWS = 2000
SIGNALS = (1.0, 2.5, 6.0)
"""Standard deviations of a class's score in the tables that are made up: weak, middling, strong."""

_STEPS = Mlp(features=1, hidden=HIDDEN, classes=2).rule().full_batch_steps


@dataclass(frozen=True)
class Shape:
    """What a rehearsal knows of a table: its size, and nothing of what is in it."""

    examples: int
    features: int
    classes: int


@dataclass(frozen=True)
class Rehearsal:
    """Test accuracies over tables of several strengths; shares between 0 and 1.

    ``low`` and ``high`` are reached under privacy, ``best_low`` and ``best_high`` by the rule that
    the tables were made with, which nothing can beat. ``lost`` is the largest difference of the two
    on one table.
    """

    low: float
    high: float
    best_low: float
    best_high: float
    lost: float
    rows: int


def rehearse(shape: Shape, plan: PrivacyPlan) -> Rehearsal:
    """Train a private network of 100 hidden units on made-up tables of this shape.

    A table of more than ``MOST_ROWS`` rows is rehearsed on that many, in batches of 1000, with
    noise that leaves the signal-to-noise ratio S √T / z of the whole run as planned. Fewer rows
    teach less, so this errs on the low side.

    Guarantees: the same arguments give the same result; no data is read.
    """
    rows = min(shape.examples, MOST_ROWS, MOST_CELLS // shape.features)
    results = [_on_table(shape, rows, plan, signal) for signal in SIGNALS]
    return Rehearsal(
        low=min(reached for reached, _ in results),
        high=max(reached for reached, _ in results),
        best_low=min(best for _, best in results),
        best_high=max(best for _, best in results),
        lost=max(best - reached for reached, best in results),
        rows=rows,
    )


def _on_table(shape: Shape, rows: int, plan: PrivacyPlan, signal: float) -> tuple[float, float]:
    """Return the accuracy of training on a made-up table, and of the rule that made it."""
    x, y, rule = made_up(shape, rows + TEST_ROWS, signal)
    network = NetworkSpec(
        shape.features,
        HIDDEN,
        shape.classes,
        Scale.PRIVACY,
        input_norm=Mlp.input_norm(shape.features),
    )
    model = network.build(0)
    inputs = network.inputs(x)
    rehearsed = _rehearsed_plan(plan, rows)
    recipe = private_recipe(rehearsed, network.rule)
    # δ enters the statement of the rehearsal alone, which nobody reads.
    fit(
        model,
        (inputs[:rows], y[:rows]),
        rehearsed,
        recipe,
        delta=1e-5,
        evaluations=1,
        generator=torch.Generator().manual_seed(0),
    )
    with torch.no_grad():
        reached = _accuracy(model(inputs[rows:]), y[rows:])
    return reached, _accuracy(rule[rows:], y[rows:])


def made_up(shape: Shape, rows: int, signal: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return features [rows, d], classes [rows] drawn by their scores, and the scores [rows, k]."""
    generator = torch.Generator().manual_seed(shape.features * 1000 + shape.classes)
    x = torch.randn(rows, shape.features, generator=generator)
    weights = torch.randn(shape.features, shape.classes, generator=generator)
    weights /= torch.linalg.vector_norm(weights, dim=0)
    scores = signal * x @ weights
    y = torch.multinomial(scores.softmax(1), 1, generator=generator).squeeze(1)
    return x, y, scores


def _rehearsed_plan(plan: PrivacyPlan, rows: int) -> PrivacyPlan:
    """Return a plan for a table of ``rows`` with the signal-to-noise ratio of ``plan``."""
    assert plan.noise_multiplier  # plans are calibrated before they are rehearsed
    signal = plan.batch_size * math.sqrt(plan.steps) / plan.noise_multiplier
    batch = min(rows, BATCH)
    return PrivacyPlan(
        examples=rows,
        batch_size=batch,
        steps=_STEPS,
        noise_multiplier=batch * math.sqrt(_STEPS) / signal,
        clipping=default_clipping(),
        noise=NoiseKind.SEEDED,  # nothing here is secret
        seed=0,
    )


def _accuracy(scores: Tensor, y: Tensor) -> float:
    return (scores.argmax(1) == y).double().mean().item()
