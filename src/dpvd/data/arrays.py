"""Arrays in ``.npz`` and ``.npy`` files: features or images, and labels."""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpvd.data.words import canonical_text, shortened
from dpvd.errors import DpvdError

__all__ = [
    "ArrayData",
    "check_archive",
    "load_arrays",
    "read_archive",
    "read_array",
    "read_file",
]

_NAMES = ("x", "y", "x_test", "y_test")
_ZIP = b"PK\x03\x04"
_NPY = b"\x93NUMPY"
# A file that claims to unpack to more than both of these was made to fill the memory.
_LARGEST_UNPACKED = 4 * 2**30  # bytes
_LARGEST_RATIO = 200
_ROWS_AT_A_TIME = 4096


@dataclass(frozen=True, eq=False)
class ArrayData:
    """Inputs and labels from a file of arrays.

    Args:
        x: inputs as stored, one example per row: uint8 images (n, h, w) or (n, h, w, channels), or
            numbers (n, features).
        y: position of each example's class, int64, shape (n,).
        x_test: inputs to test on, or None.
        y_test: their labels, or None.
        classes: names of the classes.
        declared: whether whoever loaded the file named the classes; otherwise they were read off
            the labels.
    """

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray | None
    y_test: np.ndarray | None
    classes: tuple[str, ...]
    declared: bool

    @property
    def are_images(self) -> bool:
        """Whether the inputs are pixels from 0 to 255: bounds that the type declares."""
        return self.x.dtype == np.uint8 and self.x.ndim in (3, 4)

    def not_covered(self) -> tuple[str, ...]:
        """Return what was read off the data without noise, in words for a statement."""
        return () if self.declared else ("classes of y",)


def load_arrays(path: str | Path, *, classes: Sequence[str] | None = None) -> ArrayData:
    """Return the arrays ``x``, ``y`` and, if they are there, ``x_test``, ``y_test`` of an ``.npz``.

    Guarantees:
        Nothing in the file is run: arrays of Python objects are refused.

    Args:
        path: the file.
        classes: names of all classes; read off the labels if not given.

    Raises:
        DpvdError: naming the array, for shapes, types or values that cannot be trained on.
    """
    path = Path(path)
    check_archive(path)
    arrays = read_archive(path)
    unknown = [name for name in arrays if name not in _NAMES]
    if unknown or "x" not in arrays or "y" not in arrays:
        raise DpvdError(
            f"{path} must hold the arrays x and y, and may hold x_test and y_test; it holds"
            f" {', '.join(sorted(arrays)) or 'none'}"
        )
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DpvdError(f"{path} must hold both x_test and y_test, or neither")
    for inputs, labels in (("x", "y"), ("x_test", "y_test")):
        if inputs in arrays:
            _check_inputs(arrays[inputs], f"{path}: {inputs}")
            _check_labels(arrays[labels], len(arrays[inputs]), f"{path}: {labels}")
    if "x_test" in arrays and arrays["x"].shape[1:] != arrays["x_test"].shape[1:]:
        raise DpvdError(
            f"{path}: x and x_test must have examples of one shape, got {arrays['x'].shape[1:]} and"
            f" {arrays['x_test'].shape[1:]}"
        )
    names = _class_names(arrays["y"], classes, path)
    x_test = arrays.get("x_test")
    y_test = _codes(arrays["y_test"], names, f"{path}: y_test") if "y_test" in arrays else None
    codes = _codes(arrays["y"], names, f"{path}: y")
    return ArrayData(arrays["x"], codes, x_test, y_test, names, classes is not None)


def read_array(path: str | Path) -> np.ndarray:
    """Return the inputs in an ``.npy`` file, or the array ``x`` of an ``.npz``; for prediction.

    Raises:
        DpvdError: for a file that is none, and for shapes, types or values that are not allowed.
    """
    path = Path(path)
    if path.suffix.lower() == ".npz":
        check_archive(path)
        arrays = read_archive(path)
        if "x" not in arrays:
            raise DpvdError(f"{path} holds no array x")
        array = arrays["x"]
    else:
        array = read_file(path)
    _check_inputs(array, str(path))
    return array


def check_archive(path: Path) -> None:
    """Raise unless the file is an ``.npz`` that can be unpacked."""
    _check_file(path, ".npz", _ZIP)
    _refuse_bomb(path)


def read_file(path: Path) -> np.ndarray:
    """Return the array in an ``.npy`` file; Python objects in it are refused."""
    _check_file(path, ".npy", _NPY)
    try:
        array: np.ndarray = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError, MemoryError) as error:
        raise DpvdError(_broken(path, error)) from error
    except Exception as error:  # what a header provokes that is no Python text
        raise DpvdError(f"{path} is damaged ({type(error).__name__}): write it again") from error
    return array


def read_archive(path: Path) -> dict[str, np.ndarray]:
    """Return all arrays in an ``.npz`` file by name; Python objects in it are refused."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, MemoryError) as error:
        raise DpvdError(_broken(path, error)) from error
    except Exception as error:  # zlib.error and others that a damaged archive provokes
        raise DpvdError(f"{path} is damaged ({type(error).__name__}): write it again") from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # a member that does not begin like an array
            raise DpvdError(f"{path}: {shortened(name)} is no array: write it again with np.savez")
    return arrays


def _broken(path: Path, error: Exception) -> str:
    if "pickle" in str(error).lower():
        return (
            f"{path} holds Python objects, and reading them would run code: save arrays of numbers"
            " or of texts"
        )
    return f"{path} is damaged ({shortened(str(error)) or type(error).__name__}): write it again"


def _check_file(path: Path, ending: str, signature: bytes) -> None:
    if path.suffix.lower() != ending:
        raise DpvdError(f"the name of the file must end with {ending}; got {path.name}")
    try:
        if path.is_dir():
            raise DpvdError(f"{path} is a folder: name an {ending} file")
        with path.open("rb") as file:
            start = file.read(len(signature))
    except FileNotFoundError as error:
        raise DpvdError(f"there is no file {path}") from error
    except OSError as error:
        raise DpvdError(f"{path} cannot be read ({error.strerror})") from error
    if start != signature:
        raise DpvdError(f"{path} is no {ending} file, though its name says so")


def _refuse_bomb(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
        raise DpvdError(_broken(path, error)) from error
    if unpacked > _LARGEST_UNPACKED and unpacked > _LARGEST_RATIO * path.stat().st_size:
        raise DpvdError(
            f"{path} would unpack to {unpacked / 2**30:.0f} GB, more than {_LARGEST_RATIO} times"
            " its size: save it with np.savez, without compression, if that is meant"
        )


def _check_inputs(x: np.ndarray, where: str) -> None:
    if x.dtype.kind not in "biuf":
        raise DpvdError(f"{where} must be numbers, got {x.dtype}")
    if x.ndim not in (2, 3, 4):
        raise DpvdError(
            f"{where} must have shape (n, features), (n, h, w) or (n, h, w, channels), got"
            f" {x.shape}"
        )
    if x.size == 0:
        raise DpvdError(f"{where} is empty: it has shape {x.shape}")
    if x.ndim > 2 and x.dtype != np.uint8:
        raise DpvdError(
            f"{where} must be uint8 if it holds images, got {x.dtype}: pixels from 0 to 255 have"
            " bounds that are known without the data"
        )
    if x.dtype.kind != "f":
        return
    for start in range(0, len(x), _ROWS_AT_A_TIME):
        finite = np.isfinite(x[start : start + _ROWS_AT_A_TIME]).all(axis=1)
        if not finite.all():
            row = start + int((~finite).argmax())
            raise DpvdError(f"{where} has NaN or infinity in row {row}, counted from 0")


def _check_labels(y: np.ndarray, examples: int, where: str) -> None:
    if y.ndim != 1 or len(y) != examples:
        raise DpvdError(
            f"{where} must have one label for each of {examples} examples, got shape {y.shape}"
        )
    if y.dtype.kind not in "biuU":
        raise DpvdError(f"{where} must be integers or texts, got {y.dtype}")


def _class_names(y: np.ndarray, declared: Sequence[str] | None, path: Path) -> tuple[str, ...]:
    if declared is None:
        names = tuple(canonical_text(value) for value in np.unique(y).tolist())
    else:
        names = tuple(canonical_text(value) for value in declared)
    if len(set(names)) != len(names):
        raise DpvdError(f"{path}: two classes have the same name")
    if len(names) < 2:
        raise DpvdError(f"{path}: y must have two classes or more, got {list(names)}")
    return names


def _codes(y: np.ndarray, names: tuple[str, ...], where: str) -> np.ndarray:
    """Return each label's position among the names, int64."""
    values, inverse = np.unique(y, return_inverse=True)
    texts = [canonical_text(value) for value in values.tolist()]
    unknown = [text for text in texts if text not in names]
    if unknown:
        raise DpvdError(f"{where} has a label which is none of the classes {', '.join(names[:20])}")
    positions = np.array([names.index(text) for text in texts], dtype=np.int64)
    return positions[inverse]
