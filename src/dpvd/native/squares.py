"""Sums of squares of the rows of a matrix: compiled, or by NumPy with the same results."""

import numpy as np
import numpy.typing as npt

from dpvd.errors import DpvdError
from dpvd.native.implementation import kernels_in_use, useful_threads

__all__ = ["row_squares"]

_LANES = 16  # as in squares.c
_PIECE = 65_536  # entries at a time: their temporaries fit the cache


def row_squares(x: npt.NDArray[np.float32], *, threads: int = 1) -> npt.NDArray[np.float32]:
    """Return Σ_j x_ij² for every row of a matrix.

    Guarantees:
        The sum is made in double precision, in which the squares are exact, and rounded once: it is the float32
        nearest to the true sum but for a part in 10⁸ of all cases, where it is the next one. The number of threads
        makes no difference.

    Edge cases:
        Rows without columns sum to 0. NaN stays NaN; what float32 cannot hold is infinite.

    Args:
        x: contiguous, two-dimensional, float32.
        threads: most threads to use.

    Raises:
        DpvdError: if the array is not of this form.

    >>> row_squares(np.array([[3, 4], [0, 1]], np.float32)).tolist()
    [25.0, 1.0]
    """
    if x.dtype != np.float32 or x.ndim != 2 or not (x.flags.c_contiguous and x.flags.aligned):
        raise DpvdError(
            "sums of squares are made of a contiguous, two-dimensional array of float32; "
            f"got {x.dtype} of shape {x.shape} with strides {x.strides}"
        )
    kernels = kernels_in_use()
    if kernels is None:
        return _by_numpy(x)
    out = np.empty(len(x), np.float32)
    kernels.row_squares(x, out, useful_threads(threads, x.size))
    return out


def _by_numpy(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """What squares.c computes, addition by addition."""
    rows, columns = x.shape
    out = np.empty(rows, np.float32)
    step = max(1, _PIECE // max(1, columns))
    for begin in range(0, rows, step):
        part = x[begin : begin + step].astype(np.float64)
        part = np.pad(part * part, ((0, 0), (0, -columns % _LANES)))
        sums = part.reshape(len(part), -1, _LANES).sum(axis=1)
        with np.errstate(over="ignore"):
            out[begin : begin + step] = np.add.accumulate(sums, axis=1)[:, -1]
    return out
