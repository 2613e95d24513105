"""DIGITS: 1,797 images of handwritten digits, 8 by 8 pixels, that come with scikit-learn."""

import numpy as np
import torch
from sklearn import datasets
from sklearn.model_selection import train_test_split

from dpvd.data.dataset import Dataset

__all__ = ["load_digits"]

_CLASSES = 10
_TEST_EXAMPLES = 360
_SPLIT_SEED = 0
_IMAGE = (8, 8)
_LARGEST_PIXEL = 16.0  # declared by the format, not measured on the data


def load_digits() -> Dataset:
    """Return DIGITS with its fixed, stratified split: 1,437 examples to train on and 360 to test.

    The split is the one that ``train_test_split(..., test_size=360, stratify=labels,
    random_state=0)`` makes, so that others can compare with a line of scikit-learn. The paper
    prints 1,439 and 360, more than the set has.

    Guarantees:
        The split does not change silently: a test holds it to its recorded checksum.

    Returns:
        Inputs of shape (n, 64), float32, pixels divided by 16; labels 0 to 9.
    """
    pixels, labels = datasets.load_digits(return_X_y=True)
    rows = np.arange(len(labels))
    train, test = (
        torch.from_numpy(part)
        for part in train_test_split(
            rows, test_size=_TEST_EXAMPLES, stratify=labels, random_state=_SPLIT_SEED
        )
    )
    inputs = torch.from_numpy((pixels / _LARGEST_PIXEL).astype(np.float32))
    targets = torch.from_numpy(labels.astype(np.int64))
    return Dataset(
        name="digits",
        train_x=inputs[train],
        train_y=targets[train],
        test_x=inputs[test],
        test_y=targets[test],
        classes=_CLASSES,
        preprocessing="pixels divided by 16; no statistic of the training data is used",
        pixels=True,
        image=_IMAGE,
    )
