"""A convolutional network on MNIST, trained privately at ε = 3.

An ordinary torch model, an ordinary loss, and a plan that says what may be done to the data:
``dpvd.fit`` draws the batches, clips, adds the noise and keeps the account. The only special thing
about the model is that its units are bounded (tanh), which keeps per-example gradients small.

    python examples/cnn.py --data-dir ~/data
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import dpvd
from dpvd.data import centred, flatten, load, unit_norm
from dpvd.grads import ClippingMode

DELTA = 1e-5
BATCH, MICRO_BATCH = 2048, 256
EDGE = 28


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and print the test accuracy and the privacy statement."""
    parser = argparse.ArgumentParser(
        description="A convolutional network on MNIST, trained privately."
    )
    parser.add_argument("--epsilon", type=float, default=3.0, help="privacy budget (default 3)")
    parser.add_argument("--steps", type=int, default=309, help="private steps (default 309)")
    parser.add_argument(
        "--examples", type=int, default=60_000, help="take only the first images (default all)"
    )
    parser.add_argument("--data-dir", type=Path, default=None, help="where MNIST's files are")
    options = parser.parse_args(arguments)

    data = load("mnist", options.data_dir)
    train = inputs(data.train_x[: options.examples]), data.train_y[: options.examples]
    plan = dpvd.PrivacyPlan(
        examples=len(train[0]),
        batch_size=min(BATCH, len(train[0])),
        steps=options.steps,
        clipping=dpvd.Clipping(ClippingMode.AUTOMATIC),
        tuned=("the learning rate, on MNIST itself",),
    ).calibrate(options.epsilon, DELTA)
    recipe = dpvd.Recipe(learning_rate=0.8, momentum=0.9, decay="linear", average=0.1)
    # For the initial weights only; the privacy noise comes from the system's generator.
    torch.manual_seed(0)
    result = dpvd.fit(network(), train, plan, recipe, delta=DELTA, micro_batch=MICRO_BATCH)
    print(
        f"test accuracy {accuracy(result.model, inputs(data.test_x), data.test_y):.4f} in"
        f" {result.seconds:.0f} s"
    )
    print(result.guarantee.sentence())


def inputs(images: Tensor) -> Tensor:
    """Centre each image on its own mean and scale its pixels to mean square 1.

    No statistic of the training data is used.
    """
    pixels = centred(flatten(images.float() / 255))
    return (unit_norm(pixels) * EDGE).reshape(-1, 1, EDGE, EDGE)


def network() -> nn.Module:
    """Two convolutions and two dense layers, in the memory layout that is fast on CPUs."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )
    return model.to(memory_format=torch.channels_last)


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """How often the most probable class is right."""
    right = [
        (model(part).argmax(1) == truth)
        for part, truth in zip(x.split(1000), y.split(1000), strict=True)
    ]
    return torch.cat(right).double().mean().item()


if __name__ == "__main__":
    main()
