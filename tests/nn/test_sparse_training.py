"""Sparse variational dropout in earnest: it keeps what the labels need, and nothing when they are
noise.
"""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import dpvd.nn as dn

EPOCHS, BATCH = 60, 128


def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    order = torch.randperm(len(data.data), generator=torch.Generator().manual_seed(0))
    return torch.tensor(data.data / 16, dtype=torch.float32)[order], torch.tensor(data.target)[
        order
    ]


def train(x: Tensor, y: Tensor, generator: torch.Generator) -> nn.Module:
    """Molchanov's recipe in short: KL sum / N with a warm-up over the first third."""
    dense = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    with torch.no_grad():
        for parameter in dense.parameters():
            parameter.copy_(0.15 * torch.randn(parameter.shape, generator=generator))
    model = dn.variational(dense)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(EPOCHS):
        kl_weight = min(1.0, 3 * epoch / EPOCHS) / len(x)
        for rows in torch.randperm(len(x), generator=generator).split(BATCH):
            with dn.noise_from(generator):
                loss = nn.functional.cross_entropy(model(x[rows]), y[rows]) + kl_weight * dn.kl(
                    model
                )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return (model(x).argmax(1) == y).double().mean().item()


def test_real_labels_keep_their_accuracy_in_few_weights(generator: torch.Generator) -> None:
    x, y = digits()
    model = train(x[:1437], y[:1437], generator)
    before = accuracy(model, x[1437:], y[1437:])
    report = dn.prune(model)
    assert before > 0.94
    assert accuracy(model, x[1437:], y[1437:]) == pytest.approx(before, abs=0.01)
    assert 0.5 < report.fraction < 0.95


def test_random_labels_leave_nearly_nothing(generator: torch.Generator) -> None:
    x, y = digits()
    y = torch.randint(0, 10, y.shape, generator=generator)
    report = dn.prune(model := train(x, y, generator))
    assert report.fraction > 0.95
    assert accuracy(model, x, y) < 0.2
