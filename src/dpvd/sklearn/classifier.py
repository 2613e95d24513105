"""The classifier."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from dpvd.data import Schema, Source, Target
from dpvd.errors import DpvdError
from dpvd.sklearn.base import TARGET, Labels, TableEstimator
from dpvd.sklearn.labels import codes_of, declared_labels, label_text

__all__ = ["ClassPrediction", "DPVDClassifier"]


@dataclass(frozen=True, eq=False)
class ClassPrediction:
    """What a classifier says of rows, with how sure it is.

    Attributes:
        probabilities: float64 [n, classes], in the order of ``classes_``.
        entropy: [n] of the probabilities, in nats: how open the outcome is.
        mutual_information: [n], the part of the entropy that comes from uncertain weights.
    """

    probabilities: np.ndarray
    entropy: np.ndarray
    mutual_information: np.ndarray


class DPVDClassifier(ClassifierMixin, TableEstimator):  # type: ignore[misc]  # as TableEstimator
    """Tells classes apart, under a privacy budget.

    Guarantees:
        ``privacy_`` is the statement for everything that `fit` did to the data. Nothing about the
        columns is read off the data: it is declared in ``bounds`` or ``schema``.

    Edge cases:
        Without ``classes`` the labels in y are taken as the classes, and ``privacy_`` names them as
        not covered. Values outside the bounds are moved to the nearer one. A second fit on the same
        data adds to the first: see `total_privacy`.

    Args:
        epsilon: the budget.
        delta: δ of it; should be well below one over the number of people.
        bounds: smallest and largest value: one pair for all columns, one pair for each, or pairs by
            name. They are public.
        schema: instead of bounds, for columns of any kind: a `Schema`, the path of a schema file,
            or a dictionary.
        private_bounds: the part of epsilon to estimate bounds with that are not declared; it is in
            ``privacy_``.
        classes: all labels there can be; they are public.
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
    >>> model = DPVDClassifier(epsilon=1, delta=1e-4, bounds=(0, 1), classes=[0, 1])
    >>> model.fit(x, (x[:, 0] > 0.5).astype(int)).privacy_.delta
    0.0001
    """

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        bounds: Any = None,
        schema: Any = None,
        private_bounds: float | None = None,
        classes: Any = None,
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
        self.classes = classes
        self.rows_per_person = rows_per_person
        self.accountant = accountant
        self.relation = relation
        self.unit = unit
        self.tuned = tuned
        self.public = public
        self.random_state = random_state
        self.noise = noise
        self.account = account

    def fit(self, X: Any, y: Any, groups: Any = None) -> "DPVDClassifier":
        """Learn from a table.

        Args:
            X: [n, columns], an array or a frame; frames may hold columns of any kind that the
                schema declares.
            y: [n], labels.
            groups: [n], whose row each is; the guarantee is then for a person with all their rows.

        Raises:
            DpvdError: a ValueError, if something does not fit; nothing is charged then.
        """
        self._fit(X, y, groups)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row, [n]."""
        best = self.predict_proba(X).argmax(1)
        labels: np.ndarray = self.classes_[best]
        return labels

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class, float64 [n, classes]; uncertain weights are averaged."""
        return self.predict_dist(X).probabilities

    def predict_dist(self, X: Any) -> ClassPrediction:
        """Probabilities, and how sure the model is of them."""
        told = self._prediction(X)
        assert told.probabilities is not None
        assert told.entropy is not None
        assert told.mutual_information is not None
        return ClassPrediction(
            told.probabilities.numpy(), told.entropy.numpy(), told.mutual_information.numpy()
        )

    def decision_function(self, X: Any) -> np.ndarray:
        """Log odds of the second class, [n]; of more than two, log probabilities [n, classes]."""
        logs: np.ndarray = np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))
        if len(self.classes_) > 2:
            return logs
        odds: np.ndarray = logs[:, 1] - logs[:, 0]
        return odds

    def _labels(self, y: Any, schema: Schema | None) -> Labels:
        check_classification_targets(y)
        y = np.asarray(y)
        labels, target = self._classes(y, schema)
        codes = codes_of(y, labels)
        if (codes == codes[0]).all():
            raise DpvdError(
                f"all rows of y have the class {y.tolist()[0]!r}: two or more classes are needed"
            )
        self.classes_ = labels
        return Labels(torch.from_numpy(codes), len(labels), target)

    def _classes(self, y: np.ndarray, schema: Schema | None) -> tuple[np.ndarray, Target]:
        """The labels, sorted as everywhere in scikit-learn, and what a schema says of them."""
        if schema is not None:
            if not schema.target.is_classification:
                raise DpvdError(
                    "the schema has bounds of a target, not classes: use DPVDRegressor, or declare"
                    " classes"
                )
            if self.classes is not None:
                raise DpvdError("give classes or schema, not both: a schema has classes in it")
            return declared_labels(schema.target.classes, y.dtype), schema.target
        labels = np.unique(y if self.classes is None else np.asarray(self.classes))
        if len(labels) < 2:
            raise DpvdError(
                f"there is only one class, {labels.tolist()[0]!r}: two or more classes are needed"
                if len(labels)
                else "classes must be two or more labels, got none"
            )
        source = Source.DATA if self.classes is None else Source.PUBLIC
        texts = tuple(label_text(label) for label in labels)
        return labels, Target(TARGET, classes=texts, source=source)
