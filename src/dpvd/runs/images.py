"""Images of one's own, from a file of arrays, as a data set for the networks."""

import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dpvd.data import ArrayData, Dataset, load_arrays
from dpvd.errors import DpvdError, in_unit_interval

__all__ = ["OwnImages", "load_images"]

_LARGEST_PIXEL = 255.0  # of eight bits


@dataclass(frozen=True, eq=False)
class OwnImages:
    """A data set of images, and what the statement has to say of it.

    Attributes:
        dataset: its test part is empty if nothing is to be tested on.
        classes: their names.
        not_covered: what was read off the data without noise.
    """

    dataset: Dataset
    classes: tuple[str, ...]
    not_covered: tuple[str, ...]


def load_images(path: Path, *, test_fraction: float | None, key: bytes) -> OwnImages:
    """Read ``x``, ``y`` and perhaps ``x_test``, ``y_test`` of an ``.npz`` file.

    Guarantees:
        Pixels are divided by 255, which their type declares. Each image is kept for the test by a
        coin of its own, which follows from the key; the checksum is keyed, too.

    Args:
        path: the file.
        test_fraction: share of images to test on; None takes ``x_test``, or tests nothing.
        key: secret of the run.

    Raises:
        DpvdError: if these are no images, or there are two kinds of test.
    """
    arrays = load_arrays(path)
    if not arrays.are_images:
        raise DpvdError(
            f"{path}: x has shape {arrays.x.shape} of {arrays.x.dtype}, which are no images: rows"
            " of numbers are a table, which needs a schema"
        )
    if test_fraction is not None and arrays.x_test is not None:
        raise DpvdError(f"{path} holds x_test: leave out --test-fraction")
    train, test = _parts(arrays, test_fraction, key)
    dataset = Dataset(
        name=path.name,
        train_x=_scaled(train[0]),
        train_y=torch.from_numpy(train[1]),
        test_x=_scaled(test[0]),
        test_y=torch.from_numpy(test[1]),
        classes=len(arrays.classes),
        preprocessing="pixels divided by 255; no statistic of the training data is used",
        pixels=True,
        checksum=_checksum(key, *train, *test),
    )
    return OwnImages(dataset, arrays.classes, arrays.not_covered())


_Part = tuple[np.ndarray, np.ndarray]


def _parts(arrays: ArrayData, test_fraction: float | None, key: bytes) -> tuple[_Part, _Part]:
    """Images and labels to train on, and those to test on."""
    if arrays.x_test is not None:
        assert arrays.y_test is not None  # both or neither
        return (arrays.x, arrays.y), (arrays.x_test, arrays.y_test)
    in_test = np.zeros(len(arrays.y), dtype=bool)
    if test_fraction is not None:
        in_unit_interval(test_fraction=test_fraction)
        coins = np.random.Generator(np.random.PCG64(int.from_bytes(key, "little")))
        in_test = coins.random(len(arrays.y)) < test_fraction
        if in_test.all() or not in_test.any():
            raise DpvdError(f"{len(in_test)} images are too few for this test fraction")
    return (arrays.x[~in_test], arrays.y[~in_test]), (arrays.x[in_test], arrays.y[in_test])


def _scaled(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(pixels.astype(np.float32) / np.float32(_LARGEST_PIXEL))


def _checksum(key: bytes, *arrays: np.ndarray) -> str:
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
