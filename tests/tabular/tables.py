"""Small synthetic tables: rows, classes and numbers that a linear model can learn."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Table:
    x: Tensor
    classes: Tensor
    numbers: Tensor


def make_table(rows: int, features: int, *, classes: int = 2, seed: int = 0) -> Table:
    """Rows around a common mean; classes and numbers follow from linear scores and some noise."""
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, features, generator=source) + 1.0
    truth = torch.randn(features, classes, generator=torch.Generator().manual_seed(1))
    scores = (x - 1) @ truth + torch.randn(rows, classes, generator=source)
    numbers = scores[:, 0] - scores[:, 1]
    return Table(x, scores.argmax(1), numbers)


def area_under_curve(scores: Tensor, labels: Tensor) -> float:
    """The part of pairs of a positive and a negative row that scores put in order."""
    positive, negative = scores[labels == 1], scores[labels == 0]
    return (positive[:, None] > negative[None]).double().mean().item()
