"""Classes as points: the corners of a regular simplex."""

import torch
from torch import Tensor

from dpvd.errors import DpvdError

__all__ = ["class_codes"]


def class_codes(classes: int) -> Tensor:
    """Vectors of length 1 that are all equally far from each other and add up to zero.

    As targets they have the length of one-hot vectors, and are further apart: 2 against √2 for two
    classes, at the same noise.

    Returns:
        float64 [classes, classes - 1]; ``[[-1], [1]]`` for two classes.

    >>> class_codes(2).flatten().tolist()
    [-1.0, 1.0]
    """
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 2:
        raise DpvdError(f"classes must be a whole number of at least 2, got {classes!r}")
    codes = torch.zeros(classes, classes - 1, dtype=torch.float64)
    for column in range(classes - 1):
        # Each coordinate tells one class from those after it.
        left = classes - 1 - column
        remaining = 1 - codes[column, :column].square().sum()
        codes[column, column] = -remaining.sqrt()
        codes[column + 1 :, column] = remaining.sqrt() / left
    return codes
