"""A transformer encoder, trained privately, that reads images of digits row by row.

An ordinary model of ``nn.TransformerEncoder`` is converted with ``dpvd.variational``: its attention
and its dense layers get noise on their weights, tied to the noise that protects the data (Algorithm
1). Everything else stays as it is.

Each image is a sequence of 8 rows of 8 pixels; a row comes with its number, since attention does
not see order.

The width, the learning rate and the number of steps were chosen with ``--validate``, which trains
on four fifths of the training data and scores on the last fifth; the test data was not looked at.
That choice saw the training data and is not accounted for: the statement names it.

    python examples/transformer.py --epsilon 3
"""

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor, nn

import dpvd
from dpvd.data import load
from dpvd.grads import ClippingMode
from dpvd.training import FitResult

DELTA = 1e-5
ROWS, PIXELS, CLASSES = 8, 8, 10
WIDTH, HEADS, HIDDEN = 24, 4, 48
LEARNING_RATE, MOMENTUM, STEPS = 0.2, 0.9, 100


class RowReader(nn.Module):
    """An encoder over the rows of an image, and a dense layer on all of its outputs."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, HIDDEN, dropout=0.0, batch_first=True, norm_first=True
        )
        self.embed = nn.Linear(PIXELS + ROWS, WIDTH)
        self.encoder = nn.TransformerEncoder(layer, num_layers=1, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(ROWS * WIDTH, elementwise_affine=False)
        self.head = nn.Linear(ROWS * WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:  # [B, 64], pixels between 0 and 1
        rows = 2 * x.view(-1, ROWS, PIXELS) - 1
        numbers = torch.eye(ROWS).expand(len(x), ROWS, ROWS)
        read: Tensor = self.encoder(self.embed(torch.cat([rows, numbers], 2)))
        logits: Tensor = self.head(self.norm(read.flatten(1)))
        return logits


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and print the accuracy and the privacy statement."""
    parser = argparse.ArgumentParser(
        description="A private transformer encoder over the rows of DIGITS."
    )
    parser.add_argument("--epsilon", type=float, default=3.0, help="privacy budget (default 3)")
    parser.add_argument(
        "--steps", type=int, default=STEPS, help=f"steps, on all examples each (default {STEPS})"
    )
    parser.add_argument(
        "--validate",
        action="store_true",
        help="hold out a fifth of the training data and score on it",
    )
    options = parser.parse_args(arguments)

    data = load("digits")
    train, test = (data.train_x, data.train_y), (data.test_x, data.test_y)
    if options.validate:
        count = len(train[0]) * 4 // 5
        train, test = (train[0][:count], train[1][:count]), (train[0][count:], train[1][count:])
    model = dpvd.variational(RowReader(), rates="layer", learned=False)
    print(model.conversion)
    result = train_privately(model, train, options.epsilon, options.steps)
    where = "held-out" if options.validate else "test"
    print(
        f"{where} accuracy {accuracy(result.model, *test):.3f} after {result.steps} steps in"
        f" {result.seconds:.1f} s"
    )
    print(result.guarantee.sentence())


def train_privately(
    model: nn.Module, data: tuple[Tensor, Tensor], epsilon: float, steps: int
) -> FitResult:
    """All examples in every step, gradients normalised one by one, the last fifth of the iterates
    averaged.
    """
    plan = dpvd.PrivacyPlan(
        examples=len(data[0]),
        batch_size=len(data[0]),
        steps=steps,
        clipping=dpvd.Clipping(ClippingMode.AUTOMATIC),
        tuned=(
            "width, learning rate and number of steps, on a held-out fifth of the training data",
        ),
    ).calibrate(epsilon, DELTA)
    recipe = dpvd.Recipe(LEARNING_RATE, momentum=MOMENTUM, decay="linear", average=0.2)
    return dpvd.fit(model, data, plan, recipe, delta=DELTA)


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """How often the class with the largest mean probability under the posterior is right."""
    probabilities, _ = dpvd.predict_dist(model, x)
    return (probabilities.argmax(1) == y).double().mean().item()


if __name__ == "__main__":
    main()
