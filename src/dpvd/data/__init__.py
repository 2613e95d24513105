"""Data sets, their checks, and preprocessing that needs no privacy budget."""

from pathlib import Path

from dpvd.data.dataset import Dataset, validate
from dpvd.data.digits import load_digits
from dpvd.data.mnist import load_mnist
from dpvd.data.preprocessing import centred, flatten, prepare, unit_norm
from dpvd.errors import DpvdError

__all__ = [
    "Dataset",
    "centred",
    "flatten",
    "load",
    "load_digits",
    "load_mnist",
    "prepare",
    "unit_norm",
    "validate",
]


def load(name: str, data_dir: Path | None = None) -> Dataset:
    """Return the data set with this name.

    Args:
        name: ``"digits"`` or ``"mnist"``.
        data_dir: where to look for files first; DIGITS needs none.

    Raises:
        DpvdError: for another name, or if the data cannot be had.

    >>> load("digits").train_x.shape
    torch.Size([1437, 64])
    """
    if name == "digits":
        return load_digits()
    if name == "mnist":
        return load_mnist(data_dir)
    raise DpvdError(f"data set must be one of digits, mnist; got {name!r}")
