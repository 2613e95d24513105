"""Arrays of numbers in files as tables: the columns of x are x0, x1, ..., and y is one, too."""

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl

from dpvd.data.arrays import check_archive, read_archive, read_file
from dpvd.data.frames import from_frame
from dpvd.data.source import BATCH_ROWS, TableSource
from dpvd.errors import DpvdError

__all__ = ["ARRAY_ENDINGS", "array_table", "array_test", "holds_images"]

ARRAY_ENDINGS = (".npz", ".npy")


def holds_images(path: str | Path) -> bool:
    """Whether an ``.npz`` or ``.npy`` file holds other arrays than rows of numbers.

    Only the beginning of the array is read. A file that cannot be read holds no rows.
    """
    path = Path(path)
    try:
        if path.suffix.lower() == ".npy":
            with path.open("rb") as file:
                return len(_shape(file)) != 2
        with zipfile.ZipFile(path) as archive, archive.open("x.npy") as entry:
            return len(_shape(entry)) != 2
    except Exception:  # whatever a damaged file provokes: reading all of it says what is wrong
        return True


def array_table(path: Path) -> TableSource:
    """Return the rows in an array file as a table.

    Args:
        path: ``.npy`` with x, or ``.npz`` with x and perhaps y; x has shape (n, columns).

    Raises:
        DpvdError: for a damaged file, other shapes and other types.
    """
    if path.suffix.lower() == ".npy":
        x = read_file(path)
        return _source(str(path), x, None)
    arrays = _archive(path)
    return _source(str(path), arrays["x"], arrays.get("y"))


def array_test(path: Path) -> TableSource | None:
    """Return the rows to test on, ``x_test`` and ``y_test`` of an ``.npz`` file, if it has some."""
    if path.suffix.lower() != ".npz":
        return None
    arrays = _archive(path)
    if "x_test" not in arrays:
        return None
    return _source(f"{path}, x_test", arrays["x_test"], arrays["y_test"])


def _archive(path: Path) -> dict[str, np.ndarray]:
    check_archive(path)
    arrays = read_archive(path)
    allowed = ("x", "y", "x_test", "y_test")
    if "x" not in arrays or not set(arrays) <= set(allowed):
        raise DpvdError(
            f"{path} must hold the array x, and may hold y, x_test and y_test; it holds"
            f" {', '.join(sorted(arrays)) or 'none'}"
        )
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DpvdError(f"{path} must hold both x_test and y_test, or neither")
    return arrays


def _source(name: str, x: np.ndarray, y: np.ndarray | None) -> TableSource:
    if x.ndim != 2 or x.shape[1] == 0:
        raise DpvdError(f"{name}: a table of numbers has shape (n, columns), got {x.shape}")
    if x.dtype.kind not in "biuf":
        raise DpvdError(f"{name}: x must be numbers, got {x.dtype}")
    if y is not None and (y.shape != (len(x),) or y.dtype.kind not in "biufU"):
        raise DpvdError(
            f"{name}: y must be {len(x)} numbers or texts, one for each row of x; got {y.dtype} of"
            f" shape {y.shape}"
        )
    columns = tuple(f"x{place}" for place in range(x.shape[1]))
    names = columns if y is None else (*columns, "y")
    return TableSource(name, names, _batches(columns, x, y), in_memory=True)


def _batches(
    columns: tuple[str, ...], x: np.ndarray, y: np.ndarray | None
) -> Callable[[], Iterator[pl.DataFrame]]:
    def batches() -> Iterator[pl.DataFrame]:
        for start in range(0, len(x), BATCH_ROWS):
            rows = slice(start, start + BATCH_ROWS)
            cells = {name: x[rows, place] for place, name in enumerate(columns)}
            if y is not None:
                cells["y"] = y[rows]
            yield from from_frame(cells).batches()

    return batches


def _shape(file: object) -> tuple[int, ...]:
    version = np.lib.format.read_magic(file)  # type: ignore[arg-type]
    reading = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    shape: tuple[int, ...] = reading[version](file)[0]  # type: ignore[arg-type]
    return shape
