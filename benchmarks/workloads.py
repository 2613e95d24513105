"""The networks and batches that are timed. Needs torch alone, and for two of them transformers and
peft: other libraries' environments load it too.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from benchmarks.networks import decoder_with_lora, encoder, residual

__all__ = ["CLASSES", "WORKLOADS", "LastStep", "Step", "Workload", "workload"]

Step = Callable[[], object]
"""One training step on a batch that stays the same."""

CLASSES = 10
FIRST_WORD = 4
VOCABULARY = 5000


@dataclass(frozen=True)
class Workload:
    """A network, and a batch of random inputs for it.

    Args:
        name: in tables and files.
        batch: number of examples.
        shape: of one example's input.
        build: makes the network.
        small: the miniature, a small network and batch of the same kind; None if this is one.
        vocabulary: inputs are this many kinds of tokens; 0 if they are numbers.
        from_library: a network as public libraries make them: trained by DP-SGD alone, and timed on
            one thread and on two.
    """

    name: str
    batch: int
    shape: tuple[int, ...]
    build: Callable[[], nn.Module]
    small: "Workload | None" = None
    vocabulary: int = 0
    from_library: bool = False

    @property
    def miniature(self) -> "Workload":
        return self.small or self

    def network(self) -> nn.Module:
        """The network with fresh weights, the same in every process."""
        torch.manual_seed(0)
        return self.build()

    def data(self) -> tuple[Tensor, Tensor]:
        """Inputs [batch, *shape] and labels [batch], the same in every process."""
        generator = torch.Generator().manual_seed(0)
        size = (self.batch, *self.shape)
        if self.vocabulary:  # the first tokens have a meaning of their own, such as padding
            x = torch.randint(FIRST_WORD, self.vocabulary, size, generator=generator)
        else:
            x = torch.randn(size, generator=generator)
        y = torch.randint(CLASSES, (self.batch,), generator=generator)
        return x, y


class LastStep(nn.Module):
    """An LSTM over a sequence, and a dense layer on its last output."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.lstm(x)
        return self.head(outputs[:, -1])


def dense(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def convolutional(first: int, second: int, hidden: int) -> nn.Sequential:
    """The network of Papernot et al. (arXiv 2007.14191), table 1: 28 x 28 becomes 4 x 4."""
    return nn.Sequential(
        nn.Conv2d(1, first, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(first, second, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(second * 4 * 4, hidden),
        nn.Tanh(),
        nn.Linear(hidden, CLASSES),
    )


def mlp(name: str, widths: Sequence[int], batch: int) -> Workload:
    hidden = [4] * (len(widths) - 2)
    small = (4, *hidden, CLASSES)
    miniature = Workload("miniature", 2, (4,), lambda: dense(small))
    return Workload(name, batch, (widths[0],), lambda: dense(widths), miniature)


WORKLOADS = {
    work.name: work
    for work in (
        mlp("digits-mlp", (64, 1000, CLASSES), 100),
        mlp("mnist-mlp", (784, 1000, CLASSES), 600),
        mlp("wide-mlp", (784, 4096, 4096, CLASSES), 256),
        Workload(
            "cnn",
            600,
            (1, 28, 28),
            lambda: convolutional(16, 32, 32),
            Workload("miniature", 2, (1, 28, 28), lambda: convolutional(2, 2, 4)),
        ),
        Workload(
            "lstm",
            256,
            (28, 28),
            lambda: LastStep(28, 128),
            Workload("miniature", 2, (2, 4), lambda: LastStep(4, 4)),
        ),
        Workload(
            "encoder",
            32,
            (64,),
            lambda: encoder(256, 4, VOCABULARY, 64, CLASSES),
            Workload(
                "miniature",
                2,
                (4,),
                lambda: encoder(8, 1, 16, 4, CLASSES),
                vocabulary=16,
                from_library=True,
            ),
            VOCABULARY,
            from_library=True,
        ),
        Workload(
            "decoder-lora",
            32,
            (128,),
            lambda: decoder_with_lora(256, 4, VOCABULARY, 128, CLASSES, rank=8),
            Workload(
                "miniature",
                2,
                (4,),
                lambda: decoder_with_lora(8, 1, 16, 4, CLASSES, rank=2),
                vocabulary=16,
                from_library=True,
            ),
            VOCABULARY,
            from_library=True,
        ),
        Workload(
            "resnet",
            32,
            (3, 64, 64),
            lambda: residual((32, 64, 128, 256), CLASSES),
            Workload(
                "miniature", 2, (3, 32, 32), lambda: residual((8, 8), CLASSES), from_library=True
            ),
            from_library=True,
        ),
    )
}


def workload(name: str) -> Workload:
    """A workload by name, its miniature, or a dense network and batch.

    Such as ``cnn``, ``cnn/miniature`` and ``784-1000-10@600``.

    Raises:
        ValueError: for any other text.

    >>> workload("784-500-10@64").batch
    64
    """
    whole, _, part = name.partition("/")
    if whole in WORKLOADS and part == "":
        return WORKLOADS[whole]
    if whole in WORKLOADS and part == "miniature":
        return WORKLOADS[whole].miniature
    if not re.fullmatch(r"\d+(-\d+)*-10@\d+", name):
        raise ValueError(
            f"no workload {name!r}: name one of {', '.join(WORKLOADS)}, or write 784-1000-10@600"
        )
    widths, batch = name.split("@")
    return mlp(name, [int(width) for width in widths.split("-")], int(batch))
