"""The compiled kernels if they were built, and two functions by them: Dawson's, sums of squares.

Without the kernels NumPy computes the same values, bit for bit, by `reference`.
"""

import os
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

import numpy as np
import numpy.typing as npt
from scipy.special import dawsn

from dpvd.errors import DpvdError
from dpvd.native import reference

__all__ = [
    "Implementation",
    "add_dawson",
    "implementation_in_use",
    "kernels_in_use",
    "row_squares",
    "useful_threads",
]

_VALUES_PER_THREAD = 1 << 15  # for fewer, waking a thread costs more than it saves (docs/noise.md)
_CHUNK = 65_536  # entries at a time: their temporaries fit the cache

_Single = npt.NDArray[np.float32]
_Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]


def _load_kernels() -> ModuleType | None:
    try:
        return import_module("dpvd.native._kernels")
    except ImportError:  # not built, or built for another system
        return None


_kernels = _load_kernels()


def kernels_in_use() -> ModuleType | None:
    """The compiled kernels, unless they are missing or DPVD_NATIVE=0 switches them off."""
    if os.environ.get("DPVD_NATIVE") == "0":
        return None
    return _kernels


def useful_threads(threads: int, count: int) -> int:
    """Return how many of the threads allowed are worth waking for this many values.

    >>> useful_threads(8, 1000), useful_threads(2, 1_000_000)
    (1, 2)
    """
    worthwhile = count // _VALUES_PER_THREAD
    return max(1, min(threads, worthwhile))


@dataclass(frozen=True)
class Implementation:
    """What draws noise in this process.

    Attributes:
        compiled: whether the compiled kernels do; NumPy otherwise.
        transform: instruction set of the transform.
        cipher: what writes the key stream.
        hint: what to do for more speed, or an empty string.
    """

    compiled: bool
    transform: str
    cipher: str
    hint: str


def implementation_in_use() -> Implementation:
    """Say what draws noise in this process.

    >>> isinstance(implementation_in_use().compiled, bool)
    True
    """
    kernels = kernels_in_use()
    if kernels is not None:
        return Implementation(True, kernels.TRANSFORM, kernels.CIPHER or "openssl", "")
    if _kernels is not None:
        return Implementation(
            False, "numpy", "openssl", "DPVD_NATIVE=0 switches the compiled kernels off: unset it"
        )
    hint = (
        "the compiled kernels were not built: install a C compiler, then dpvd again, for noise"
        " several times as fast"
    )
    return Implementation(False, "numpy", "openssl", hint)


def row_squares(x: _Single, scale: _Single | None = None, *, threads: int = 1) -> _Single:
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
    _check_rows(x, scale)
    kernels = kernels_in_use()
    if kernels is None:
        return reference.row_squares(x, scale)
    out = np.empty(len(x), np.float32)
    kernels.row_squares(x, scale, out, useful_threads(threads, x.size))
    return out


def add_dawson(out: _Floats, x: _Floats, inner: float, outer: float, *, threads: int = 1) -> None:
    """Add outer · D(inner · x) to ``out``, in one pass.

    Guarantees:
        In float32 the relative error of D is at most 1e-6 for every x, and the result is the same
        bit for bit with or without the compiled kernels and on any number of threads. In float64 D
        is SciPy's.

    Edge cases:
        ``x`` may be ``out`` itself. D(0) = 0, D(±∞) = ±0, NaN stays NaN.

    Args:
        out: contiguous, one-dimensional, writeable, float32 or float64.
        x: of the same size and dtype.
        inner, outer: factors.
        threads: most threads to use.

    Raises:
        DpvdError: if an array is not of this form.

    >>> out = np.ones(2)
    >>> add_dawson(out, np.array([0.0, 0.5]), 2.0, 10.0)
    >>> out.round(4).tolist()
    [1.0, 6.3808]
    """
    _check_vectors(out, x)
    kernels = kernels_in_use()
    if kernels is not None and out.dtype == np.float32:
        kernels.add_dawson(x, out, inner, outer, useful_threads(threads, len(out)))
        return
    real = out.dtype.type  # float32 or float64
    dawson = reference.dawson if real is np.float32 else dawsn
    rounded_inner = real(inner)
    rounded_outer = real(outer)
    for begin in range(0, len(out), _CHUNK):
        chunk = slice(begin, begin + _CHUNK)
        scaled = rounded_inner * x[chunk]
        out[chunk] += rounded_outer * dawson(scaled)


def _check_rows(x: _Single, scale: _Single | None) -> None:
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


def _check_vectors(out: _Floats, x: _Floats) -> None:
    is_float = out.dtype in (np.float32, np.float64)
    suitable = is_float and out.ndim == 1 and out.flags.carray
    alike = x.dtype == out.dtype and x.shape == out.shape
    readable = x.flags.c_contiguous and x.flags.aligned
    if not (suitable and alike and readable):
        raise DpvdError(
            "the Dawson function is added to a contiguous, writeable, one-dimensional array of"
            f" float32 or float64, from a contiguous one like it; got {out.dtype} of shape"
            f" {out.shape} and {x.dtype} of shape {x.shape}"
        )
