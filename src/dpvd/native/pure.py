"""What the compiled kernels compute, in NumPy and by OpenSSL: the definition, and what is used without them.

In float32 only operations that IEEE 754 rounds in one way are used, in a fixed order, so `normals.c` gives the same
values bit for bit, on every processor. The polynomials are derived by ``tools/noise_polynomials.py``.
"""

import math

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

__all__ = ["BLOCK_PAIRS", "BYTES_PER_PAIR", "normals", "write_key_stream"]

BLOCK_PAIRS = 1024  # measured: words and draws of a block fit the first-level cache
BYTES_PER_PAIR = 12  # three 32-bit words: high and low half for the radius, and the angle

_CIPHER_BLOCK = 16  # bytes that one counter value of AES yields
_ZEROS = memoryview(bytes(1 << 18))  # encrypting zeros writes out the key stream itself
_ONE, _SQRT_HALF = np.array([1.0, np.sqrt(0.5)]).view(np.uint64)  # as bits
_LN_2 = 0.693147182
_ANGLE_UNIT = 7.31459060e-10  # π / 2^32, to float32
_LOG = (0.0873483643, -0.143075183, 0.149179742, -0.165705085, 0.199620724, -0.250017554, 0.333339512, -0.499999911)
_SIN = (-0.000195172994, 0.008332178, -0.166666552)
_COS = (2.44384519e-05, -0.00138873677, 0.0416666456)
_LEAST_ENERGY = 2.0**-54  # -ln u of the largest u below 1; the rounded value of the last word's would be 0

_Words = npt.NDArray[np.uint32]
_Single = npt.NDArray[np.float32]
_Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]


def write_key_stream(key: bytes, start: int, out: memoryview) -> None:
    """Write the key stream of AES-256 in counter mode, from counter 0 and byte ``start`` of it on.

    References: NIST SP 800-38A (2001), section 6.5.

    >>> stream = bytearray(4)
    >>> write_key_stream(bytes(32), 0, memoryview(stream))
    >>> stream.hex()
    'dc95c078'
    """
    counter, skipped = divmod(start, _CIPHER_BLOCK)
    mode = modes.CTR(counter.to_bytes(_CIPHER_BLOCK, "big"))
    stream = Cipher(algorithms.AES256(key), mode).encryptor()
    stream.update(_ZEROS[:skipped])
    for begin in range(0, len(out), len(_ZEROS)):
        piece = out[begin : begin + len(_ZEROS)]
        stream.update_into(_ZEROS[: len(piece)], piece)


def normals(raw: npt.NDArray[np.uint8], out: _Floats) -> None:
    """Overwrite ``out`` with independent draws from N(0, 1), made from ``raw`` by Box and Muller's transform.

    Each block of 1024 pairs (the last has what is left) is three planes of little-endian 32-bit words: high and low
    halves of w, and a. With u = (w mod 2^63 + ½) / 2^63 and φ = 2π (a + ½) / 2^32 a pair is √(-2 ln u) (cos φ, sin φ);
    a block's cosines come first, then its sines.

    Edge cases:
        Of an odd number's last pair the sine is thrown away.

    Args:
        raw: 12 bytes for each pair.
        out: contiguous, one-dimensional, float32 or float64; the dtype that is computed in.
    """
    words = raw.view("<u4")
    whole = len(out) // (2 * BLOCK_PAIRS)
    drawn, used = whole * 2 * BLOCK_PAIRS, whole * 3 * BLOCK_PAIRS
    if whole:
        _transform(words[:used].reshape(whole, 3, BLOCK_PAIRS), out[:drawn].reshape(whole, 2, BLOCK_PAIRS))
    left = len(out) - drawn
    if left:
        pairs = (left + 1) // 2
        last = np.empty((1, 2, pairs), dtype=out.dtype)
        _transform(words[used:].reshape(1, 3, pairs), last)
        out[drawn:] = last.reshape(-1)[:left]


def _transform(words: _Words, out: _Floats) -> None:
    """Blocks of words [blocks, 3, pairs] to blocks of cosines and sines [blocks, 2, pairs]."""
    make = _single if out.dtype == np.float32 else _double
    out[:, 0], out[:, 1] = make(words[:, 0], words[:, 1], words[:, 2])


def _uniform(high: _Words, low: _Words) -> npt.NDArray[np.float64]:
    """u · 2^63, rounded to 53 bits: finest near 0, where the tails are made."""
    words = (high & np.uint32(0x7FFFFFFF)).astype(np.uint64) << np.uint64(32) | low
    return words.astype(np.float64) + 0.5


def _double(high: _Words, low: _Words, angle: _Words) -> tuple[_Floats, _Floats]:
    # torch has vector code for these functions, and is several times as fast here as NumPy
    energy = torch.from_numpy(_uniform(high, low)).mul_(2.0**-63).log_().neg_().clamp_(min=_LEAST_ENERGY)
    radius = energy.mul_(2).sqrt_()
    turns = torch.from_numpy(angle.astype(np.float64)).add_(0.5).mul_(math.pi * 2.0**-31)
    return (turns.cos() * radius).numpy(), (turns.sin() * radius).numpy()


def _single(high: _Words, low: _Words, angle: _Words) -> tuple[_Floats, _Floats]:
    radius = _radius(high, low)
    # φ = quarter · π/2 + x, with x between -π/4 and π/4; the top bits give the quarter exactly
    shifted = angle + np.uint32(1 << 29)
    quarter = shifted >> np.uint32(30)
    rest = (shifted & np.uint32((1 << 30) - 1)).view(np.int32) - np.int32(1 << 29)
    x = (np.int32(2) * rest + np.int32(1)).astype(np.float32) * np.float32(_ANGLE_UNIT)
    z = x * x
    sine = x + (x * z) * _polynomial(_SIN, z)
    cosine = (np.float32(1) - np.float32(0.5) * z) + (z * z) * _polynomial(_COS, z)
    swap = (quarter & np.uint32(1)).astype(np.bool_)
    left, below = quarter + np.uint32(1) & np.uint32(2), quarter & np.uint32(2)
    return (
        radius * np.where(swap, sine, cosine) * (1 - left.view(np.int32)).astype(np.float32),
        radius * np.where(swap, cosine, sine) * (1 - below.view(np.int32)).astype(np.float32),
    )


def _radius(high: _Words, low: _Words) -> _Single:
    """√(-2 ln u), from u = (1 + t) 2^-halvings with 1 + t between √½ and √2."""
    bits = _uniform(high, low).view(np.uint64)
    exponent = (bits + (_ONE - _SQRT_HALF)) >> np.uint64(52)
    t = ((bits - (exponent << np.uint64(52)) + _ONE).view(np.float64) - 1.0).astype(np.float32)
    halvings = (1023 + 63 - exponent.view(np.int64)).astype(np.float32)
    energy = halvings * np.float32(_LN_2) - (t + (t * t) * _polynomial(_LOG, t))
    energy = np.maximum(energy, np.float32(_LEAST_ENERGY))
    radius: _Single = np.sqrt(energy + energy)
    return radius


def _polynomial(coefficients: tuple[float, ...], x: _Single) -> _Single:
    """Horner's rule, highest power first."""
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value *= x
        value += np.float32(coefficient)
    return value
