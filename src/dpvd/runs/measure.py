"""What a trained model is worth on test data: accuracy, calibration, what it has pruned."""

import math
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.nn import VariationalLayer, log_alpha, noise_from, sampling, sparsity

__all__ = ["alpha_histograms", "predict_dist", "quick_look", "sparsity_counts", "test_measures"]

BINS = 10
CHUNK = 2048


@torch.no_grad()
def predict_dist(
    model: nn.Module, x: Tensor, *, samples: int = 32, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Class probabilities under the posterior, and how much they vary between weight samples.

    Args:
        model: any classifier; one without variational layers gives its plain probabilities and no
            spread.
        x: inputs.
        samples: weight samples to average over.
        generator: where the weight samples come from.

    Returns:
        Mean probabilities [n, classes] and their standard deviation over weight samples [n,
        classes].
    """
    model.eval()
    random = any(isinstance(m, VariationalLayer) for m in model.modules())
    draws = samples if random else 1
    source = torch.Generator().manual_seed(0) if generator is None else generator
    means, spreads = [], []
    for part in torch.split(x, CHUNK):
        with sampling(random), noise_from(source):
            probabilities = torch.stack([model(part).softmax(1) for _ in range(draws)])
        means.append(probabilities.mean(0))
        spreads.append(probabilities.std(0, correction=0))
    return torch.cat(means), torch.cat(spreads)


@torch.no_grad()
def quick_look(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    """Loss and accuracy with the mean weights: for progress, cheap."""
    logits = torch.cat([model(part) for part in torch.split(x, CHUNK)])
    return {
        "test_loss": F.cross_entropy(logits, y).item(),
        "test_accuracy": (logits.argmax(1) == y).double().mean().item(),
    }


def test_measures(probabilities: Tensor, y: Tensor, samples: int) -> dict[str, Any]:
    """Accuracy with its 95 % interval, loss, calibration, confusion: from predicted probabilities
    [n, classes].
    """
    confidence, predicted = probabilities.max(1)
    right = predicted == y
    classes = probabilities.shape[1]
    bins = _reliability(confidence, right)
    return {
        "accuracy": right.double().mean().item(),
        "interval": list(wilson_interval(int(right.sum()), len(y))),
        "loss": F.nll_loss(probabilities.clamp_min(1e-12).log(), y).item(),
        "calibration_error": sum(b["count"] * abs(b["accuracy"] - b["confidence"]) for b in bins)
        / len(y),
        "reliability": bins,
        "confusion": torch.bincount(y * classes + predicted, minlength=classes**2)
        .view(classes, classes)
        .tolist(),
        "samples": samples,
    }


def wilson_interval(right: int, count: int) -> tuple[float, float]:
    """95 % interval of a proportion (Wilson 1927).

    >>> [round(end, 3) for end in wilson_interval(320, 360)]
    [0.852, 0.917]
    """
    z = 1.959963984540054
    share = right / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    reach = (
        z
        / (1 + z * z / count)
        * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    )
    return max(0.0, centre - reach), min(1.0, centre + reach)


def _reliability(confidence: Tensor, right: Tensor) -> list[dict[str, float]]:
    """Mean confidence and accuracy in equally wide bins of confidence; empty bins are left out."""
    places = (confidence * BINS).long().clamp_max(BINS - 1)
    rows = []
    for place in range(BINS):
        inside = places == place
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
