"""What the model of a table is worth on rows it has not seen."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dpvd.runs.metrics import NOT_MEASURED, confusion_counts, wilson_interval
from dpvd.tabular import Prediction

__all__ = ["INTERVAL", "class_metrics", "number_metrics"]

BINS = 15  # of calibration, with as many rows in each
INTERVAL = 1.6448536269514722  # standard deviations that 90 % of a normal distribution lie within


def class_metrics(told: Prediction, y: Tensor) -> dict[str, Any]:
    """Accuracy with its 95 % interval, loss, Brier score, calibration, confusion; AUC of two.

    Args:
        told: what the model says of the rows.
        y: true classes, int64 [n].
    """
    probabilities = told.probabilities
    assert probabilities is not None  # of a classifier
    confidence, predicted = probabilities.max(1)
    right = predicted == y
    bins = _reliability(confidence, right)
    gaps = [row["count"] * abs(row["accuracy"] - row["confidence"]) for row in bins]
    classes = probabilities.shape[1]
    true = F.one_hot(y, classes)
    found: dict[str, Any] = {
        "accuracy": right.double().mean().item(),
        "interval": list(wilson_interval(int(right.sum()), len(y))),
        "loss": F.nll_loss(probabilities.clamp_min(1e-12).log(), y).item(),
        "brier": (probabilities.double() - true).square().sum(1).mean().item(),
        "calibration_error": sum(gaps) / len(y),
        "reliability": bins,
        "confusion": confusion_counts(y, predicted, classes),
    }
    if classes == 2:
        found["auc"] = _area_under_curve(probabilities[:, 1], y)
    return found


def number_metrics(told: Prediction, y: Tensor) -> dict[str, Any]:
    """Errors of a regression in the unit of its target, and how often its intervals are right.

    Args:
        told: what the model says of the rows.
        y: true numbers [n].
    """
    assert told.mean is not None
    assert told.std is not None
    errors = y.double() - told.mean.double()
    inside = errors.abs() <= INTERVAL * told.std.double()
    return {
        **NOT_MEASURED,
        "note": "a regression has no accuracy",
        "rmse": errors.square().mean().sqrt().item(),
        "mae": errors.abs().mean().item(),
        "coverage": inside.double().mean().item(),
    }


def _reliability(confidence: Tensor, right: Tensor) -> list[dict[str, float]]:
    """Mean confidence and accuracy in bins of confidence that hold equally many rows."""
    order = confidence.argsort()
    rows = []
    for part in torch.tensor_split(order, BINS):
        if len(part):
            rows.append(
                {
                    "confidence": confidence[part].double().mean().item(),
                    "accuracy": right[part].double().mean().item(),
                    "count": len(part),
                }
            )
    return rows


def _area_under_curve(scores: Tensor, y: Tensor) -> float | None:
    """The chance that a row of the second class scores above one of the first; ties count half.

    None if one of the classes is not there.
    """
    positive = int((y == 1).sum())
    negative = len(y) - positive
    if not positive or not negative:
        return None
    _, places, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    ranks = (last - (counts.double() - 1) / 2)[places]  # from 1; ties share their mean
    area: float = (ranks[y == 1].sum().item() - positive * (positive + 1) / 2) / positive / negative
    assert math.isfinite(area)
    return area
