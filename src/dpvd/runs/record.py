"""The outcome of a run on disk: one JSON file that tables, figures and reports are functions of."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpvd.errors import DpvdError, is_finite_number
from dpvd.files import read_within, write_atomically
from dpvd.runs.run_dir import RECORD

__all__ = ["RunRecord"]

FORMAT = 1
LARGEST = 64 << 20  # bytes; a confusion matrix of 1,000 classes has 8 million

# What this program reads out of a record's parts; later versions may add to them.
NEEDED = {
    "dataset": ("name", "train", "test"),
    "model": ("network", "layers"),
    "plan": ("batch_size", "noise_multiplier"),
    "guarantee": ("sentence", "epsilon", "delta", "steps"),
}
# Of test data with classes; a run may have been tested otherwise, or not at all.
TEST_OF_CLASSES = ("accuracy", "interval", "calibration_error")
KINDS: dict[str, type | tuple[type, ...]] = {
    "method": str,
    "seed": int,
    "dataset": dict,
    "model": dict,
    "plan": dict,
    "recipe": dict,
    "guarantee": dict,
    "history": list,
    "test": dict,
    "seconds": (int, float),
    "environment": dict,
    "created": str,
    "version": str,
    "alpha": dict,
    "sparsity": dict,
    "table": dict,
    "releases": list,
    "declared": dict,
    "prediction_sets": dict,
}
OF_SOME = ("table", "releases", "declared", "prediction_sets")


@dataclass(frozen=True)
class RunRecord:
    """What was run, on what, with what guarantee and what result. Plain data throughout."""

    method: str
    seed: int
    dataset: dict[str, Any]
    model: dict[str, Any]
    plan: dict[str, Any]
    recipe: dict[str, Any]
    guarantee: dict[str, Any]
    history: list[dict[str, float | None]]
    test: dict[str, Any]
    seconds: float
    environment: dict[str, Any]
    created: str
    version: str
    alpha: dict[str, Any] = field(default_factory=dict)
    sparsity: dict[str, Any] = field(default_factory=dict)
    table: dict[str, Any] = field(default_factory=dict)
    """Of a run on a table: kind, encoder with its schema, classes, unit; empty for others."""
    releases: list[dict[str, Any]] = field(default_factory=list)
    """Everything that was done to the data if that is more than training: name, noise multiplier,
    share, plan."""
    declared: dict[str, str] = field(default_factory=dict)
    """What only people can say of the release, by the names that the report knows."""
    prediction_sets: dict[str, Any] = field(default_factory=dict)
    """What was released to make sets of classes from; empty if nothing was."""
    format: int = FORMAT

    # How it is written and read.

    def to_dict(self) -> dict[str, Any]:
        """Plain data; what only some runs have is left out where there is none."""
        plain = asdict(self)
        return {name: value for name, value in plain.items() if value or name not in OF_SOME}

    def write(self, folder: Path) -> None:
        """Write into the run's folder, whole or not at all."""
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        write_atomically(folder / RECORD, f"{text}\n".encode())

    @classmethod
    def read(cls, folder: Path) -> "RunRecord":
        """Read the record of a finished run.

        Raises:
            DpvdError: if the folder holds no record, or a damaged one.
        """
        path = folder / RECORD
        try:
            return cls.from_dict(json.loads(read_within(path, LARGEST)))
        except FileNotFoundError:
            raise DpvdError(f"{folder} holds no finished run: there is no {RECORD} in it") from None
        except (OSError, ValueError, RecursionError) as error:
            raise DpvdError(f"the record {path} cannot be read: {error}") from error

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RunRecord":
        """Read what ``to_dict`` wrote; fields that later versions added are skipped.

        Raises:
            DpvdError: if it is no record of this format, or a part that is read is missing.
        """
        if not isinstance(values, Mapping):
            raise DpvdError(
                f"a record is a mapping from names to values, got {type(values).__name__}"
            )
        if values.get("format") != FORMAT:
            raise DpvdError(f"a record of format {FORMAT} is needed, got {values.get('format')!r}")
        known = {}
        for each in fields(cls):
            if each.name in values:
                known[each.name] = values[each.name]
            elif each.default is MISSING and each.default_factory is MISSING:
                raise DpvdError(f"the part {each.name!r} is missing or incomplete")
        record = cls(**known)
        record._check_parts()
        return record

    def _check_parts(self) -> None:
        for name, kind in KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or isinstance(value, bool):
                got = type(value).__name__
                raise DpvdError(f"the part {name!r} is not what a record holds there, got {got}")
        for name, needed in NEEDED.items():
            if not set(needed) <= set(getattr(self, name)):
                raise DpvdError(f"the part {name!r} is missing or incomplete")
        if not isinstance(self.model["network"], dict):
            raise DpvdError("the part 'model' does not describe a network")
        if not all(isinstance(entry, dict) for entry in self.releases):
            raise DpvdError("the part 'releases' is not a list of releases")
        measured = [name in self.test for name in TEST_OF_CLASSES]
        if any(measured) and not all(measured):
            raise DpvdError("the part 'test' is missing or incomplete")

    # What is read out of it. Rows and values that are missing are skipped.

    @property
    def epsilon(self) -> float | None:
        """ε that the run spent; None if it is not private."""
        value = self.guarantee["epsilon"]
        return float(value) if is_finite_number(value) else None

    @property
    def is_private(self) -> bool:
        """Whether a finite ε and a δ below 1 are stated; anything else is *not* private."""
        epsilon = self.guarantee["epsilon"]
        delta = self.guarantee["delta"]
        if not is_finite_number(epsilon) or not is_finite_number(delta):
            return False
        return epsilon >= 0 and 0 <= delta < 1

    def series(self, name: str) -> tuple[list[float], list[float]]:
        """Epochs and values of one quantity of the history."""
        epochs = []
        values = []
        for row in _mappings(self.history):
            epoch = row.get("epoch")
            value = row.get(name)
            if is_finite_number(epoch) and is_finite_number(value):
                epochs.append(float(epoch))
                values.append(float(value))
        return epochs, values

    def reliability_bins(self) -> list[tuple[float, float, float]]:
        """Confidence, accuracy and count of every bin of confidence that holds an example."""
        rows = []
        for bin_ in _mappings(self.test.get("reliability")):
            row = (bin_.get("confidence"), bin_.get("accuracy"), bin_.get("count"))
            if all(is_finite_number(value) for value in row) and row[2] > 0:
                rows.append(row)
        return rows

    def confusion_matrix(self) -> npt.NDArray[np.float64] | None:
        """Counts [true class, predicted class], or None if there is no square matrix."""
        try:
            matrix = np.array(self.test.get("confusion") or [], dtype=float)
        except (TypeError, ValueError, OverflowError):
            return None
        is_square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]
        return matrix if is_square and matrix.size else None

    def alpha_histograms(self) -> list[tuple[str, list[float], list[float]]]:
        """Layer key, edges and counts of every log α histogram that is consistent."""
        layers = []
        for key, histogram in self.alpha.items():
            if not isinstance(histogram, Mapping):
                continue
            edges = _numbers(histogram.get("edges"))
            counts = _numbers(histogram.get("counts"))
            if counts and len(edges) == len(counts) + 1:
                layers.append((str(key), edges, counts))
        return layers

    def layer_name(self, key: str) -> str:
        """A layer's line in the model summary, by its key: "0: AdditiveLinear 64→1000" of "0"."""
        lines = self.model["layers"]
        for line in lines if isinstance(lines, list) else []:
            if str(line).partition(":")[0].strip() == key:
                return str(line)
        return f"layer {key}"


def _mappings(rows: object) -> list[Any]:
    """The rows that are what they should be."""
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _numbers(values: object) -> list[float]:
    """A list of numbers; empty if there is anything else in it."""
    if not isinstance(values, list) or not all(is_finite_number(value) for value in values):
        return []
    return values
