"""A data set in memory, and the checks it passes before anything is computed from it."""

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpvd.errors import DpvdError, positive_int

__all__ = ["Dataset", "checksum", "validate"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Inputs and labels for training and for testing, with where they come from.

    Guarantees:
        Both parts have passed `validate`, and their examples have the same shape.

    Args:
        name: short name, such as ``"digits"``.
        train_x: training inputs, one example per row, uint8 or float.
        train_y: training labels, int64, from 0 to ``classes`` - 1.
        test_x: test inputs; none at all if nothing is to be tested.
        test_y: test labels.
        classes: number of classes; public.
        preprocessing: what was done to the inputs, and that it used no statistic of the training
            data.
        pixels: whether all features are intensities of one kind, so that their mean over an example
            means something (brightness) that a model may do without.
        image: height, width and perhaps channels of an example that is stored flat; the shape of
            the examples if not given and they are pixels.
        checksum: SHA-256 of the contents as loaded; computed when not given.

    Raises:
        DpvdError: if the data fails `validate`, or training and test examples differ in shape.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    preprocessing: str
    pixels: bool = False
    checksum: str = ""
    image: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        validate(self.train_x, self.train_y, self.classes)
        if len(self.test_x) or len(self.test_y):  # none at all: there is nothing to test on
            validate(self.test_x, self.test_y, self.classes)
        test_shape = tuple(self.test_x.shape[1:])
        if self.feature_shape != test_shape:
            raise DpvdError(
                "training and test examples must have the same shape, got"
                f" {self.feature_shape} and {test_shape}"
            )
        if self.image is None and self.pixels:
            object.__setattr__(self, "image", self.feature_shape)
        if self.image is not None and math.prod(self.image) != math.prod(self.feature_shape):
            raise DpvdError(
                f"an image of shape {self.image} does not hold the {math.prod(self.feature_shape)}"
                " numbers of an example"
            )
        if not self.checksum:
            contents = checksum(self.train_x, self.train_y, self.test_x, self.test_y)
            object.__setattr__(self, "checksum", contents)

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """Shape of one example's input."""
        return tuple(self.train_x.shape[1:])


def validate(x: Tensor, y: Tensor, classes: int) -> None:
    """Raise unless inputs and labels can be trained on.

    Edge cases:
        These checks look at the training data. If one fails, only the holder of the data is told,
        and nothing is trained.

    Args:
        x: inputs, shape (n, ...).
        y: labels, shape (n,), int64.
        classes: number of classes; labels go from 0 to ``classes`` - 1.

    Raises:
        DpvdError: for empty data, lengths that differ, labels of another type or out of range, and
            inputs that are NaN or infinite; the message counts such rows and names the first.

    >>> validate(torch.zeros(2, 1), torch.tensor([0, 2]), classes=2)
    Traceback (most recent call last):
    ...
    dpvd.errors.DpvdError: 1 of 2 labels are outside 0 to 1, first row 1 (from 0): fix or drop them
    """
    positive_int(classes=classes)
    if y.ndim != 1 or y.dtype != torch.int64:
        raise DpvdError(
            f"labels must be one int64 per example, got shape {tuple(y.shape)} of {y.dtype}"
        )
    if x.ndim < 2 or len(x) != len(y):
        raise DpvdError(
            f"inputs must be one row for each of {len(y)} labels, got shape {tuple(x.shape)}"
        )
    if x.numel() == 0:
        raise DpvdError(f"the data is empty: inputs have shape {tuple(x.shape)}")
    extremes = torch.stack(torch.aminmax(x))
    if not torch.isfinite(extremes).all():  # one quick pass; rows are looked for only if it fails
        finite = torch.isfinite(x).reshape(len(x), -1).all(dim=1)  # [n]
        _refuse_rows(~finite, "rows of the inputs contain NaN or infinity")
    outside = (y < 0) | (y >= classes)
    _refuse_rows(outside, f"labels are outside 0 to {classes - 1}")


def checksum(*tensors: Tensor) -> str:
    """Return the SHA-256 over type, shape and contents of the tensors, in order.

    >>> checksum(torch.tensor([1, 2])) == checksum(torch.tensor([[1, 2]]))
    False
    """
    digest = hashlib.sha256()
    for tensor in tensors:
        header = f"{tensor.dtype} {tuple(tensor.shape)};"
        values = tensor.detach().cpu().contiguous()
        digest.update(header.encode())
        digest.update(values.numpy().data)
    return digest.hexdigest()


def _refuse_rows(bad: Tensor, complaint: str) -> None:
    rows = bad.nonzero().flatten()
    if len(rows):
        raise DpvdError(
            f"{len(rows)} of {len(bad)} {complaint}, first row {int(rows[0])} (from 0): fix or"
            " drop them"
        )
