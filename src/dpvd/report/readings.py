"""Reading values out of a run's record: rows and values that are missing are left out."""

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy as np

from dpvd.errors import DpvdError

__all__ = [
    "Record",
    "bins",
    "check_format",
    "confusion_matrix",
    "finite",
    "histograms",
    "layer_names",
    "series",
]

Record = Mapping[str, Any]

_FORMAT = 1


def check_format(record: Record) -> None:
    """Raise unless this is a record that this version can read; one without a format is taken as
    format 1.
    """
    if not isinstance(record, Mapping):
        raise DpvdError(
            f"a run record must be a JSON object, got {type(record).__name__}; read record.json"
        )
    found = record.get("format", _FORMAT)
    if found != _FORMAT:
        raise DpvdError(
            f"record format must be {_FORMAT}, got {found!r}; use the version of dpvd that wrote it"
        )


def finite(value: object) -> TypeGuard[float]:
    """Whether a value read from a record is a finite number (``None`` stands for an infinite ε).

    >>> finite(0.5), finite(None), finite(float("inf")), finite("0.5")
    (True, False, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def series(record: Record, name: str) -> tuple[list[float], list[float]]:
    """Epochs and values of one quantity of the history, rows without a finite value left out."""
    rows = [
        row
        for row in record.get("history") or []
        if finite(row.get("epoch")) and finite(row.get(name))
    ]
    return [float(row["epoch"]) for row in rows], [float(row[name]) for row in rows]


def bins(record: Record) -> list[tuple[float, float, float]]:
    """Confidence, accuracy and count of every bin of the reliability diagram that holds an
    example.
    """
    found = (record.get("test") or {}).get("reliability") or []
    rows = [(row.get("confidence"), row.get("accuracy"), row.get("count")) for row in found]
    return [row for row in rows if all(finite(value) for value in row) and row[2] > 0]


def histograms(record: Record) -> list[tuple[str, list[float], list[float]]]:
    """Layer key, edges and counts of every log α histogram, empty and inconsistent ones left
    out.
    """
    layers = []
    for key, histogram in (record.get("alpha") or {}).items():
        edges, counts = histogram.get("edges") or [], histogram.get("counts") or []
        if counts and len(edges) == len(counts) + 1:
            layers.append((str(key), edges, counts))
    return layers


def layer_names(record: Record) -> dict[str, str]:
    """Map a layer's key to its line in the model summary: {"0": "0: AdditiveLinear 64→1000"}."""
    lines = [str(line) for line in (record.get("model") or {}).get("layers") or []]
    return {line.partition(":")[0].strip(): line for line in lines}


def confusion_matrix(record: Record) -> np.ndarray | None:
    """The confusion matrix [true class, predicted class], or ``None`` when there is no square
    one.
    """
    matrix = np.array((record.get("test") or {}).get("confusion") or [], dtype=float)
    return (
        matrix if matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] and matrix.size else None
    )
