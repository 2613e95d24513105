"""DIGITS: 1,797 images of handwritten digits, 8 by 8 pixels, that come with scikit-learn."""

import numpy as np
import numpy.typing as npt
import torch
from sklearn import datasets

from dpvd.data.dataset import Dataset

__all__ = ["load_digits"]

_CLASSES = 10
_TEST_EXAMPLES = 360
_SPLIT_SEED = 2017
_LARGEST_PIXEL = 16.0  # declared by the format, not measured on the data


def load_digits() -> Dataset:
    """Return DIGITS with its fixed, stratified split: 1,437 examples to train on and 360 to test.

    The paper prints 1,439 and 360, whose sum is more than the set has.

    Guarantees:
        The split is the same on every machine and with every version of NumPy and scikit-learn: within each
        class, the examples with the smallest keys from a fixed PCG64 bit stream are the test examples.

    Returns:
        Inputs of shape (n, 64), float32, pixels divided by 16; labels 0 to 9.
    """
    pixels, labels = datasets.load_digits(return_X_y=True)
    test = _stratified_choice(labels, _TEST_EXAMPLES)
    inputs = torch.from_numpy((pixels / _LARGEST_PIXEL).astype(np.float32))
    targets = torch.from_numpy(labels.astype(np.int64))
    chosen = torch.from_numpy(test)
    return Dataset(
        name="digits",
        train_x=inputs[~chosen],
        train_y=targets[~chosen],
        test_x=inputs[chosen],
        test_y=targets[chosen],
        classes=_CLASSES,
        preprocessing="pixels divided by 16; no statistic of the training data is used",
    )


def _stratified_choice(labels: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.bool_]:
    """Mark ``size`` examples so that every class has its share, rounded by largest remainder."""
    keys = np.random.PCG64(_SPLIT_SEED).random_raw(len(labels))  # raw words: stable across NumPy versions
    shares = np.bincount(labels, minlength=_CLASSES) * size / len(labels)
    counts = np.floor(shares).astype(np.int64)
    short = size - int(counts.sum())
    counts[np.argsort(counts - shares, kind="stable")[:short]] += 1
    chosen = np.zeros(len(labels), dtype=np.bool_)
    for label, count in enumerate(counts):
        members = np.flatnonzero(labels == label)
        chosen[members[np.argsort(keys[members], kind="stable")[:count]]] = True
    return chosen
