"""Drawing layers' noise, by the compiled kernels if they were built, else NumPy and OpenSSL."""

import os
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

import numpy as np
import numpy.typing as npt

from dpvd.errors import DpvdError
from dpvd.native import reference

__all__ = [
    "BLOCK_BYTES",
    "BLOCK_DRAWS",
    "Implementation",
    "bytes_for",
    "check_bytes",
    "check_stream",
    "draw_from_bytes",
    "draw_from_key",
    "implementation_in_use",
    "kernels_in_use",
    "useful_threads",
    "write_key_stream",
]

BLOCK_DRAWS = 2 * reference.BLOCK_PAIRS
"""Draws of one block. A long draw may be split between blocks."""

BLOCK_BYTES = reference.BLOCK_PAIRS * reference.BYTES_PER_PAIR
"""Bytes that one block takes."""

# Both chosen by timings; docs/noise.md has the machine.
_BLOCKS_AT_ONCE = 16  # fewer pay for calls, more for memory
_DRAWS_PER_THREAD = 1 << 15  # for fewer, waking a thread costs more than it saves
_KEY_SIZE = 32
_STREAM_SIZE = 1 << 64

_Bytes = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.float32]


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
    check_stream(key, start, len(out))
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
    check_stream(key, start, bytes_for(count))
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
    check_bytes(raw, len(out), bytes_for(len(out)))
    kernels = kernels_in_use()
    if kernels is not None:
        kernels.normals_from_bytes(raw, out, std)
        return
    reference.normals(raw, out)
    out *= np.float32(std)


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
    worthwhile = count // _DRAWS_PER_THREAD
    return max(1, min(threads, worthwhile))


def _check_out(out: _Floats) -> None:
    if out.dtype != np.float32 or out.ndim != 1 or not out.flags.carray:
        raise DpvdError(
            "draws go into a contiguous, writeable, one-dimensional array of float32; "
            f"got {out.dtype} of shape {out.shape} with strides {out.strides}"
        )


def check_bytes(raw: _Bytes, count: int, size: int) -> None:
    """Refuse random bytes that are not the ``size`` contiguous ones of ``count`` draws."""
    contiguous = raw.dtype == np.uint8 and raw.flags.c_contiguous
    if not contiguous or raw.shape != (size,):
        raise DpvdError(
            f"{count} draws are made of {size} contiguous bytes, got"
            f" {raw.dtype} of shape {raw.shape}"
        )


def check_stream(key: bytes, start: int, size: int) -> None:
    """Refuse a key of another size, and bytes that lie outside of its stream."""
    if len(key) != _KEY_SIZE:
        raise DpvdError(f"the key of a stream has {_KEY_SIZE} bytes, got {len(key)}")
    if start < 0 or start + size > _STREAM_SIZE:
        raise DpvdError(f"a key stream has bytes 0 to 2^64 - 1, asked for {size} from {start} on")
