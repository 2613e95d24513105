"""The definition of what the compiled kernels compute, and what runs without them.

NumPy makes the draws, OpenSSL the key stream. In float32 only operations that IEEE 754 rounds in
one way are used, in a fixed order, so the kernels give the same values bit for bit, on every
processor. ``tools/noise_polynomials.py`` and ``tools/dawson_rational.py`` derive the polynomials.
In float64, for noise that protects data, the machine's own functions are used, and `release.c` has
others: last bits differ.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

__all__ = [
    "BLOCK_PAIRS",
    "BYTES_PER_PAIR",
    "EXACT_BYTES_PER_PAIR",
    "EXACT_PAIRS",
    "dawson",
    "exact_normals",
    "normals",
    "row_squares",
    "write_key_stream",
]

BLOCK_PAIRS = 1024  # words and draws of a block fit the first-level cache (timings: docs/noise.md)
BYTES_PER_PAIR = 12  # three 32-bit words: high and low half for the radius, and the angle

EXACT_PAIRS = 512  # pairs to a block in double precision
EXACT_BYTES_PER_PAIR = 16  # two 64-bit words: radius and angle

_CIPHER_BLOCK = 16  # bytes that one counter value of AES yields
_ZEROS = memoryview(bytes(1 << 18))  # encrypting zeros writes out the key stream itself
_ONE, _SQRT_HALF = np.array([1.0, np.sqrt(0.5)]).view(np.uint64)  # as bits
_LN_2 = 0.693147182
_ANGLE_UNIT = 7.31459060e-10  # π / 2^32, to float32
_LOG = (
    0.0873483643,
    -0.143075183,
    0.149179742,
    -0.165705085,
    0.199620724,
    -0.250017554,
    0.333339512,
    -0.499999911,
)
_SIN = (-0.000195172994, 0.008332178, -0.166666552)
_COS = (2.44384519e-05, -0.00138873677, 0.0416666456)
# The Dawson function is D(x) ≈ x P(x²) / Q(x²); highest power first.
# The common factor 2^-40 keeps both finite.
_DAWSON_NUMERATOR = (
    9.831774e-19,
    2.8292458e-18,
    9.453785e-17,
    7.27154e-16,
    5.520538e-15,
    3.85613e-14,
    7.677518e-14,
    9.0949465e-13,
)
_DAWSON_DENOMINATOR = (
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
_DAWSON_FAR = 4e6  # of x²: from here on D(x) is 1/(2x) to 2e-7
_LANES = 16  # sums of a row, as in squares.c
_CHUNK = 65_536  # entries at a time: their temporaries fit the cache
# -ln u of the largest u below 1; for the last word the rounded value would be 0.
_LEAST_ENERGY = 2.0**-54

_Words = npt.NDArray[Any]  # unsigned, of 32 or 64 bits
_Single = npt.NDArray[np.float32]
_Doubles = npt.NDArray[np.float64]
_Floats = npt.NDArray[Any]  # float32 or float64
_Transform = Callable[[_Words], _Floats]


def write_key_stream(key: bytes, start: int, out: memoryview) -> None:
    """Write the key stream of AES-256 in counter mode, from counter 0 and byte ``start`` of it on.

    References: NIST SP 800-38A (2001), section 6.5.

    >>> stream = bytearray(4)
    >>> write_key_stream(bytes(32), 0, memoryview(stream))
    >>> stream.hex()
    'dc95c078'
    """
    counter, skipped = divmod(start, _CIPHER_BLOCK)
    nonce = counter.to_bytes(_CIPHER_BLOCK, "big")
    cipher = Cipher(algorithms.AES256(key), modes.CTR(nonce))
    stream = cipher.encryptor()
    stream.update(_ZEROS[:skipped])
    step = len(_ZEROS)
    for begin in range(0, len(out), step):
        chunk = out[begin : begin + step]
        zeros = _ZEROS[: len(chunk)]
        stream.update_into(zeros, chunk)


def normals(raw: npt.NDArray[np.uint8], out: _Single) -> None:
    """Overwrite ``out`` with independent draws from N(0, 1), by Box and Muller's transform.

    Each block of 1024 pairs (the last has what is left) is three planes of little-endian 32-bit
    words: high and low halves of w, and a. With u = (w mod 2^63 + ½) / 2^63 and φ = 2π (a + ½) /
    2^32 a pair is √(-2 ln u) (cos φ, sin φ); a block's cosines come first, then its sines.

    Edge cases:
        Of an odd number's last pair the sine is thrown away.

    Args:
        raw: 12 bytes for each pair.
        out: contiguous, one-dimensional, float32.
    """
    words = raw.view("<u4")
    _fill_blocks(out, words, BLOCK_PAIRS, 3, _single)


def exact_normals(raw: npt.NDArray[np.uint8], out: _Doubles) -> None:
    """Overwrite ``out`` with independent draws from N(0, 1), made from ``raw`` in double precision.

    Each block of 512 pairs (the last has what is left) is two planes of little-endian 64-bit words.
    Of the first word of a pair w is the low 63 bits; of the second v is the low 10 bits and t the
    other 54. With

        u = (w + (v + ½) / 2^10) / 2^63,   φ = 2π (t + ½) / 2^54

    a pair is √(-2 ln u) (cos φ, sin φ); a block's cosines come first, then its sines. u is rounded
    to 53 bits: its 73 are needed near 0, where the tails are made.

    Edge cases:
        Of an odd number's last pair the sine is thrown away.

    Args:
        raw: 16 bytes for each pair.
        out: contiguous, one-dimensional, float64.
    """
    words = raw.view("<u8")
    _fill_blocks(out, words, EXACT_PAIRS, 2, _double)


def dawson(x: _Floats) -> _Floats:
    """D(x) = e^(-x²) ∫₀ˣ e^(s²) ds in float32: what dawson.c computes, operation by operation."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # in what is not selected
        z = x * x
        far = z > np.float32(_DAWSON_FAR)
        numerator = np.where(far, np.float32(0.5), _polynomial(_DAWSON_NUMERATOR, z))
        denominator = np.where(far, x, _polynomial(_DAWSON_DENOMINATOR, z))
        factor = np.where(far, np.float32(1), x)
        ratio = numerator / denominator
        return factor * ratio


def row_squares(x: _Single, scale: _Single | None) -> _Single:
    """Σ_j (s_j x_ij)² for every row: what squares.c computes, addition by addition."""
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


def _fill_blocks(out: _Floats, words: _Words, pairs: int, planes: int, make: _Transform) -> None:
    """Overwrite ``out`` block by block: all whole blocks at once, then what is left.

    Args:
        out: one-dimensional.
        words: one-dimensional, ``planes`` for each pair.
        pairs: pairs of a whole block.
        planes: words of a pair.
        make: words [blocks, planes, pairs] to draws [blocks, 2, pairs].
    """
    whole = len(out) // (2 * pairs)
    drawn = whole * 2 * pairs
    used = whole * planes * pairs
    if whole:
        blocks = words[:used].reshape(whole, planes, pairs)
        draws = make(blocks)
        out[:drawn] = draws.reshape(-1)
    left = len(out) - drawn
    if left:
        last_pairs = (left + 1) // 2
        block = words[used:].reshape(1, planes, last_pairs)
        draws = make(block)
        out[drawn:] = draws.reshape(-1)[:left]


def _double(words: _Words) -> _Floats:
    """Draws [blocks, 2, pairs] of words [blocks, 2, pairs] of 64 bits; see `exact_normals`."""
    first = words[:, 0]  # [blocks, pairs], like all below
    second = words[:, 1]
    low_bits = (second & np.uint64(1023)).astype(np.float64)
    fraction = (low_bits + 0.5) / 1024
    high_bits = (first & np.uint64(2**63 - 1)).astype(np.float64)
    uniform = high_bits + fraction  # u · 2^63
    # torch has vector code for these functions, and is several times as fast here as NumPy.
    energy = torch.from_numpy(uniform).mul_(2.0**-63)
    energy = energy.log_().neg_()
    energy = energy.clamp_(min=_LEAST_ENERGY)
    radius = energy.mul_(2).sqrt_().numpy()
    # φ = quarter · π/2 + x, with x between -π/4 and π/4; the top bits give the quarter exactly.
    shifted = second + np.uint64(1 << 61)
    quarter = shifted >> np.uint64(62)
    below_quarter = shifted & np.uint64((1 << 62) - 1)
    rest = below_quarter >> np.uint64(10)
    centred = rest.astype(np.float64) - (2.0**51 - 0.5)
    x = torch.from_numpy(centred).mul_(math.pi * 2.0**-53)
    cosine = x.cos().numpy()
    sine = x.sin().numpy()
    return _turned(radius, cosine, sine, quarter)


def _single(words: _Words) -> _Floats:
    """Draws [blocks, 2, pairs] of words [blocks, 3, pairs] of 32 bits; see `normals`."""
    high = words[:, 0]  # [blocks, pairs], like all below
    low = words[:, 1]
    angle = words[:, 2]
    # φ = quarter · π/2 + x, with x between -π/4 and π/4; the top bits give the quarter exactly.
    shifted = angle + np.uint32(1 << 29)
    quarter = shifted >> np.uint32(30)
    below_quarter = shifted & np.uint32((1 << 30) - 1)
    rest = below_quarter.view(np.int32) - np.int32(1 << 29)
    odd = np.int32(2) * rest + np.int32(1)
    x = odd.astype(np.float32) * np.float32(_ANGLE_UNIT)
    z = x * x
    cube = x * z
    sine = x + cube * _polynomial(_SIN, z)
    parabola = np.float32(1) - np.float32(0.5) * z
    fourth_power = z * z
    cosine = parabola + fourth_power * _polynomial(_COS, z)
    radius = _radius(high, low)
    return _turned(radius, cosine, sine, quarter)


def _turned(radius: _Floats, cosine: _Floats, sine: _Floats, quarter: _Words) -> _Floats:
    """[blocks, 2, pairs]: cosines and sines after quarter turns, times radii [blocks, pairs]."""
    swapped = quarter % 2 == 1
    across = np.where(swapped, sine, cosine)
    upwards = np.where(swapped, cosine, sine)
    turned = np.stack([across, upwards], axis=1)
    left = (quarter == 1) | (quarter == 2)
    below = quarter >= 2
    negative = np.stack([left, below], axis=1)
    signs = np.where(negative, -1, 1).astype(radius.dtype)
    product: _Floats = radius[:, np.newaxis] * turned * signs
    return product


def _uniform(high: _Words, low: _Words) -> npt.NDArray[np.float64]:
    """u · 2^63, rounded to 53 bits: finest near 0, where the tails are made."""
    kept = high & np.uint32(0x7FFFFFFF)
    shifted = kept.astype(np.uint64) << np.uint64(32)
    words = shifted | low
    return words.astype(np.float64) + 0.5


def _radius(high: _Words, low: _Words) -> _Single:
    """√(-2 ln u), from u = (1 + t) 2^-halvings with 1 + t between √½ and √2."""
    bits = _uniform(high, low).view(np.uint64)
    exponent = (bits + (_ONE - _SQRT_HALF)) >> np.uint64(52)
    exponent_bits = exponent << np.uint64(52)
    mantissa = (bits - exponent_bits + _ONE).view(np.float64)  # 1 + t
    t = (mantissa - 1.0).astype(np.float32)
    halvings = 1023 + 63 - exponent.view(np.int64)
    log_power = halvings.astype(np.float32) * np.float32(_LN_2)
    square = t * t
    log_mantissa = t + square * _polynomial(_LOG, t)
    energy = log_power - log_mantissa
    energy = np.maximum(energy, np.float32(_LEAST_ENERGY))
    radius: _Single = np.sqrt(energy + energy)
    return radius


def _polynomial(coefficients: tuple[float, ...], x: _Floats) -> _Floats:
    """Evaluate a polynomial by Horner's rule, highest power first, rounding each step.

    >>> _polynomial((2.0, 0.0, 1.0), np.array([3.0], np.float32))
    array([19.], dtype=float32)
    """
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value *= x
        value += np.float32(coefficient)
    return value
