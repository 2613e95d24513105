"""Preprocessing that looks at one example at a time.

A mean or a maximum over the training set would be a release of its own, outside the privacy
account. Nothing here computes one: what happens to an example depends on that example alone.
"""

from dataclasses import replace

import torch
from torch import Tensor

from dpvd.data.dataset import Dataset

__all__ = ["centred", "flatten", "prepare", "unit_norm"]


def flatten(x: Tensor) -> Tensor:
    """Return the inputs as a matrix, one example per row.

    >>> flatten(torch.zeros(5, 28, 28)).shape
    torch.Size([5, 784])
    """
    features = x.shape[1:].numel()
    return x.reshape(x.shape[0], features)  # len(x) would fix the number when traced


def unit_norm(x: Tensor) -> Tensor:
    """Return every example divided by its L2 norm, x_i / ‖x_i‖₂.

    Edge cases:
        An example of zeros stays zero. Values so large or so small that their squares leave the
        range of the type are handled: an example is first divided by its largest magnitude.

    Args:
        x: inputs, shape (n, ...); integers become float32, floats keep their type.

    Returns:
        A new tensor of the same shape.

    >>> unit_norm(torch.tensor([[3, 4], [0, 0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    values = x if x.is_floating_point() else x.to(torch.float32)
    rows = flatten(values)  # [n, features]
    largest = rows.abs().amax(dim=1, keepdim=True)  # [n, 1]
    largest = torch.where(largest > 0, largest, 1)
    scaled = rows / largest
    norms = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)  # [n, 1]: 0, or from 1 to √d
    norms = torch.where(norms > 0, norms, 1)
    unit = scaled.div_(norms)
    return unit.reshape(x.shape)


def centred(x: Tensor) -> Tensor:
    """Return every example minus its own mean over features.

    Pixels are never negative, so images share a large common component that tells them apart no
    better than a constant would; a gradient bounded in norm should not be spent on it.

    Args:
        x: inputs, shape (n, features), floating point.

    >>> centred(torch.tensor([[1.0, 3.0], [5.0, 5.0]]))
    tensor([[-1.,  1.],
            [ 0.,  0.]])
    """
    means = x.mean(dim=1, keepdim=True)  # [n, 1]
    return x - means


def prepare(dataset: Dataset) -> Dataset:
    """Return the data set with every example flattened and scaled to L2 norm 1, and saying so.

    The checksum stays that of the contents as loaded.
    """
    return replace(
        dataset,
        train_x=flatten(unit_norm(dataset.train_x)),
        test_x=flatten(unit_norm(dataset.test_x)),
        preprocessing=f"{dataset.preprocessing}; then each example by itself scaled to L2 norm 1",
    )
