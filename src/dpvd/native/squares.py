"""Sums of squares of the rows of a matrix: compiled, or by NumPy with the same results."""

import numpy as np
import numpy.typing as npt

from dpvd.errors import DpvdError
from dpvd.native.draws import kernels_in_use, useful_threads

__all__ = ["row_squares"]

_LANES = 16  # as in squares.c
_CHUNK = 65_536  # entries at a time: their temporaries fit the cache

_Floats = npt.NDArray[np.float32]


def row_squares(x: _Floats, scale: _Floats | None = None, *, threads: int = 1) -> _Floats:
    """Return Σ_j (s_j x_ij)² for every row of a matrix and a scale s, or 1 in its place.

    Guarantees:
        s_j x_ij is rounded to float32. The rest is made in double precision, in which the squares
        are exact, and rounded once: it is the float32 nearest to the true sum but for a part in 10⁸
        of all cases, where it is the next one. The number of threads makes no difference.

    Edge cases:
        Rows without columns sum to 0. NaN stays NaN; what float32 cannot hold is infinite.

    Args:
        x: contiguous, two-dimensional, float32.
        scale: contiguous, float32, one value for each column.
        threads: most threads to use.

    Raises:
        DpvdError: if an array is not of this form.

    >>> row_squares(np.array([[3, 4], [0, 1]], np.float32)).tolist()
    [25.0, 1.0]
    """
    _check(x, scale)
    kernels = kernels_in_use()
    if kernels is None:
        return _by_numpy(x, scale)
    out = np.empty(len(x), np.float32)
    kernels.row_squares(x, scale, out, useful_threads(threads, x.size))
    return out


def _by_numpy(x: _Floats, scale: _Floats | None) -> _Floats:
    """What squares.c computes, addition by addition."""
    rows, columns = x.shape
    out = np.empty(rows, np.float32)
    step = max(1, _CHUNK // max(1, columns))
    missing = -columns % _LANES
    with np.errstate(over="ignore", invalid="ignore"):
        for begin in range(0, rows, step):
            chunk = x[begin : begin + step]
            scaled = chunk if scale is None else chunk * scale
            exact = scaled.astype(np.float64)
            squares = np.pad(exact * exact, ((0, 0), (0, missing)))
            by_lane = squares.reshape(len(chunk), -1, _LANES)
            sums = by_lane.sum(axis=1)  # [rows, lanes]
            totals = np.add.accumulate(sums, axis=1)  # one lane after the other, as in C
            out[begin : begin + step] = totals[:, -1]
    return out


def _check(x: _Floats, scale: _Floats | None) -> None:
    arrays = [x] if scale is None else [x, scale]
    simple = all(a.dtype == np.float32 and a.flags.c_contiguous and a.flags.aligned for a in arrays)
    fits = scale is None or scale.shape == x.shape[1:]
    if not simple or x.ndim != 2 or not fits:
        found = " and ".join(
            f"{a.dtype} of shape {a.shape} with strides {a.strides}" for a in arrays
        )
        raise DpvdError(
            "sums of squares are made of a contiguous, two-dimensional array of float32, and a"
            f" scale like one of its rows; got {found}"
        )
