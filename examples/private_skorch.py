"""A private classifier in a pipeline of scikit-learn, through skorch.

The handwritten digits of scikit-learn, each scaled to norm 1 by itself: a step of a pipeline that
learns from all rows (StandardScaler) would be outside the account. A quarter of the digits is held
out beforehand, for scores that may be seen.

Learning rate and epochs are guesses: nothing was tuned.

    python examples/private_skorch.py --epsilon 3
"""

import argparse
from collections.abc import Sequence

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from skorch.dataset import Dataset
from skorch.helper import predefined_split
from torch import Tensor, nn

from dpvd.skorch import PrivateClassifier

DELTA = 1e-5


class Network(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def forward(self, X: Tensor) -> Tensor:
        return self.layers(X)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--epochs", type=int, default=20)
    given = parser.parse_args(arguments)

    images, labels = load_digits(return_X_y=True)
    images = images.astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(images, labels, random_state=0)
    held_out = Dataset(Normalizer().transform(test_x), test_y)

    torch.manual_seed(0)
    net = PrivateClassifier(
        Network,
        epsilon=given.epsilon,
        delta=DELTA,
        module__width=64,
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=0.01,
        batch_size=256,
        max_epochs=given.epochs,
        train_split=predefined_split(held_out),
    )
    pipeline = make_pipeline(Normalizer(), net)
    pipeline.fit(train_x, train_y)
    print(net.guarantee().sentence())
    print(f"test accuracy {pipeline.score(test_x, test_y):.3f}")
    print(f"most certain digit {pipeline.predict_proba(test_x).max():.3f}")


if __name__ == "__main__":
    main()
