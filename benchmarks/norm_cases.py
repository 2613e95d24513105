"""Models with one kind of layer each, for comparing per-example gradient norms. Needs torch
alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["CASES", "Case", "FirstOutput", "loss"]

BATCH = 7
WORDS = 11


@dataclass(frozen=True)
class Case:
    """A model and its inputs.

    Args:
        build: makes the model.
        shape: of one example's input.
        words: whether inputs are numbers of words.
        batch_first: whether the examples are the first dimension of what the layers see; otherwise
            the second.
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    words: bool = False
    batch_first: bool = True

    def model(self) -> nn.Module:
        """In float64, every parameter drawn anew: torch starts norms at one and zero."""
        torch.manual_seed(0)
        model = self.build().double()
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.5)
        return model

    def inputs(self) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        if self.words:
            return torch.randint(WORDS, (BATCH, *self.shape), generator=generator)
        return torch.randn(BATCH, *self.shape, generator=generator, dtype=torch.float64)


def loss(model: nn.Module, x: Tensor) -> Tensor:
    """One value per example: [B]."""
    outputs = model(x).flatten(1)
    return F.softplus(outputs).sum(1)


class FirstOutput(nn.Module):
    """A layer that returns several things, of which the first is taken."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        first, *_ = self.layer(x)
        return first


class SelfAttention(FirstOutput):
    """Attention over sequences [B, T, E], in whatever order the layer wants them."""

    def __init__(self, heads: int, *, batch_first: bool) -> None:
        super().__init__(nn.MultiheadAttention(6, heads, batch_first=batch_first))

    def forward(self, x: Tensor) -> Tensor:
        if self.layer.batch_first:
            return self.layer(x, x, x)[0]
        x = x.transpose(0, 1)
        return self.layer(x, x, x)[0].transpose(0, 1)


class Reused(nn.Module):
    """One layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.layer(x))
        return self.layer(hidden)


class Tied(nn.Module):
    """A table of words whose weight is that of the last layer, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 6)
        self.last = nn.Linear(6, WORDS, bias=False)
        self.last.weight = self.table.weight

    def forward(self, words: Tensor) -> Tensor:
        rows = torch.tanh(self.table(words))
        mean = rows.mean(1)
        return self.last(mean)


def _after_linear(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), layer)


def _convolution(kind: type[nn.Module], **options: object) -> nn.Module:
    return nn.Sequential(kind(4, 6, 3, **options), nn.Tanh(), kind(6, 2, 1))


def _recurrent(kind: type[nn.Module], **options: object) -> nn.Module:
    return FirstOutput(kind(4, 5, batch_first=True, **options))


def _normalised_images(kind: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 6, 3), kind())


_ALL_OPTIONS = {"stride": 2, "padding": 2, "dilation": 2, "groups": 2}
_BOTH_WAYS = {"num_layers": 2, "bidirectional": True}

CASES: dict[str, Case] = {
    "Linear": Case(lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (6,)),
    "Linear on sequences": Case(
        lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (4, 6)
    ),
    "Conv1d": Case(lambda: _convolution(nn.Conv1d), (4, 12)),
    "Conv1d, stride, padding, dilation, groups": Case(
        lambda: _convolution(nn.Conv1d, **_ALL_OPTIONS), (4, 12)
    ),
    "Conv2d": Case(lambda: _convolution(nn.Conv2d), (4, 9, 9)),
    "Conv2d, stride, padding, dilation, groups": Case(
        lambda: _convolution(nn.Conv2d, **_ALL_OPTIONS), (4, 9, 9)
    ),
    "Conv2d, padding same": Case(lambda: _convolution(nn.Conv2d, padding="same"), (4, 6, 6)),
    "Conv3d": Case(lambda: _convolution(nn.Conv3d), (4, 5, 5, 5)),
    "Conv3d, stride, padding, dilation, groups": Case(
        lambda: _convolution(nn.Conv3d, **_ALL_OPTIONS), (4, 5, 5, 5)
    ),
    "Embedding": Case(
        lambda: nn.Sequential(nn.Embedding(WORDS, 6), nn.Tanh(), nn.Linear(6, 3)), (5,), words=True
    ),
    "LayerNorm": Case(lambda: _after_linear(nn.LayerNorm(6)), (6,)),
    "LayerNorm on sequences": Case(lambda: _after_linear(nn.LayerNorm(6)), (4, 6)),
    "RMSNorm": Case(lambda: _after_linear(nn.RMSNorm(6)), (6,)),
    "GroupNorm": Case(lambda: _normalised_images(lambda: nn.GroupNorm(3, 6)), (2, 6, 6)),
    "InstanceNorm2d": Case(
        lambda: _normalised_images(lambda: nn.InstanceNorm2d(6, affine=True)), (2, 6, 6)
    ),
    "LSTM": Case(lambda: _recurrent(nn.LSTM), (6, 4)),
    "LSTM, two layers, both directions": Case(lambda: _recurrent(nn.LSTM, **_BOTH_WAYS), (6, 4)),
    "GRU": Case(lambda: _recurrent(nn.GRU), (6, 4)),
    "RNN": Case(lambda: _recurrent(nn.RNN), (6, 4)),
    "MultiheadAttention, two heads": Case(
        lambda: SelfAttention(2, batch_first=False), (5, 6), batch_first=False
    ),
    "MultiheadAttention, one head, batch first": Case(
        lambda: SelfAttention(1, batch_first=True), (5, 6)
    ),
    "MultiheadAttention, two heads, batch first": Case(
        lambda: SelfAttention(2, batch_first=True), (5, 6)
    ),
    "one layer used twice": Case(Reused, (5,)),
    "weight tied between layers": Case(Tied, (5,), words=True),
}
"""What both libraries say they support."""
