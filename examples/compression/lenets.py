"""The LeNets, how each is made sparse, and the images of MNIST they are trained on."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpvd.data import load_mnist

HELD_OUT = 5_000


@dataclass(frozen=True)
class SparseTraining:
    """How a network is trained: Adam, both learning rates falling linearly to 0 over the sparse
    epochs.

    Attributes:
        dense_epochs: how long the ordinary network is trained first.
        sparse_epochs: how long the variational one is.
        rising_epochs: how long the weight of the KL term rises, linearly, from 0 to 1.
        shrinking_epochs: for how many epochs the network is pruned and shrunk now and then.
        shrinks_per_epoch: how often; 0.5 is after every second epoch.
        enough: compression at which shrinking ends before that.
        batch_size: examples in a step.
        dense_learning_rate: of the ordinary network.
        learning_rate, noise_learning_rate: at the start, of means and biases, and of log σ².
        log_sigma2: log σ² at the start, and of what is left after shrinking.
        shift: how many pixels a training image is moved at most, to each side, anew whenever it is
            seen.
    """

    dense_epochs: int
    sparse_epochs: int
    rising_epochs: float
    shrinking_epochs: int
    shrinks_per_epoch: float = 1.0
    enough: float = 1e9
    batch_size: int = 100
    dense_learning_rate: float = 1e-3
    learning_rate: float = 1e-3
    noise_learning_rate: float = 5e-2
    log_sigma2: float = -8.0
    shift: int = 0


@dataclass(frozen=True)
class Images:
    """Images [n, 1, 28, 28] with values from 0 to 1, and their labels."""

    x: Tensor
    y: Tensor

    def some(self, rows: Tensor, shift: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Images, each moved at random by up to ``shift`` pixels to each side, and their labels."""
        x = self.x[rows]
        if shift:
            height, width = x.shape[2:]
            places = nn.functional.pad(x, [shift] * 4).unfold(2, height, 1).unfold(3, width, 1)
            down, right = torch.randint(2 * shift + 1, (2, len(rows)), generator=generator)
            x = places[torch.arange(len(rows)), :, down, right]
        return x, self.y[rows]


def lenet_300_100() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 300),
        nn.ReLU(),
        nn.Linear(300, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )


def lenet_5() -> nn.Sequential:
    """LeNet-5 as Caffe has it; ReLU after pooling is ReLU before it, at a quarter of the cost."""
    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Sequential], SparseTraining]] = {
    "lenet-300-100": (
        lenet_300_100,
        SparseTraining(
            8, 60, 6.0, 45, shrinks_per_epoch=1 / 3, enough=58.0, batch_size=250, learning_rate=2e-3
        ),
    ),
    "lenet-5": (
        lenet_5,
        SparseTraining(4, 32, 2.0, 26, shrinks_per_epoch=2, enough=200.0, shift=1),
    ),
}


def images(
    random_labels: bool, seed: int, all_images: bool
) -> tuple[Images, Images | None, Images]:
    """What to train on, what is held out (None if all images are trained on), what to test on."""
    mnist = load_mnist()
    labels = [mnist.train_y, mnist.test_y]
    if random_labels:
        generator = torch.Generator().manual_seed(seed)
        labels = [torch.randint(mnist.classes, y.shape, generator=generator) for y in labels]
    x, (y, test_y) = _scaled(mnist.train_x), labels
    test = Images(_scaled(mnist.test_x), test_y)
    if all_images:
        return Images(x, y), None, test
    return Images(x[:-HELD_OUT], y[:-HELD_OUT]), Images(x[-HELD_OUT:], y[-HELD_OUT:]), test


def _scaled(x: Tensor) -> Tensor:
    # The layout is what makes convolutions fast.
    return x.float().div(255).unsqueeze(1).contiguous(memory_format=torch.channels_last)
