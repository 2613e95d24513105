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

__all__ = [
    "TableMethod",
    "TableNetworkKind",
    "TableRecipe",
    "choose",
    "choose_plain",
    "knots_for",
]

# Below this many examples per feature (hats left out) and unit of noise a step on all features
# drowns in noise.
_SIGNAL_FOR_STEPS = 6.0
# Below this many of them, noise outweighs what a tighter bound on gradients bends.
_SIGNAL_FOR_LOOSE_CLIP = 20.0
_TIGHT_CLIP = 0.5
_LOOSE_CLIP = 0.7
# Standard deviation that the noise of all steps together puts on a score, before it is averaged.
_SCORE_NOISE = {"classes": 1.0, "regression": 0.15}
# The largest learning rate at which steps on rows of length 1 are stable.
_LARGEST_RATE = {"classes": 128.0, "regression": 16.0}
_STEPS = (10, 100)
# Of the network: like a linear model's, but hidden units need smaller steps, and more of them.
_NETWORK_RATES = (8.0, 32.0)
_NETWORK_STEPS = (20, 200)
_HIDDEN = 16
_PRIOR_STD = 2.0
# From this many examples per feature (hats left out) and unit of noise on, made-up tables whose
# columns act together are learnt better by the network, and others hardly worse. Chosen on such
# tables alone, with classes; see docs/tables.md.
_SIGNAL_FOR_NETWORK = 130.0
# Without statistics rows are not whitened: directions of large variance allow smaller steps only.
_PLAIN_RATES = (4.0, 8.0)
_PLAIN_STEPS = (20, 300)
_MOST_KNOTS = 16
# A table of few columns can pay for five knots with fewer people than others, if there are at
# least so many and N ε is at least so much for each column; see docs/tables.md.
_FEW_COLUMNS = 10
_KNOTS_OF_FEW_COLUMNS = 5
_LEAST_PEOPLE = 500
_BUDGET_PER_COLUMN = 30


class TableMethod(StrEnum):
    """What is learnt from the noisy statistics."""

    STATISTICS = "statistics"
    """A linear model from noisy moments, and its calibration from noisy moments of its scores."""
    STEPS = "steps"
    """Noisy moments whiten the rows; a linear model learns by private steps on them."""
    NETWORK = "network"
    """The same, and products with the target are prior and start of a small network."""


class TableNetworkKind(StrEnum):
    """What the scores of a table are made by."""

    AUTO = "auto"
    """A linear model, or a network if there is signal enough for it."""
    LINEAR = "linear"
    """A linear model, from statistics alone or by steps."""
    MLP = "mlp"
    """A hidden layer beside a linear path."""


@dataclass(frozen=True)
class TableRecipe:
    """Everything that decides how a table is learnt, the split of the budget included.

    Args:
        method: see `TableMethod`.
        mean: share of the budget for the mean row.
        second: share for the products of features.
        cross: share for the products of features and target; 0 with steps of a linear model.
        calibration: share for the moments of the scores; 0 for classes with steps.
        training: share for the steps; 0 without.
        steps: number of steps.
        learning_rate: of the steps.
        clip_norm: bound on one example's gradient.
        ridge: added to the second moments, in units of the norm of their noise.
        constant: added to every row before it is scaled, in units of the root of the number of
            columns; with steps only.
        hidden: number of hidden units of a network.
        prior_std: standard deviation of the Gaussian prior of weights around where they start; 0
            for none.
        points: whether weights are points, without a posterior.
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
    hidden: int = 0
    prior_std: float = 0.0
    points: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", choice(self.method, TableMethod, "method"))
        positive(clip_norm=self.clip_norm, ridge=self.ridge, constant=self.constant)
        non_negative(mean=self.mean, second=self.second, cross=self.cross)
        non_negative(calibration=self.calibration, training=self.training)
        non_negative(prior_std=self.prior_std)
        if (self.method is not TableMethod.STATISTICS) != (self.training > 0):
            raise DpvdError("a recipe has a share for training if, and only if, it has steps")
        if (self.method is TableMethod.NETWORK) != (self.hidden > 0):
            raise DpvdError("a recipe has hidden units if, and only if, it is for a network")
        if (self.mean > 0) != (self.second > 0) or self.cross > 0 >= self.second:
            raise DpvdError("products are released of centred rows: mean, second, then cross")
        if self.method is TableMethod.STATISTICS:
            positive(mean=self.mean, cross=self.cross, calibration=self.calibration)
            return
        positive_int(steps=self.steps)
        positive(learning_rate=self.learning_rate)
        if self.hidden:
            positive_int(hidden=self.hidden)
        if self.hidden and not self.points:
            positive(prior_std=self.prior_std)  # a posterior needs one

    def parts(self) -> dict[str, Part]:
        """The parts of the budget by name: ``mean``, ``moments``, ``training``, ``calibration``."""
        shares = {}
        if self.mean:
            shares["mean"] = Part(self.mean)
            shares["moments"] = Part(self.second + self.cross)
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
    network: TableNetworkKind | str = TableNetworkKind.AUTO,
    hidden: int | None = None,
    hats: int = 0,
    accountant: AccountantName | str = AccountantName.PLD,
    relation: Relation | str = Relation.ADD_OR_REMOVE,
) -> TableRecipe:
    """The recipe for a table of this shape and a budget of this size.

    With z the noise multiplier that one release with the whole budget has, N examples and d
    features (hats left out), the signal of a step over its noise grows with N / (z d). Where that
    is small, one release of moments is all that can be had of the budget, and features should be
    few; where it is large, steps on whitened rows learn what a linear regression cannot, and where
    it is larger still, hidden units learn what no linear model can. Steps of size η change scores
    by noise of standard deviation ηTz/N, and a good size of that is the same for all tables: it
    determines η T.

    Args:
        examples: N, people rather than rows if people have several.
        features: d, after encoding.
        epsilon: the budget.
        delta: δ of it.
        classes: number of classes; None for regression.
        network: linear, mlp, or what these numbers suggest: linear for regression, for which no
            network was tried out.
        hidden: number of hidden units, of which a network has some; the rule's if None.
        hats: how many of the features are hat functions, which hidden units do not see.
        accountant: who adds up.
        relation: which data sets count as neighbours.

    Raises:
        DpvdError: if a number makes no sense.

    >>> choose(800, 61, 1.0, 1e-5, classes=2).method
    <TableMethod.STATISTICS: 'statistics'>
    >>> choose(32_561, 168, 1.0, 1e-5, classes=2).steps
    68
    >>> choose(20_000, 120, 1.0, 1e-5, classes=2, hats=110).method
    <TableMethod.NETWORK: 'network'>
    """
    kind = choice(network, TableNetworkKind, "network")
    positive_int(examples=examples, features=features)
    if not 0 <= hats < features:
        raise DpvdError(f"hats must be some of the {features} features, got {hats!r}")
    people = _people_per_noise(examples, epsilon, delta, accountant, relation)
    outputs = 1 if classes is None else max(1, classes - 1)
    signal = people / (math.sqrt(outputs) * (features - hats))
    if kind is TableNetworkKind.AUTO:
        enough = signal >= _SIGNAL_FOR_NETWORK
        is_mlp = (enough and classes is not None) or hidden is not None
        kind = TableNetworkKind.MLP if is_mlp else TableNetworkKind.LINEAR
    if hidden is not None and kind is TableNetworkKind.LINEAR:
        raise DpvdError("hidden units are for the network mlp: a linear model has none")
    is_regression = classes is None
    if kind is TableNetworkKind.MLP:
        return _network(people, hidden or _HIDDEN, is_regression=is_regression)
    if signal < _SIGNAL_FOR_STEPS:
        return TableRecipe(
            TableMethod.STATISTICS, mean=0.2, second=0.1, cross=0.6, calibration=0.1, ridge=2.0
        )
    largest = _LARGEST_RATE[_kind(is_regression)]
    steps, rate = _pace(people, (largest, largest), _STEPS, is_regression=is_regression)
    calibration = 0.05 if is_regression else 0.0
    is_tight = signal < _SIGNAL_FOR_LOOSE_CLIP and not is_regression
    return TableRecipe(
        TableMethod.STEPS,
        mean=0.1,
        second=0.15,
        calibration=calibration,
        training=1 - 0.1 - 0.15 - calibration,
        steps=steps,
        learning_rate=rate,
        clip_norm=_TIGHT_CLIP if is_tight else _LOOSE_CLIP,
    )


def _network(people: float, hidden: int, *, is_regression: bool) -> TableRecipe:
    steps, rate = _pace(people, _NETWORK_RATES, _NETWORK_STEPS, is_regression=is_regression)
    calibration = 0.05 if is_regression else 0.0
    return TableRecipe(
        TableMethod.NETWORK,
        mean=0.1,
        second=0.15,
        cross=0.05,
        calibration=calibration,
        training=1 - 0.1 - 0.15 - 0.05 - calibration,
        steps=steps,
        learning_rate=rate,
        hidden=hidden,
        prior_std=_PRIOR_STD,
    )


def choose_plain(
    examples: int,
    epsilon: float,
    delta: float,
    *,
    classes: int | None,
    hidden: int = 0,
    prior_std: float = 0.0,
    accountant: AccountantName | str = AccountantName.PLD,
    relation: Relation | str = Relation.ADD_OR_REMOVE,
) -> TableRecipe:
    """The recipe of private gradient descent, to compare with: no statistics, weights are points.

    Args:
        examples: N.
        epsilon: the budget.
        delta: δ of it.
        classes: number of classes; None for regression.
        hidden: number of hidden units; 0 for a linear model.
        prior_std: of a Gaussian prior around zero (a network's hidden layer: around its initial
            weights); 0 for none.
        accountant: who adds up.
        relation: which data sets count as neighbours.

    >>> choose_plain(20_000, 1.0, 1e-5, classes=2).parts()
    {'training': Part(share=1.0, steps=300)}
    """
    positive_int(examples=examples)
    people = _people_per_noise(examples, epsilon, delta, accountant, relation)
    is_regression = classes is None
    steps, rate = _pace(people, _PLAIN_RATES, _PLAIN_STEPS, is_regression=is_regression)
    calibration = 0.05 if is_regression else 0.0
    return TableRecipe(
        TableMethod.NETWORK if hidden else TableMethod.STEPS,
        mean=0.0,
        second=0.0,
        calibration=calibration,
        training=1 - calibration,
        steps=steps,
        learning_rate=rate,
        hidden=hidden,
        prior_std=prior_std,
        points=True,
    )


def _people_per_noise(
    examples: int,
    epsilon: float,
    delta: float,
    accountant: AccountantName | str,
    relation: Relation | str,
) -> float:
    """N/z, with the noise that exchanging people needs instead of adding them."""

    def single(noise: float) -> DpEvent:
        return poisson_event(noise, 1.0, 1)

    z = noise_multiplier_for(epsilon, delta, single, accountant=accountant, relation=relation)
    # Under replace-one the sensitivity, and so the noise, is twice as large at the same multiplier.
    reach = 2.0 if Relation.parse(relation) is Relation.REPLACE_ONE else 1.0
    return examples / (z * reach)


def _pace(
    people: float,
    rates: tuple[float, float],
    bounds: tuple[int, int],
    *,
    is_regression: bool,
) -> tuple[int, float]:
    """Number of steps T and learning rate η, whose product leaves the right noise.

    Args:
        people: N/z.
        rates: η that is aimed at, and the largest that is stable.
        bounds: least and most of T.
        is_regression: whether the target is a number.
    """
    distance = _SCORE_NOISE[_kind(is_regression)] * people  # η T
    usual, largest = rates
    fewest, most = bounds
    steps = min(most, max(fewest, round(distance / usual)))
    return steps, min(distance / steps, largest)


def _kind(is_regression: bool) -> str:
    return "regression" if is_regression else "classes"


def knots_for(examples: int, epsilon: float, columns: int, *, is_regression: bool = False) -> int:
    """How many knots the encoding of a number should have, beside its value; 0 for none.

    A number is encoded by its value, scaled to [-1, 1], and by hat functions at this many knots,
    which let a linear model bend. Each costs a feature, so few people or a small ε pay for none,
    unless there are classes to tell apart and columns are few. Numbers as targets were learnt worse
    so, in made-up tables of a few hundred people.

    Args:
        examples: N.
        epsilon: the budget.
        columns: of the table, without its target.
        is_regression: whether the target is a number.

    >>> knots_for(800, 1.0, 20), knots_for(800, 1.0, 8), knots_for(32_561, 1.0, 14)
    (0, 5, 14)
    """
    positive_int(examples=examples, columns=columns)
    positive(epsilon=epsilon)
    budget = examples * epsilon
    knots = round(math.sqrt(budget / 160))
    few = columns <= _FEW_COLUMNS and not is_regression
    if few and examples >= _LEAST_PEOPLE and budget >= _BUDGET_PER_COLUMN * columns:
        return min(max(knots, _KNOTS_OF_FEW_COLUMNS), _MOST_KNOTS)
    return 0 if knots < 3 else min(knots, _MOST_KNOTS)
