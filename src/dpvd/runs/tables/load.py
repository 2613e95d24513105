"""The model of a table, read from the folder of a finished run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import torch

from dpvd.data import Encoder, TableSource, encoded_batches
from dpvd.errors import DpvdError
from dpvd.plan import PrivacyPlan
from dpvd.runs.manifest import intact_record
from dpvd.runs.model_file import load_model
from dpvd.runs.run_dir import MODEL
from dpvd.tabular import Prediction, TableModel
from dpvd.training import remember

__all__ = ["TrainedTable"]


class TrainedTable:
    """Model, encoder and record of a finished run on a table.

    Guarantees:
        Nothing in the folder is run: tensors are read, and shapes, numbers and the checksums that
        the manifest has of record and model are compared.

    Args:
        folder: where the run is.

    Raises:
        DpvdError: if the folder holds no finished run on a table, or its files are damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.record = intact_record(folder)
        if not self.record.table:
            raise DpvdError(f"the run in {folder} is not one on a table")
        try:
            self.encoder = Encoder.from_dict(self.record.table["encoder"])
            self._check(self.record.model["network"])
        except (KeyError, TypeError) as error:
            raise DpvdError(f"the record in {folder} is damaged: {error!r}") from error
        if list(self.classes) != self.record.table.get("classes"):
            raise DpvdError(
                f"the record in {folder} is damaged: it names the classes twice, and differently"
            )
        self.model = self._load(folder / MODEL)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; empty for regression."""
        return self.encoder.schema.target.classes

    def predictions(
        self, source: TableSource, samples: int = 32
    ) -> Iterator[tuple[pl.DataFrame, Prediction]]:
        """Yield each batch of a table with what the model says of it, found by column name."""
        for frame, x in encoded_batches(source, self.encoder):
            yield frame, self.model.predict(torch.from_numpy(x), draws=samples)

    def _check(self, network: dict[str, Any]) -> None:
        """Raise unless a network of these sizes belongs to the encoder."""
        width = network["features"]
        classes = network["classes"]
        if width != self.encoder.width or classes != (len(self.classes) or None):
            raise DpvdError(
                "the record is damaged: its encoder makes"
                f" {self.encoder.width} features of {len(self.classes)} classes, and its model has"
                f" {width} of {classes}"
            )

    def _build(self, network: dict[str, Any]) -> TableModel:
        bounds = self.encoder.schema.target.bounds
        return TableModel(
            network["features"],
            network["classes"],
            whitened=network["whitened"],
            target_range=(-1.0, 1.0) if bounds is None else bounds,
            hidden=network.get("hidden", 0),
            hidden_features=network.get("hidden_features"),
            prior_std=network.get("prior_std", 1.0),
            points=network.get("points", False),
        )

    def _load(self, path: Path) -> TableModel:
        network = self.record.model["network"]
        model = load_model(
            lambda: self._build(network), path, self.record.model, unbounded=("bound",)
        )
        for release in self.record.releases:
            plan = PrivacyPlan.from_dict(release.get("plan", {}))
            remember(model, plan, plan.steps)
        return model.eval()
