"""What the estimators share: from X, y and declared facts to a fitted model and its statement."""

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from dpvd.data import Column, Encoder, Schema, Source, Target
from dpvd.errors import DpvdError, choice, in_unit_interval, positive
from dpvd.plan import NoiseKind, PrivacyPlan
from dpvd.privacy import Guarantee, Relation, round_up
from dpvd.sklearn.account import (
    FitDraw,
    RefitWarning,
    fits_so_far,
    note_fit,
    total_of,
)
from dpvd.sklearn.columns import (
    NO_BOUNDS,
    as_polars,
    as_schema,
    columns_of,
    encode,
    is_frame,
    numeric_schema,
)
from dpvd.sklearn.estimates import complete
from dpvd.sklearn.people import People, choose_people
from dpvd.tabular import Prediction, choose, fit_table, knots_for

__all__ = ["Labels", "TableEstimator"]

TARGET = "target"  # what y is called in schemas and statements, if no schema names it


@dataclass(frozen=True)
class Labels:
    """What is to be learnt.

    Attributes:
        values: [n], int64 classes from 0, or numbers in double precision.
        classes: number of classes; None for regression.
        target: what a schema says of it.
        to_estimate: whether bounds of numbers are to be estimated; those of the target stand in.
    """

    values: Tensor
    classes: int | None
    target: Target
    to_estimate: bool = False


class TableEstimator(ABC, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no type hints
    """A model of a table that is fitted under a privacy budget."""

    epsilon: float
    delta: float
    bounds: Any
    schema: Any
    private_bounds: float | None
    rows_per_person: int | None
    accountant: Any
    relation: Any
    unit: str
    tuned: Any
    public: Any
    random_state: Any
    noise: Any
    account: Any

    @abstractmethod
    def _labels(self, y: Any, schema: Schema | None) -> Labels:
        """Check y, and say what is declared of it."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.non_deterministic = self.noise != NoiseKind.SEEDED
        tags.input_tags.allow_nan = self.schema is not None
        tags.input_tags.string = self.schema is not None
        return tags

    def _fit(self, x: Any, y: Any, groups: Any) -> None:
        """Check everything, then fit; nothing is charged before all is checked."""
        epsilon, delta, seed = self._budget()
        share = self._share(epsilon)
        declared = self._declared_schema()
        if declared is None:
            table, y, names = self._read_numbers(x, y)
        else:
            table, y, names = self._read_columns(x, y, declared)
        labels = self._labels(y, declared)
        if declared is None:
            schema = numeric_schema(names, self.bounds, labels.target, estimate=share is not None)
        else:
            schema = declared
        people = self._people(table, groups, schema, len(y), seed)
        examples = len(y) if people is None else people.count
        plan = PrivacyPlan(
            examples=examples,
            batch_size=examples,
            steps=1,
            relation=Relation.parse(self.relation),
            noise=NoiseKind(self.noise),
            seed=seed,
            unit=self._unit(schema, people),
            tuned=self.tuned,
            public=self.public,
            initial_weights="zeros",
        )
        rows = None if people is None else people.rows
        draw = self._reserve(epsilon, delta, plan)
        found = complete(
            schema,
            columns_of(table, names),
            labels.values if labels.to_estimate else None,
            people,
            plan,
            epsilon=share,
            delta=delta,
            accountant=self.accountant,
        )
        schema = found.schema
        epsilon_left = epsilon - (share or 0.0)
        columns = max(1, len(schema.used))
        knots = knots_for(examples, epsilon_left, columns, is_regression=labels.classes is None)
        encoder = Encoder(schema, knots=knots)
        features = encode(columns_of(table, names), encoder)
        done = fit_table(
            features if rows is None else features[rows],
            labels.values if rows is None else labels.values[rows],
            classes=labels.classes,
            epsilon=epsilon,
            delta=delta,
            target_range=schema.target.bounds,
            groups=torch.from_numpy(encoder.groups),
            hats=torch.from_numpy(encoder.is_hat),
            unit_index=None if people is None else people.unit_index,
            people=None if people is None else people.count,
            rows_per_person=None if people is None else people.rows_per_person,
            relation=plan.relation,
            accountant=self.accountant,
            noise=plan.noise,
            seed=seed,
            unit=plan.unit,
            tuned=self.tuned,
            public=self.public,
            recipe=choose(
                examples,
                encoder.width,
                epsilon_left,
                delta,
                classes=labels.classes,
                hats=int(encoder.is_hat.sum()),
                accountant=self.accountant,
                relation=self.relation,
            ),
            earlier=found.plans,
        )
        if draw is not None:
            draw.settle(done.plans)
        note_fit(done.plans)
        self._names = names
        self.encoder_ = encoder
        # In double precision rounding does not depend on the place of a row among others.
        self.model_ = done.model.double()
        self.plans_ = done.plans
        self.privacy_ = self._statement(done.guarantee, schema, found.estimated)
        self._say_sum()

    def _reserve(self, epsilon: float, delta: float, plan: PrivacyPlan) -> FitDraw | None:
        """Set aside the whole budget in the account, if there is one."""
        if self.account is None:
            return None
        if plan.noise is NoiseKind.SEEDED:
            raise DpvdError(
                "noise that can be repeated does not add up: leave out account, or noise='seeded'"
            )
        who = f"{type(self).__name__} on {plan.examples} of {plan.unit}"
        return FitDraw.reserve(self.account, who, epsilon, delta, plan.relation)

    def _prediction(self, x: Any) -> Prediction:
        """What the model says of rows."""
        check_is_fitted(self, "model_")
        if self.schema is not None and is_frame(x):
            table = x  # by name: reordered and further columns do not matter
        elif self.schema is not None:
            table = validate_data(self, x, reset=False, dtype=None, ensure_all_finite=False)
        else:
            table = validate_data(self, x, reset=False, dtype=np.float64)
        return self.model_.predict(encode(columns_of(table, self._names), self.encoder_))

    # What was declared.

    def _budget(self) -> tuple[float, float, int | None]:
        """ε, δ and the seed, checked."""
        numbers = {"epsilon": self.epsilon, "delta": self.delta}
        for name, value in numbers.items():
            if isinstance(value, Real) and not isinstance(value, bool):
                numbers[name] = float(value)  # NumPy's numbers come out of grids
        positive(epsilon=numbers["epsilon"])
        in_unit_interval(delta=numbers["delta"])
        seeded = choice(self.noise, NoiseKind, "noise") is NoiseKind.SEEDED
        if seeded != (self.random_state is not None):
            raise DpvdError(
                "random_state makes the noise repeatable, and whoever knows it can take the noise"
                " off again: it is for tests, and must be asked for by name, random_state=0"
                " together with noise='seeded'"
            )
        return numbers["epsilon"], numbers["delta"], self._seed() if seeded else None

    def _share(self, epsilon: float) -> float | None:
        """The part of ε for bounds, checked."""
        share = self.private_bounds
        if share is None:
            return None
        if isinstance(share, Real) and not isinstance(share, bool):
            share = float(share)
        positive(private_bounds=share)
        if share >= epsilon:
            raise DpvdError(
                f"private_bounds is a part of epsilon and must be below {epsilon:g}, got {share:g}"
            )
        return share

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer) and self.random_state >= 0:
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _declared_schema(self) -> Schema | None:
        if self.schema is None and self.bounds is None and self.private_bounds is None:
            raise DpvdError(NO_BOUNDS)
        if self.schema is None:
            return None
        if self.bounds is not None:
            raise DpvdError("give bounds or schema, not both: a schema has bounds in it")
        return as_schema(self.schema)

    # What was passed to fit.

    def _read_numbers(self, x: Any, y: Any) -> tuple[Any, Any, list[str]]:
        """Numeric columns with bounds: everything as scikit-learn does it."""
        x, y = validate_data(
            self, x, y, dtype=np.float64, ensure_min_samples=2, **self._target_checks()
        )
        given = getattr(self, "feature_names_in_", None)
        if given is None:
            return x, y, [f"x{position}" for position in range(x.shape[1])]
        return x, y, [str(name) for name in given]

    def _target_checks(self) -> dict[str, Any]:
        """What scikit-learn is asked to check of y."""
        return {}

    def _read_columns(self, x: Any, y: Any, schema: Schema) -> tuple[Any, Any, list[str]]:
        """Columns of any kind, by a schema."""
        if y is None:
            raise DpvdError(f"{type(self).__name__} requires y to be passed, but it is None")
        y = column_or_1d(y, warn=True)
        if is_frame(x):
            x = as_polars(x)
        check_consistent_length(x, y)
        if len(y) < 2:
            raise DpvdError(f"the table has {len(y)} row to train on: two or more are needed")
        if is_frame(x):
            validate_data(self, x, skip_check_array=True)
            return x, y, list(x.columns)
        x = validate_data(self, x, dtype=None, ensure_all_finite=False)
        names = [column.name for column in schema.columns]
        if x.shape[1] != len(names):
            raise DpvdError(
                f"the schema declares {len(names)} columns, X has {x.shape[1]}: pass a frame with"
                " the names of its columns, or an array with exactly these"
            )
        return x, y, names

    def _people(
        self, table: Any, groups: Any, schema: Schema, rows: int, seed: int | None
    ) -> People | None:
        """Whose rows they are; None if every row stands for itself."""
        most = self.rows_per_person
        if schema.id is not None:
            most = schema.rows_per_unit
            if groups is None and is_frame(table) and schema.id in table.columns:
                groups = table.get_column(schema.id)
            if groups is None:
                raise DpvdError(
                    f"the schema has id = {schema.id!r}: pass groups, or a frame with that column,"
                    " which say whose row each is"
                )
        if groups is not None:
            return choose_people(groups, rows, most, seed)
        if most is not None:
            raise DpvdError("rows_per_person needs groups, which say whose row each is")
        return None

    def _unit(self, schema: Schema, people: People | None) -> str:
        """What one example is, in words."""
        if self.unit != "example":
            return self.unit
        if schema.unit or schema.id is not None:
            return schema.unit_words
        return "example" if people is None else "value of groups"

    # What is said afterwards.

    def _statement(
        self, guarantee: Guarantee, schema: Schema, estimated: tuple[str, ...]
    ) -> Guarantee:
        """The guarantee, with what was declared of columns and target, and by whom."""
        if self.schema is None:
            declared = [column.name for column in schema.used if column.name not in estimated]
            facts = [f"bounds of the {len(declared)} columns"] if declared else []
            if schema.target.source is Source.PUBLIC:
                facts.append(schema.target.fact)
        else:
            facts = list(schema.public_facts())
        gaps = [f"{fact}, read off the data" for fact in schema.not_covered()]
        declarations: list[Column | Target] = [*schema.used, schema.target]
        for each in declarations:
            if each.source is Source.PRIVATE and each.name not in estimated:
                gaps.append(f"{each.fact}, which the schema says were estimated before")
        seen = [f"bounds estimated within the budget: {', '.join(estimated)}"] if estimated else []
        return replace(
            guarantee,
            public=(*guarantee.public, *facts),
            seen=(*(guarantee.seen or ()), *seen),
            not_covered=(*guarantee.not_covered, *gaps),
        )

    def _say_sum(self) -> None:
        """Warn with the sum of all fits in this process if this was not the first one.

        Folds and grids fit clones, which know nothing of each other.
        """
        fits = fits_so_far()
        if len(fits) == 1:
            return
        try:
            total = total_of(fits, float(self.delta), self.accountant)
            cost = f"ε = {round_up(total.epsilon)} at δ = {total.delta!r}"
        except DpvdError:  # another relation or unit
            cost = "more than any of their statements says"
        warnings.warn(
            f"this is fit {len(fits)} in this process. If the data are the same people's, all"
            f" {len(fits)} together cost {cost}; privacy_ is for this fit alone. total_privacy()"
            " has the sum; call reset_total_privacy() before you go on to other people's data",
            RefitWarning,
            stacklevel=4,
        )
