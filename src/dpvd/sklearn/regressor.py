"""The regressor."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import check_array

from dpvd.data import Schema, Source, Target
from dpvd.errors import DpvdError
from dpvd.sklearn.base import TARGET, Labels, TableEstimator
from dpvd.sklearn.columns import bounds_pair

__all__ = ["DPVDRegressor", "NumberPrediction"]


@dataclass(frozen=True, eq=False)
class NumberPrediction:
    """What a regressor says of rows, with how sure it is.

    Attributes:
        mean: float64 [n], in the units of the target.
        std: [n], standard deviation of the target: what the columns leave open and uncertain
            weights together.
    """

    mean: np.ndarray
    std: np.ndarray


class DPVDRegressor(RegressorMixin, TableEstimator):  # type: ignore[misc]  # as TableEstimator
    """Predicts a number, under a privacy budget.

    Guarantees:
        ``privacy_`` is the statement for everything that `fit` did to the data. Nothing about the
        columns or the target is read off the data: it is declared.

    Edge cases:
        Values outside the bounds, of the target too, are moved to the nearer one. A second fit on
        the same data adds to the first: see `total_privacy`.

    Args:
        epsilon: the budget.
        delta: δ of it; should be well below one over the number of people.
        bounds: smallest and largest value: one pair for all columns, one pair for each, or pairs by
            name. They are public.
        schema: instead of bounds and target_bounds, for columns of any kind: a `Schema`, the path
            of a schema file, or a dictionary.
        private_bounds: the part of epsilon to estimate bounds with that are not declared, of y
            too; it is in ``privacy_``.
        target_bounds: smallest and largest value of y; they are public.
        rows_per_person: how many rows of one person take part at most; needed with ``groups``.
        accountant: who adds up.
        relation: which tables count as neighbours.
        unit: what one row, or one of ``groups``, is, in words such as ``"patient"``.
        tuned: what was chosen by looking at the data, in words.
        public: further facts about the data that are public, in words.
        random_state: seed of the noise; only with ``noise="seeded"``.
        noise: ``"system"``, or ``"seeded"`` for tests.
        account: file of the account that each fit draws from, folds included; ``dpvd account``
            makes one. Default: none.

    >>> import numpy as np
    >>> x = np.linspace(0, 1, 200)[:, None]
    >>> model = DPVDRegressor(epsilon=1, delta=1e-4, bounds=(0, 1), target_bounds=(0, 10))
    >>> model.fit(x, 10 * x[:, 0]).predict(x).shape
    (200,)
    """

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        bounds: Any = None,
        schema: Any = None,
        private_bounds: float | None = None,
        target_bounds: Any = None,
        rows_per_person: int | None = None,
        accountant: str = "pld",
        relation: str = "add-or-remove",
        unit: str = "example",
        tuned: Any = None,
        public: Any = None,
        random_state: Any = None,
        noise: str = "system",
        account: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.schema = schema
        self.private_bounds = private_bounds
        self.target_bounds = target_bounds
        self.rows_per_person = rows_per_person
        self.accountant = accountant
        self.relation = relation
        self.unit = unit
        self.tuned = tuned
        self.public = public
        self.random_state = random_state
        self.noise = noise
        self.account = account

    def fit(self, X: Any, y: Any, groups: Any = None) -> "DPVDRegressor":
        """Learn from a table.

        Args:
            X: [n, columns], an array or a frame; frames may hold columns of any kind that the
                schema declares.
            y: [n], numbers.
            groups: [n], whose row each is; the guarantee is then for a person with all their rows.

        Raises:
            DpvdError: a ValueError, if something does not fit; nothing is charged then.
        """
        self._fit(X, y, groups)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The expected number of each row, float64 [n]."""
        return self.predict_dist(X).mean

    def predict_dist(self, X: Any) -> NumberPrediction:
        """Mean and standard deviation of each row's number."""
        told = self._prediction(X)
        assert told.mean is not None
        assert told.std is not None
        return NumberPrediction(told.mean.numpy(), told.std.numpy())

    def _target_checks(self) -> dict[str, Any]:
        return {"y_numeric": True}

    def _labels(self, y: Any, schema: Schema | None) -> Labels:
        y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        to_estimate = schema is None and self.target_bounds is None
        return Labels(torch.from_numpy(y.copy()), None, self._target(schema), to_estimate)

    def _target(self, schema: Schema | None) -> Target:
        if schema is not None:
            if schema.target.is_classification:
                raise DpvdError(
                    "the schema has classes of a target, not bounds: use DPVDClassifier, or declare"
                    " bounds"
                )
            if self.target_bounds is not None:
                raise DpvdError("give target_bounds or schema, not both: a schema has them in it")
            return schema.target
        if self.target_bounds is None and self.private_bounds is not None:
            return Target(TARGET, bounds=(-1.0, 1.0), source=Source.PRIVATE)  # stands in
        if self.target_bounds is None:
            raise DpvdError(
                "target_bounds must be given: the smallest and largest value that y can have, known"
                " without looking at the data, such as target_bounds=(0, 100); or private_bounds"
            )
        bounds = bounds_pair(self.target_bounds, "the target")
        return Target(TARGET, bounds=bounds, source=Source.PUBLIC)
