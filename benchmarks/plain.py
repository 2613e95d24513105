"""The plain PyTorch step, exactly as users write it. Needs torch alone."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.workloads import Step, Workload

__all__ = ["LEARNING_RATE", "plain", "plain_channels_last"]

LEARNING_RATE = 0.01


def plain(work: Workload) -> Step:
    """Eager SGD: zero_grad, backward, step."""
    model = work.network()
    x, y = work.data()
    return _sgd(model, x, y)


def plain_channels_last(work: Workload) -> Step:
    """The same with the channels of images last in memory, which oneDNN prefers."""
    x, y = work.data()
    return _sgd(
        work.network().to(memory_format=torch.channels_last),
        x.contiguous(memory_format=torch.channels_last),
        y,
    )


def _sgd(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step
