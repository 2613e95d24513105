"""What each ε buys: the recipe that a run would take for it, and what that means."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dpvd.errors import DpvdError, in_unit_interval, positive, positive_int
from dpvd.plan import PrivacyPlan
from dpvd.privacy import Interpretation, group_epsilon, interpret
from dpvd.runs.recipes import (
    Mlp,
    default_clipping,
    default_steps,
    private_recipe,
)
from dpvd.runs.rehearsal import Rehearsal, Shape, rehearse
from dpvd.runs.table_rehearsal import rehearse_recipe
from dpvd.statistics import noise_shares
from dpvd.tabular import choose, knots_for

__all__ = ["DEFAULT_EPSILONS", "Offer", "offers"]

DEFAULT_EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
MOST_FEATURES = 10_000
MOST_CLASSES = 1_000


@dataclass(frozen=True)
class Offer:
    """One budget and what it buys."""

    epsilon: float
    """That was asked about; the plan spends no more."""
    delta: float
    plan: PrivacyPlan
    """Of a network on images: its steps. Of a table: one sum over all rows that costs as much as
    all releases and steps of its recipe together."""
    recipe: str
    """What is trained: statistics, steps or network for a table, mlp for images."""
    shares: dict[str, float]
    """By name, the parts of a table's budget."""
    steps: int
    """How many noisy sums there are, releases included."""
    learning_rate: float
    """0 without steps."""
    interpretation: Interpretation
    unit_rows: int
    group_epsilon: float
    """ε of so many rows together, at the same δ."""
    rehearsal: Rehearsal

    @property
    def noise_on_mean(self) -> float:
        """Deviation of the noise on the mean gradient, over the norm that one example may have."""
        assert self.plan.noise_multiplier is not None  # calibrated
        return self.plan.noise_multiplier / self.plan.batch_size

    @property
    def signal_to_noise(self) -> float:
        """S √T / z: the most that the data can add up to over the run, over the noise."""
        return math.sqrt(self.plan.steps) / self.noise_on_mean

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold; an infinite ε is null."""
        reading = self.interpretation
        finite = math.isfinite(self.group_epsilon)
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "noise_multiplier": self.plan.noise_multiplier,
            "batch_size": self.plan.batch_size,
            "steps": self.steps,
            "learning_rate": self.learning_rate,
            "recipe": self.recipe,
            "shares": self.shares,
            "noise_on_mean": self.noise_on_mean,
            "signal_to_noise": self.signal_to_noise,
            "true_positive_rate": reading.true_positive_rates[0.01],
            "correct_guesses": reading.correct_guesses,
            "posterior": reading.posteriors[0.5],
            "mu": reading.mu,
            "unit_rows": self.unit_rows,
            "group_epsilon": self.group_epsilon if finite else None,
            "accuracy_low": self.rehearsal.low,
            "accuracy_high": self.rehearsal.high,
            "best_low": self.rehearsal.best_low,
            "best_high": self.rehearsal.best_high,
            "rehearsed_rows": self.rehearsal.rows,
        }


def offers(
    shape: Shape,
    epsilons: Sequence[float],
    delta: float,
    *,
    batch_size: int | None = None,
    unit_rows: int = 10,
    on_offer: Callable[[float], None] | None = None,
) -> list[Offer]:
    """Return what each ε buys for a table of this shape, in the order of ε.

    Args:
        shape: of the table, taken as public.
        epsilons: budgets to compare.
        delta: δ of all of them.
        batch_size: expected batch size of a network on images, which is planned then; None plans
            what a run on a table would do.
        unit_rows: rows of a group whose cost is wanted.
        on_offer: called with each ε before it is worked out.

    Raises:
        DpvdError: if a number is out of range.
    """
    positive_int(examples=shape.examples, features=shape.features, classes=shape.classes)
    positive_int(unit_rows=unit_rows)
    in_unit_interval(delta=delta)
    _at_most(MOST_FEATURES, features=shape.features)
    _at_most(MOST_CLASSES, classes=shape.classes)
    if shape.classes < 2:
        raise DpvdError("classes must be at least 2, got 1")
    if unit_rows > shape.examples:
        raise DpvdError(
            f"unit_rows must be at most the number of examples, {shape.examples}; got {unit_rows}"
        )
    found = []
    for budget in sorted(set(epsilons)):
        positive(epsilon=budget)
        if on_offer is not None:
            on_offer(budget)
        if batch_size is None:
            found.append(_for_table(shape, budget, delta, unit_rows))
        else:
            found.append(_for_images(shape, budget, delta, batch_size, unit_rows))
    return found


def _for_table(shape: Shape, budget: float, delta: float, unit_rows: int) -> Offer:
    """The recipe for tables: its columns are taken as numbers, which hat functions may join."""
    knots = knots_for(shape.examples, budget, shape.features)
    features = shape.features * (1 + knots)
    hats = shape.features * knots
    recipe = choose(shape.examples, features, budget, delta, classes=shape.classes, hats=hats)
    parts = recipe.parts()
    multipliers = noise_shares(budget, delta, parts)
    # Gaussian sums over everybody compose exactly, as their 1/z² add up.
    cost = sum(part.steps / multipliers[name] ** 2 for name, part in parts.items())
    plan = PrivacyPlan(
        examples=shape.examples,
        batch_size=shape.examples,
        steps=1,
        noise_multiplier=cost**-0.5,
    )
    return Offer(
        epsilon=budget,
        delta=delta,
        plan=plan,
        recipe=str(recipe.method),
        shares={name: part.share for name, part in parts.items()},
        steps=sum(part.steps for part in parts.values()),
        learning_rate=recipe.learning_rate,
        interpretation=interpret(plan.event(), delta, relation=plan.relation),
        unit_rows=unit_rows,
        group_epsilon=group_epsilon(plan.event(), delta, unit_rows, relation=plan.relation),
        rehearsal=rehearse_recipe(shape, recipe, multipliers, knots),
    )


def _for_images(
    shape: Shape, budget: float, delta: float, batch_size: int, unit_rows: int
) -> Offer:
    """The default recipe of a network, in batches."""
    rule = Mlp(shape.features, Mlp.HIDDEN, shape.classes).rule()
    plan = PrivacyPlan(
        examples=shape.examples,
        batch_size=batch_size,
        steps=default_steps(shape.examples, batch_size, rule, private=True),
        clipping=default_clipping(),
    ).calibrate(budget, delta)
    return Offer(
        epsilon=budget,
        delta=delta,
        plan=plan,
        recipe="mlp",
        shares={},
        steps=plan.steps,
        learning_rate=private_recipe(plan, rule).learning_rate,
        interpretation=interpret(plan.event(), delta, relation=plan.relation),
        unit_rows=unit_rows,
        group_epsilon=group_epsilon(plan.event(), delta, unit_rows, relation=plan.relation),
        rehearsal=rehearse(shape, plan),
    )


def _at_most(largest: int, **named: int) -> None:
    for name, value in named.items():
        if value > largest:
            raise DpvdError(f"{name} must be at most {largest:,}, got {value:,}")
