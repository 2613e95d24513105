"""How a table is learnt, chosen from numbers that are public: nothing here sees a row."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from dp_accounting import DpEvent

from dpvd.errors import DpvdError, choice, non_negative, positive, positive_int
from dpvd.privacy import AccountantName, Relation, noise_multiplier_for, poisson_event
from dpvd.statistics import Part

__all__ = ["TableMethod", "TableRecipe", "choose", "knots_for"]

# Below this many examples per feature and unit of noise a step on all features drowns in noise.
_SIGNAL_FOR_STEPS = 6.0
# Standard deviation that the noise of all steps together puts on a score, before it is averaged.
_SCORE_NOISE = {"classes": 1.0, "regression": 0.15}
# The largest learning rate at which steps on rows of length 1 are stable.
_LARGEST_RATE = {"classes": 128.0, "regression": 16.0}
_STEPS = (10, 100)
_MOST_KNOTS = 16


class TableMethod(StrEnum):
    """What is learnt from the noisy statistics."""

    STATISTICS = "statistics"
    """A linear model from noisy moments, and its calibration from noisy moments of its scores."""
    STEPS = "steps"
    """Noisy moments whiten the rows; a linear model learns by private steps on them."""


@dataclass(frozen=True)
class TableRecipe:
    """Everything that decides how a table is learnt, the split of the budget included.

    Args:
        method: see `TableMethod`.
        mean: share of the budget for the mean row.
        second: share for the products of features.
        cross: share for the products of features and target; 0 with steps.
        calibration: share for the moments of the scores; 0 for classes with steps.
        training: share for the steps; 0 without.
        steps: number of steps.
        learning_rate: of the steps.
        clip_norm: bound on one example's gradient.
        ridge: added to the second moments, in units of the norm of their noise.
        constant: added to every row before it is scaled, in units of the root of the number of
            columns; with steps only.
    """

    method: TableMethod
    mean: float
    second: float
    cross: float = 0.0
    calibration: float = 0.0
    training: float = 0.0
    steps: int = 0
    learning_rate: float = 0.0
    clip_norm: float = 0.7
    ridge: float = 1.0
    constant: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", choice(self.method, TableMethod, "method"))
        positive(mean=self.mean, second=self.second, clip_norm=self.clip_norm, ridge=self.ridge)
        positive(constant=self.constant)
        non_negative(cross=self.cross, calibration=self.calibration, training=self.training)
        if (self.method is TableMethod.STEPS) != (self.training > 0):
            raise DpvdError("a recipe has a share for training if, and only if, it has steps")
        if self.method is TableMethod.STEPS:
            positive_int(steps=self.steps)
            positive(learning_rate=self.learning_rate)
        else:
            positive(cross=self.cross, calibration=self.calibration)

    def parts(self) -> dict[str, Part]:
        """The parts of the budget by name: ``mean``, ``moments``, ``training``, ``calibration``."""
        shares = {
            "mean": Part(self.mean),
            "moments": Part(self.second + self.cross),
        }
        if self.training:
            shares["training"] = Part(self.training, self.steps)
        if self.calibration:
            shares["calibration"] = Part(self.calibration)
        return shares

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"method": str(self.method)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TableRecipe":
        """The recipe that :meth:`to_dict` wrote."""
        known = {f.name for f in fields(cls)}
        if set(values) != known:
            raise DpvdError(
                f"not a recipe for tables: fields {sorted(set(values) ^ known)} are missing or"
                " unknown"
            )
        return cls(**values)


def choose(
    examples: int,
    features: int,
    epsilon: float,
    delta: float,
    *,
    classes: int | None,
    accountant: AccountantName | str = AccountantName.PLD,
    relation: Relation | str = Relation.ADD_OR_REMOVE,
) -> TableRecipe:
    """The recipe for a table of this shape and a budget of this size.

    With z the noise multiplier that one release with the whole budget has, N examples and d
    features, the signal of a step over its noise grows with N / (z d). Where that is small, one
    release of moments is all that can be had of the budget, and features should be few; where it is
    large, steps on whitened rows learn what a linear regression cannot. Steps of size η change
    scores by noise of standard deviation ηTz/N, and a good size of that is the same for all
    tables: it determines η T.

    Args:
        examples: N, people rather than rows if people have several.
        features: d, after encoding.
        epsilon: the budget.
        delta: δ of it.
        classes: number of classes; None for regression.
        accountant: who adds up.
        relation: which data sets count as neighbours.

    Raises:
        DpvdError: if a number makes no sense.

    >>> choose(800, 61, 1.0, 1e-5, classes=2).method
    <TableMethod.STATISTICS: 'statistics'>
    >>> choose(32_561, 168, 1.0, 1e-5, classes=2).steps
    68
    """
    positive_int(examples=examples, features=features)

    def single(noise: float) -> DpEvent:
        return poisson_event(noise, 1.0, 1)

    z = noise_multiplier_for(epsilon, delta, single, accountant=accountant, relation=relation)
    # Under replace-one the sensitivity, and so the noise, is twice as large at the same multiplier.
    reach = 2.0 if Relation.parse(relation) is Relation.REPLACE_ONE else 1.0
    outputs = 1 if classes is None else max(1, classes - 1)
    signal = examples / (z * reach * features * math.sqrt(outputs))
    if signal < _SIGNAL_FOR_STEPS:
        return TableRecipe(
            TableMethod.STATISTICS, mean=0.2, second=0.1, cross=0.6, calibration=0.1, ridge=2.0
        )
    kind = "regression" if classes is None else "classes"
    distance = _SCORE_NOISE[kind] * examples / (z * reach)  # η T
    largest = _LARGEST_RATE[kind]
    fewest, most = _STEPS
    steps = min(most, max(fewest, round(distance / largest)))
    calibration = 0.05 if classes is None else 0.0
    return TableRecipe(
        TableMethod.STEPS,
        mean=0.1,
        second=0.15,
        calibration=calibration,
        training=1 - 0.1 - 0.15 - calibration,
        steps=steps,
        learning_rate=min(distance / steps, largest),
    )


def knots_for(examples: int, epsilon: float) -> int:
    """How many knots the encoding of a number should have, beside its value; 0 for none.

    A number is encoded by its value, scaled to [-1, 1], and by hat functions at this many knots,
    which let a linear model bend. Each costs a feature, so few people or a small ε pay for none.

    >>> knots_for(800, 1.0), knots_for(32_561, 0.5), knots_for(32_561, 1.0)
    (0, 10, 14)
    """
    positive_int(examples=examples)
    positive(epsilon=epsilon)
    knots = round(math.sqrt(examples * epsilon / 160))
    return 0 if knots < 3 else min(knots, _MOST_KNOTS)
