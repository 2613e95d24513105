"""DIGITS and its fixed split."""

import numpy as np
import torch
from sklearn import datasets

from dpvd.data import load_digits


def test_split_has_the_stated_sizes() -> None:
    digits = load_digits()
    assert digits.train_x.shape == (1437, 64)
    assert digits.test_x.shape == (360, 64)
    assert digits.train_x.dtype == torch.float32
    assert digits.classes == 10
    assert "no statistic of the training data" in digits.preprocessing


def test_split_never_changes() -> None:
    # Recorded when the split was made; another value means that results are no longer comparable.
    assert (
        load_digits().checksum == "6517ad2c0cadf072f10d99eff8059c022e40fa25d14cda259371b008ec0559a4"
    )


def test_both_parts_together_are_the_whole_set() -> None:
    digits = load_digits()
    pixels, labels = datasets.load_digits(return_X_y=True)
    ours = torch.cat([digits.train_x, digits.test_x]).numpy() * 16
    rows = np.column_stack([ours, torch.cat([digits.train_y, digits.test_y]).numpy()])
    expected = np.column_stack([pixels, labels])
    assert np.array_equal(rows[np.lexsort(rows.T)], expected[np.lexsort(expected.T)])


def test_every_class_has_its_share_of_the_test_set() -> None:
    digits = load_digits()
    test = digits.test_y.bincount()
    share = (digits.train_y.bincount() + test) * 360 / 1797
    assert int(test.sum()) == 360
    assert (test - share).abs().max() < 1


def test_pixels_lie_between_zero_and_one() -> None:
    digits = load_digits()
    assert float(digits.train_x.min()) == 0.0
    assert float(digits.train_x.max()) == 1.0
