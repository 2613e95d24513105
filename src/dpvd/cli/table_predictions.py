"""What ``dpvd predict`` writes for the rows of a table."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from dpvd.data import TableSource
from dpvd.errors import DpvdError, is_finite_number
from dpvd.runs import INTERVAL, TrainedTable
from dpvd.tabular import Prediction

__all__ = ["TablePredictions"]

_DIGITS = 6


class TablePredictions:
    """Rows of a table with what a trained model says of them, in batches.

    Args:
        trained: the run.
        source: the table; columns are found by name.
        samples: of the weights.
        coverage: share of these rows that is answered; the least certain others are marked as
            abstained from. None marks nothing.

    Raises:
        DpvdError: if the coverage is no share, or a row cannot be read.
    """

    def __init__(
        self, trained: TrainedTable, source: TableSource, samples: int, coverage: float | None
    ) -> None:
        if coverage is not None and (not is_finite_number(coverage) or not 0 < coverage <= 1):
            raise DpvdError(f"coverage must be a number above 0 and at most 1, got {coverage!r}")
        self._trained = trained
        self._source = source
        self._samples = samples
        self._id = trained.encoder.schema.id
        if self._id is not None and self._id not in source.columns:
            self._id = None
        self._abstained = None if coverage is None else self._least_certain(coverage)

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in order."""
        names = [] if self._id is None else [self._id]
        if self._trained.classes:
            names += ["class", "probability"]
            names += [f"p_{name}" for name in self._trained.classes]
            names += ["entropy", "mutual_information"]
        else:
            names += ["mean", "std", "low", "high"]
        return names if self._abstained is None else [*names, "abstain"]

    def rows(self) -> Iterator[list[Any]]:
        """Values of one row after the other, in the order of the columns."""
        start = 0
        for frame, told in self._trained.predictions(self._source, self._samples):
            values = self._numbers(told) if not self._trained.classes else self._classes(told)
            if self._id is not None:
                values.insert(0, frame.get_column(self._id).cast(pl.String).to_list())
            if self._abstained is not None:
                part = self._abstained[start : start + len(frame)]
                values.append(part.astype(int).tolist())
            start += len(frame)
            yield from (list(row) for row in zip(*values, strict=True))

    def _classes(self, told: Prediction) -> list[list[Any]]:
        assert told.probabilities is not None
        assert told.entropy is not None
        assert told.mutual_information is not None
        probabilities = told.probabilities.double().numpy().round(_DIGITS)
        best = probabilities.argmax(axis=1)
        return [
            [self._trained.classes[place] for place in best],
            probabilities.max(axis=1).tolist(),
            *probabilities.T.tolist(),
            told.entropy.double().numpy().round(_DIGITS).tolist(),
            told.mutual_information.double().numpy().round(_DIGITS).tolist(),
        ]

    def _numbers(self, told: Prediction) -> list[list[Any]]:
        assert told.mean is not None
        assert told.std is not None
        bounds = self._trained.encoder.schema.target.bounds
        assert bounds is not None  # of a regression
        mean = told.mean.double().numpy()
        std = told.std.double().numpy()
        low = (mean - INTERVAL * std).clip(*bounds)
        high = (mean + INTERVAL * std).clip(*bounds)
        return [[float(f"{value:.6g}") for value in column] for column in (mean, std, low, high)]

    def _least_certain(self, coverage: float) -> np.ndarray:
        """Which rows are abstained from: one pass over the table before that which writes."""
        parts = []
        for _, told in self._trained.predictions(self._source, self._samples):
            if told.probabilities is not None:
                parts.append(told.probabilities.max(1).values.numpy())
            else:
                assert told.std is not None
                parts.append(-told.std.numpy())
        certainty = np.concatenate(parts) if parts else np.zeros(0)
        answered = int(np.ceil(coverage * len(certainty)))
        order = np.argsort(-certainty, kind="stable")
        abstained = np.ones(len(certainty), dtype=bool)
        abstained[order[:answered]] = False
        return abstained
