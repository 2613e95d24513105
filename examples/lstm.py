"""A variational LSTM that reads images row by row, trained with privacy.

DIGITS (8 by 8 pixels, part of scikit-learn) is read as sequences of eight rows. Every weight of the LSTM and of the
dense layer on its last output is random, and its noise is the noise that protects the data (Algorithm 1): one draw
for each example and sequence, so that clipping bounds what one image contributes.

    python examples/lstm.py --epsilon 3
"""

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor, nn

import dpvd
from dpvd.data import load
from dpvd.grads import ClippingMode

DELTA = 1e-5
SIDE = 8
# Chosen on one fifth of the training data, held out, among eighteen settings at ε = 3.
HIDDEN, STEPS, LEARNING_RATE, MOMENTUM = 32, 150, 0.5, 0.9


class RowReader(nn.Module):
    """An LSTM over the rows of an image, and a dense layer on its last output."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(SIDE, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, classes)
        with torch.no_grad():  # open forget gates let gradients reach the first rows from the start
            self.lstm.bias_ih_l0[HIDDEN : 2 * HIDDEN] = 1.0

    def forward(self, rows: Tensor) -> Tensor:
        outputs, _ = self.lstm(rows)
        return self.head(outputs[:, -1])


def main(arguments: Sequence[str] | None = None) -> None:
    """Train within a budget, and print accuracy and privacy statement."""
    parser = argparse.ArgumentParser(description="A variational LSTM that reads images row by row.")
    parser.add_argument("--epsilon", type=float, default=3.0, help="privacy budget (default 3)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"private steps (default {STEPS})")
    options = parser.parse_args(arguments)

    data = load("digits")
    examples = len(data.train_x)
    model = dpvd.variational(RowReader(data.classes), rates="layer", learned=False)
    print(model.conversion)
    plan = dpvd.PrivacyPlan(
        examples=examples,
        batch_size=examples,
        steps=options.steps,
        clipping=dpvd.Clipping(ClippingMode.AUTOMATIC),
        tuned=("hidden size, steps and learning rate",),
    ).calibrate(options.epsilon, DELTA)
    recipe = dpvd.Recipe(LEARNING_RATE, momentum=MOMENTUM, decay="linear", average=0.2)
    result = dpvd.fit(model, (rows(data.train_x), data.train_y), plan, recipe, delta=DELTA)
    probabilities, _ = dpvd.predict_dist(result.model, rows(data.test_x))
    accuracy = (probabilities.argmax(1) == data.test_y).double().mean().item()
    print(f"test accuracy {accuracy:.3f} in {result.seconds:.1f} s")
    print(result.guarantee.sentence())


def rows(x: Tensor) -> Tensor:
    """[n, 8, 8], intensities from 0 to 1 stretched to -2 to 2: no statistic of the data is used."""
    return (x.view(-1, SIDE, SIDE) - 0.5) * 4


if __name__ == "__main__":
    main()
