"""A variational LSTM that reads images of digits row by row, trained privately at ε = 3.

Every weight of the LSTM and of the dense layer on its outputs is random, and its noise is the noise
that protects the data (Algorithm 1): one draw for each example and sequence, so that clipping
bounds what one image contributes.

MNIST is read as 28 rows of 28 pixels; ``--dataset digits``, which comes with scikit-learn, as 8
rows of 8. The settings were chosen with ``--validate``, which trains on four fifths of the training
data and scores on the last fifth; the test data was not looked at. That choice saw the training
data and is not accounted for: the statement names it.

    python examples/lstm.py --data-dir ~/data
    python examples/lstm.py --dataset digits
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import dpvd
from dpvd.data import load
from dpvd.grads import ClippingMode
from dpvd.training import FitResult

DELTA = 1e-5
HIDDEN, MOMENTUM = 32, 0.9
# Examples in a step (at most), steps, learning rate.
SETTINGS = {"mnist": (1024, 600, 0.5), "digits": (2048, 200, 0.2)}


class RowReader(nn.Module):
    """An LSTM over the rows of an image, and a dense layer on all of its outputs."""

    def __init__(self, side: int, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(side, HIDDEN, batch_first=True)
        self.norm = nn.LayerNorm(side * HIDDEN, elementwise_affine=False)
        self.head = nn.Linear(side * HIDDEN, classes)
        nn.init.zeros_(self.head.weight)
        with torch.no_grad():  # open forget gates let gradients reach the first rows from the start
            self.lstm.bias_ih_l0[HIDDEN : 2 * HIDDEN] = 1.0

    def forward(self, rows: Tensor) -> Tensor:  # [B, side, side]
        outputs, _ = self.lstm(rows)
        logits: Tensor = self.head(self.norm(outputs.flatten(1)))
        return logits


def main(arguments: Sequence[str] | None = None) -> None:
    """Train within a budget, and print accuracy and privacy statement."""
    parser = argparse.ArgumentParser(
        description="A private variational LSTM that reads images row by row."
    )
    parser.add_argument(
        "--dataset", choices=SETTINGS, default="mnist", help="what to read (default mnist)"
    )
    parser.add_argument("--data-dir", type=Path, default=None, help="where MNIST's files are")
    parser.add_argument("--epsilon", type=float, default=3.0, help="privacy budget (default 3)")
    parser.add_argument(
        "--steps", type=int, default=None, help="private steps (default 600, digits 200)"
    )
    parser.add_argument(
        "--validate",
        action="store_true",
        help="hold out a fifth of the training data and score on it",
    )
    options = parser.parse_args(arguments)

    data = load(options.dataset, options.data_dir)
    train, test = (rows(data.train_x), data.train_y), (rows(data.test_x), data.test_y)
    if options.validate:
        count = len(train[0]) * 4 // 5
        train, test = (train[0][:count], train[1][:count]), (train[0][count:], train[1][count:])
    batch_size, steps, learning_rate = SETTINGS[options.dataset]
    model = dpvd.variational(
        RowReader(train[0].shape[1], data.classes), rates="layer", learned=False
    )
    print(model.conversion)
    plan = dpvd.PrivacyPlan(
        examples=len(train[0]),
        batch_size=min(batch_size, len(train[0])),
        steps=options.steps or steps,
        clipping=dpvd.Clipping(ClippingMode.AUTOMATIC),
        tuned=("steps and learning rate, on a held-out part of the training data",),
    ).calibrate(options.epsilon, DELTA)
    recipe = dpvd.Recipe(learning_rate, momentum=MOMENTUM, decay="linear", average=0.2)
    result = dpvd.fit(model, train, plan, recipe, delta=DELTA)
    where = "held-out" if options.validate else "test"
    print(
        f"{where} accuracy {accuracy(result, *test):.3f} after {result.steps} steps in"
        f" {result.seconds:.0f} s"
    )
    print(result.guarantee.sentence())


def rows(images: Tensor) -> Tensor:
    """[n, side, side], intensities from -2 to 2: no statistic of the data is used."""
    pixels = images / 255 if images.dtype == torch.uint8 else images
    side = round(pixels[0].numel() ** 0.5)
    return 4 * pixels.view(-1, side, side) - 2


def accuracy(result: FitResult, x: Tensor, y: Tensor) -> float:
    """How often the class with the largest mean probability under the posterior is right."""
    right = [
        dpvd.predict_dist(result.model, part)[0].argmax(1) == truth
        for part, truth in zip(x.split(1000), y.split(1000), strict=True)
    ]
    return torch.cat(right).double().mean().item()


if __name__ == "__main__":
    main()
