"""The Dawson function D(x) = e^(-x²) ∫₀ˣ e^(s²) ds, compiled, or by NumPy with equal results."""

import numpy as np
import numpy.typing as npt
from scipy.special import dawsn

from dpvd.errors import DpvdError
from dpvd.native.draws import kernels_in_use, useful_threads
from dpvd.native.reference import polynomial

__all__ = ["add_dawson"]

# D(x) ≈ x P(x²) / Q(x²), highest power first, by tools/dawson_rational.py.
# The common factor 2^-40 keeps both finite.
_P = (
    9.831774e-19,
    2.8292458e-18,
    9.453785e-17,
    7.27154e-16,
    5.520538e-15,
    3.85613e-14,
    7.677518e-14,
    9.0949465e-13,
)
_Q = (
    1.966355e-18,
    4.674986e-18,
    1.8534829e-16,
    1.3461277e-15,
    1.0604392e-14,
    6.020649e-14,
    2.5145746e-13,
    6.831017e-13,
    9.094947e-13,
)
_FAR = 4e6  # of x²: from here on D(x) is 1/(2x) to 2e-7
_CHUNK = 65_536  # entries at a time: their temporaries fit the cache

_Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]


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
    _check(out, x)
    kernels = kernels_in_use()
    if kernels is not None and out.dtype == np.float32:
        kernels.add_dawson(x, out, inner, outer, useful_threads(threads, len(out)))
        return
    real = out.dtype.type  # float32 or float64
    dawson = _single if real is np.float32 else dawsn
    rounded_inner = real(inner)
    rounded_outer = real(outer)
    for begin in range(0, len(out), _CHUNK):
        chunk = slice(begin, begin + _CHUNK)
        scaled = rounded_inner * x[chunk]
        out[chunk] += rounded_outer * dawson(scaled)


def _single(x: _Floats) -> _Floats:
    """What dawson.c computes, operation by operation."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # in what is not selected
        z = x * x
        far = z > np.float32(_FAR)
        numerator = np.where(far, np.float32(0.5), polynomial(_P, z))
        denominator = np.where(far, x, polynomial(_Q, z))
        factor = np.where(far, np.float32(1), x)
        ratio = numerator / denominator
        return factor * ratio


def _check(out: _Floats, x: _Floats) -> None:
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
