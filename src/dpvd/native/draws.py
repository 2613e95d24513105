"""Key stream, layers' noise, and noise on a grid for sums that must be protected.

By the compiled kernels if they were built, else by NumPy and OpenSSL.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpvd.errors import DpvdError
from dpvd.native import reference
from dpvd.native.kernels import kernels_in_use, useful_threads

__all__ = [
    "BLOCK_BYTES",
    "BLOCK_DRAWS",
    "EXACT_BLOCK_BYTES",
    "EXACT_BLOCK_DRAWS",
    "MOST_UNITS_PER_STD",
    "GridScale",
    "bytes_for",
    "draw_from_bytes",
    "draw_from_key",
    "exact_bytes_for",
    "exact_normals",
    "release_from_bytes",
    "release_from_key",
    "write_key_stream",
]

BLOCK_DRAWS = 2 * reference.BLOCK_PAIRS
"""Draws of one block. A long draw may be split between blocks."""

BLOCK_BYTES = reference.BLOCK_PAIRS * reference.BYTES_PER_PAIR
"""Bytes that one block takes."""

EXACT_BLOCK_DRAWS = 2 * reference.EXACT_PAIRS
"""Draws of one block in double precision."""

EXACT_BLOCK_BYTES = reference.EXACT_PAIRS * reference.EXACT_BYTES_PER_PAIR
"""Bytes that one block takes."""

MOST_UNITS_PER_STD = 2.0**47
"""Draws are at most 10.13 and sums cut at 2^51 units: their sum is a whole number below 2^53."""

_MOST_UNITS = 2.0**51  # of a sum, as in release.c
_EXACT_BLOCKS_AT_ONCE = 32  # temporaries of NumPy fit the second-level cache
_BLOCKS_AT_ONCE = 16  # by timings (docs/noise.md): fewer pay for calls, more for memory
_KEY_SIZE = 32
_STREAM_SIZE = 1 << 64

_Bytes = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.float32]
_Doubles = npt.NDArray[np.float64]
_Entries = npt.NDArray[np.float32] | npt.NDArray[np.float64]


def bytes_for(count: int) -> int:
    """Return how many bytes ``count`` draws take.

    >>> bytes_for(3)
    24
    """
    pairs = (count + 1) // 2
    return pairs * reference.BYTES_PER_PAIR


def write_key_stream(key: bytes, start: int, out: _Bytes) -> None:
    """Overwrite ``out`` with the key stream of AES-256 in counter mode, from byte ``start`` on.

    The counter starts at 0.

    Args:
        key: 32 bytes.
        start: at least 0; the stream ends after 2^64 bytes.
        out: contiguous, one-dimensional and writeable.

    Raises:
        DpvdError: if the key has another size or the stream ends before.
    """
    _check_stream(key, start, len(out))
    kernels = kernels_in_use()
    if kernels is not None and kernels.CIPHER:
        kernels.key_stream(key, start, out)
    else:
        reference.write_key_stream(key, start, out.data)


def draw_from_key(
    out: _Floats, std: float, key: bytes, start: int = 0, *, threads: int = 1
) -> None:
    """Overwrite ``out`` with independent draws from N(0, std²), made from a key stream.

    This noise is for layers. What protects data is drawn in double precision, by
    `release_from_key`.

    Guarantees:
        The same key, start and count give the same draws, bit for bit, whatever the implementation,
        the threads and the machine. The result is std · draw, rounded.

    Edge cases:
        No draws are legal. Small draws use one thread however many are allowed.

    Args:
        out: contiguous, one-dimensional, float32.
        std: standard deviation.
        key: 32 bytes.
        start: byte of the key stream to begin at; ``bytes_for(len(out))`` bytes are used.
        threads: most threads to use.

    Raises:
        DpvdError: if an array or the key is not of this form.
    """
    _check_out(out)
    count = len(out)
    _check_stream(key, start, bytes_for(count))
    kernels = kernels_in_use()
    if kernels is not None and kernels.CIPHER:
        threads = useful_threads(threads, count)
        kernels.normals_from_stream(key, start, out, std, threads)
        return
    step = _BLOCKS_AT_ONCE * BLOCK_DRAWS
    longest = bytes_for(min(count, step))
    buffer = np.empty(longest, dtype=np.uint8)
    for begin in range(0, count, step):
        chunk = out[begin : begin + step]
        size = bytes_for(len(chunk))
        raw = buffer[:size]
        write_key_stream(key, start + bytes_for(begin), raw)
        draw_from_bytes(chunk, std, raw)


def draw_from_bytes(out: _Floats, std: float, raw: _Bytes) -> None:
    """Overwrite ``out`` with independent draws from N(0, std²), made from random bytes.

    The draws are those that `draw_from_key` makes when its key stream has these bytes.

    Args:
        out: contiguous, one-dimensional, float32.
        std: standard deviation.
        raw: ``bytes_for(len(out))`` independent, uniformly random bytes, contiguous.

    Raises:
        DpvdError: if an array is not of this form.
    """
    _check_out(out)
    _check_bytes(raw, len(out), bytes_for(len(out)))
    kernels = kernels_in_use()
    if kernels is not None:
        kernels.normals_from_bytes(raw, out, std)
        return
    reference.normals(raw, out)
    out *= np.float32(std)


@dataclass(frozen=True)
class GridScale:
    """How sums and noise are laid on a grid, and what becomes of its units.

    Attributes:
        unit: γ, a power of two.
        std: standard deviation of the noise, at most 2^47 units.
        factor: what the noisy sum is multiplied by.
    """

    unit: float
    std: float
    factor: float


def exact_bytes_for(count: int) -> int:
    """How many random bytes ``count`` draws are made of.

    >>> exact_bytes_for(3)
    32
    """
    pairs = (count + 1) // 2
    return pairs * reference.EXACT_BYTES_PER_PAIR


def exact_normals(out: _Doubles, raw: _Bytes) -> None:
    """Overwrite ``out`` with independent draws from N(0, 1) in double precision.

    Guarantees:
        A draw is off by at most 5 · 2^-53 of its size from the transform of its bits
        (`reference.exact_normals` has the definition). Compiled and NumPy's draws agree to 1e-14,
        not bit for bit.

    Args:
        out: contiguous, one-dimensional, float64.
        raw: ``exact_bytes_for(len(out))`` independent, uniformly random bytes, contiguous.

    Raises:
        DpvdError: if an array is not of this form.
    """
    _check_entries(out)
    _check_bytes(raw, len(out), exact_bytes_for(len(out)))
    kernels = kernels_in_use()
    if kernels is not None:
        kernels.exact_from_bytes(raw, out)
    else:
        reference.exact_normals(raw, out)


def release_from_key(
    sums: _Entries,
    parameters: _Entries | None,
    scale: GridScale,
    key: bytes,
    start: int = 0,
    *,
    threads: int = 1,
) -> None:
    """Add Gaussian noise to sums, on a grid, in one pass.

    With n a draw from N(0, 1) of its own for each entry, and whole numbers rounded to the nearest,

        noisy = γ (round(sum / γ) + round(std · n / γ))
        parameter ← parameter + factor · noisy,   sum ← 0       with parameters
        sum ← factor · noisy                                    without

    Guarantees:
        The noisy sum is exact, in double precision; the result is rounded once, to the type of the
        entries. The same key, start and count give the same noise on one machine, on any number of
        threads. Compiled and NumPy's results differ by one γ now and then, where a draw falls
        between two whole numbers.

    Edge cases:
        A sum beyond 2^51 γ is cut to that: no two sums come further apart. NaN is cut like
        infinity. No entries are legal.

    Args:
        sums: contiguous, one-dimensional, float32 or float64.
        parameters: like the sums, in other memory; or None.
        scale: γ, std and factor.
        key: 32 bytes.
        start: byte of the key stream to begin at; ``exact_bytes_for(len(sums))`` bytes are used.
        threads: most threads to use.

    Raises:
        DpvdError: if an argument is not of this form.
    """
    _check_release(sums, parameters, scale)
    count = len(sums)
    _check_stream(key, start, exact_bytes_for(count))
    kernels = kernels_in_use()
    if kernels is not None and kernels.CIPHER:
        kernels.release_from_stream(
            key,
            start,
            sums,
            parameters,
            sums.itemsize,
            *_numbers(scale),
            useful_threads(threads, count),
        )
        return
    step = _EXACT_BLOCKS_AT_ONCE * EXACT_BLOCK_DRAWS
    for begin in range(0, count, step):
        end = begin + step
        chunk = sums[begin:end]
        targets = None if parameters is None else parameters[begin:end]
        raw = np.empty(exact_bytes_for(len(chunk)), dtype=np.uint8)
        write_key_stream(key, start + exact_bytes_for(begin), raw)
        release_from_bytes(chunk, targets, scale, raw)


def release_from_bytes(
    sums: _Entries,
    parameters: _Entries | None,
    scale: GridScale,
    raw: _Bytes,
) -> None:
    """Do what `release_from_key` does when its key stream has these bytes.

    Args:
        sums, parameters, scale: as there.
        raw: ``exact_bytes_for(len(sums))`` independent, uniformly random bytes, contiguous.

    Raises:
        DpvdError: if an argument is not of this form.
    """
    _check_release(sums, parameters, scale)
    _check_bytes(raw, len(sums), exact_bytes_for(len(sums)))
    kernels = kernels_in_use()
    if kernels is not None:
        numbers = _numbers(scale)
        kernels.release_from_bytes(raw, sums, parameters, sums.itemsize, *numbers)
        return
    normals = np.empty(len(sums))
    reference.exact_normals(raw, normals)
    noisy = _noisy(sums, normals, scale)
    if parameters is None:
        sums[:] = noisy
    else:
        parameters[:] = parameters + noisy
        sums[:] = 0


def _noisy(sums: _Entries, normals: _Doubles, scale: GridScale) -> _Doubles:
    """What release.c computes, in NumPy."""
    units_per_one, units_per_std, factor = _numbers(scale)
    units = sums.astype(np.float64) * units_per_one
    units = np.nan_to_num(units, nan=_MOST_UNITS)
    units = units.clip(-_MOST_UNITS, _MOST_UNITS)
    units = np.rint(units)
    noise = np.rint(normals * units_per_std)
    noisy: _Doubles = factor * (units + noise + 0.0)  # -0 would tell of a sum that was negative
    return noisy


def _numbers(scale: GridScale) -> tuple[float, float, float]:
    """Units of the grid for a sum of 1 and for one draw, and what one unit becomes."""
    units_per_one = 1 / scale.unit
    units_per_std = scale.std / scale.unit
    factor = scale.factor * scale.unit
    return units_per_one, units_per_std, factor


def _check_out(out: _Floats) -> None:
    if out.dtype != np.float32 or out.ndim != 1 or not out.flags.carray:
        raise DpvdError(
            "draws go into a contiguous, writeable, one-dimensional array of float32; "
            f"got {out.dtype} of shape {out.shape} with strides {out.strides}"
        )


def _check_bytes(raw: _Bytes, count: int, size: int) -> None:
    """Refuse random bytes that are not the ``size`` contiguous ones of ``count`` draws."""
    contiguous = raw.dtype == np.uint8 and raw.flags.c_contiguous
    if not contiguous or raw.shape != (size,):
        raise DpvdError(
            f"{count} draws are made of {size} contiguous bytes, got"
            f" {raw.dtype} of shape {raw.shape}"
        )


def _check_stream(key: bytes, start: int, size: int) -> None:
    """Refuse a key of another size, and bytes that lie outside of its stream."""
    if len(key) != _KEY_SIZE:
        raise DpvdError(f"the key of a stream has {_KEY_SIZE} bytes, got {len(key)}")
    if start < 0 or start + size > _STREAM_SIZE:
        raise DpvdError(f"a key stream has bytes 0 to 2^64 - 1, asked for {size} from {start} on")


def _check_release(sums: _Entries, parameters: _Entries | None, scale: GridScale) -> None:
    _check_entries(sums)
    if parameters is not None:
        _check_entries(parameters)
        if (parameters.dtype, parameters.shape) != (sums.dtype, sums.shape):
            raise DpvdError(
                f"parameters must be like their sums, {sums.dtype} of shape {sums.shape}; "
                f"got {parameters.dtype} of shape {parameters.shape}"
            )
    if not 0 <= scale.std <= MOST_UNITS_PER_STD * scale.unit:
        raise DpvdError(
            "the noise may be at most 2^47 units of its grid, got a standard deviation of "
            f"{scale.std!r} and a unit of {scale.unit!r}: take a coarser grid"
        )


def _check_entries(array: _Entries) -> None:
    is_float = array.dtype in (np.float32, np.float64)
    if not is_float or array.ndim != 1 or not array.flags.carray:
        raise DpvdError(
            "noise goes into a contiguous, writeable, one-dimensional array of float32 or float64; "
            f"got {array.dtype} of shape {array.shape} with strides {array.strides}"
        )
