"""Metrics of a trained model: accuracy and calibration on test data, what it has pruned."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.errors import DpvdError
from dpvd.nn import VariationalLayer, log_alpha, noise_from, sampling, sparsity

__all__ = [
    "NOT_MEASURED",
    "alpha_histograms",
    "confusion_counts",
    "evaluate",
    "predict_dist",
    "sparsity_counts",
    "test_metrics",
    "wilson_interval",
]

BINS = 10
CHUNK = 2048

NOT_MEASURED: dict[str, Any] = {
    "accuracy": None,
    "interval": None,
    "calibration_error": None,
    "note": "not measured",
}
"""What a record holds in place of results if there is nothing to test on."""


@torch.no_grad()
def predict_dist(
    model: nn.Module,
    x: Tensor | Mapping[str, Tensor],
    *,
    samples: int = 32,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Class probabilities under the posterior, and how much they vary between weight samples.

    Args:
        model: any classifier that returns logits [n, classes], or an object that has them as
            ``logits``, as Hugging Face's do; one without variational layers gives its plain
            probabilities and no spread.
        x: inputs, the examples along the first dimension; a mapping, such as a tokenizer's result,
            is passed by keywords.
        samples: weight samples to average over.
        generator: where the weight samples come from.

    Returns:
        Mean probabilities [n, classes] and their standard deviation over weight samples [n,
        classes].

    Raises:
        DpvdError: if the model returns something else, or the inputs are not tensors of one length.
    """
    inputs = {"": x} if isinstance(x, Tensor) else dict(x)
    _check_inputs(inputs)
    model.eval()
    is_random = any(isinstance(module, VariationalLayer) for module in model.modules())
    draws = samples if is_random else 1
    source = torch.Generator().manual_seed(0) if generator is None else generator
    means = []
    spreads = []
    length = len(next(iter(inputs.values())))
    for begin in range(0, max(1, length), CHUNK):
        part = {name: tensor[begin : begin + CHUNK] for name, tensor in inputs.items()}
        with sampling(is_random), noise_from(source):
            # [draws, rows of the part, classes]
            probabilities = torch.stack([_logits(model, part).softmax(1) for _ in range(draws)])
        means.append(probabilities.mean(0))
        spreads.append(probabilities.std(0, correction=0))
    return torch.cat(means), torch.cat(spreads)


def _check_inputs(inputs: Mapping[str, Tensor]) -> None:
    """Raise unless there are tensors, all with as many examples."""
    lengths = {
        name: len(tensor) if isinstance(tensor, Tensor) and tensor.dim() else None
        for name, tensor in inputs.items()
    }
    if not lengths or None in lengths.values() or len(set(lengths.values())) > 1:
        raise DpvdError(
            "inputs must be a tensor, or tensors by name, with the examples along the first "
            f"dimension; the numbers of examples are {lengths}"
        )


def _logits(model: nn.Module, part: Mapping[str, Tensor]) -> Tensor:
    """What a model says of some rows; inputs without a name are given by position."""
    found = model(part[""]) if "" in part else model(**part)
    logits = found if isinstance(found, Tensor) else getattr(found, "logits", None)
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(found).__name__
        raise DpvdError(
            "predict_dist needs a classifier that returns logits [n, classes], or an object with "
            f"them as .logits; {type(model).__name__} returned {shape}"
        )
    return logits


@torch.no_grad()
def evaluate(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    """Loss and accuracy with the mean weights: cheap, for use during training."""
    logits = torch.cat([model(part) for part in torch.split(x, CHUNK)])
    return {
        "test_loss": F.cross_entropy(logits, y).item(),
        "test_accuracy": (logits.argmax(1) == y).double().mean().item(),
    }


def test_metrics(probabilities: Tensor, y: Tensor, samples: int) -> dict[str, Any]:
    """Accuracy with its 95 % interval, loss, calibration and confusion.

    Args:
        probabilities: predicted, [n, classes].
        y: true classes, [n].
        samples: how many weight samples the probabilities are means over.
    """
    confidence, predicted = probabilities.max(1)
    right = predicted == y
    bins = _reliability(confidence, right)
    gaps = [row["count"] * abs(row["accuracy"] - row["confidence"]) for row in bins]
    return {
        "accuracy": right.double().mean().item(),
        "interval": list(wilson_interval(int(right.sum()), len(y))),
        "loss": F.nll_loss(probabilities.clamp_min(1e-12).log(), y).item(),
        "calibration_error": sum(gaps) / len(y),
        "reliability": bins,
        "confusion": confusion_counts(y, predicted, probabilities.shape[1]),
        "samples": samples,
    }


def wilson_interval(right: int, count: int) -> tuple[float, float]:
    """95 % interval of a proportion (Wilson 1927).

    >>> [round(end, 3) for end in wilson_interval(320, 360)]
    [0.852, 0.917]
    """
    z = 1.959963984540054
    share = right / count
    shrink = 1 + z * z / count
    centre = (share + z * z / (2 * count)) / shrink
    variance = share * (1 - share) / count + z * z / (4 * count * count)
    reach = z / shrink * math.sqrt(variance)
    low = max(0.0, centre - reach)
    high = min(1.0, centre + reach)
    return low, high


def confusion_counts(y: Tensor, predicted: Tensor, classes: int) -> list[list[int]]:
    """Counts by true class (row) and predicted class (column)."""
    cells = y * classes + predicted
    counts = torch.bincount(cells, minlength=classes**2)
    rows: list[list[int]] = counts.view(classes, classes).tolist()
    return rows


def _reliability(confidence: Tensor, right: Tensor) -> list[dict[str, float]]:
    """Mean confidence and accuracy in equally wide bins of confidence; empty bins are skipped."""
    indices = (confidence * BINS).long().clamp_max(BINS - 1)
    rows = []
    for index in range(BINS):
        inside = indices == index
        if inside.any():
            rows.append(
                {
                    "confidence": confidence[inside].double().mean().item(),
                    "accuracy": right[inside].double().mean().item(),
                    "count": int(inside.sum()),
                }
            )
    return rows


def alpha_histograms(model: nn.Module) -> dict[str, dict[str, list[float]]]:
    """log α of every layer's weights, counted in bins of one half over ±8."""
    edges = torch.linspace(-8, 8, 33)
    return {
        name: {
            "edges": edges.tolist(),
            "counts": torch.histogram(values.flatten().float(), edges).hist.tolist(),
        }
        for name, values in log_alpha(model).items()
    }


def sparsity_counts(model: nn.Module) -> dict[str, Any]:
    """How many weights are noise (log α ≥ 3), by layer and in total."""
    found = sparsity(model)
    rows = {
        layer.name: asdict(layer) | {"fraction": layer.fraction}
        for layer in (*found.layers, found.total)
    }
    return {"threshold": found.threshold, "total": rows.pop("total"), "layers": rows}
