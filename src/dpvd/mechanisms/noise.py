"""Gaussian noise, and the one place where it is added to protect data."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from dpvd.errors import DpvdError, non_negative
from dpvd.mechanisms.bits import BitSource

__all__ = ["add_gaussian", "fill_normal", "standard_normal"]

_WORKING_DTYPES = (torch.float32, torch.float64)
_PAIRS_PER_BLOCK = 1 << 16  # measured: smaller blocks pay for calls, larger ones for memory
_BYTES_PER_PAIR = 8 + 4  # one 64-bit word for the radius, one 32-bit word for the angle


def standard_normal(count: int, bits: BitSource, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return ``count`` independent draws from N(0, 1) in a new tensor on the CPU.

    Box and Muller's transform turns two independent uniforms into two independent normals:

        r = √(-2 ln u),   (r cos φ, r sin φ),   u uniform on (0, 1], φ uniform on [-π, π).

    Guarantees:
        The logarithm, which makes the tails, is taken in double precision of a 63-bit uniform that is finest
        near 0. So the tails are right up to |x| = √(128 ln 2) ≈ 9.4, beyond which no value is drawn; a true
        normal does that with probability 5e-21 per draw. The angle has 32 bits, of which float32 keeps 24.

    Edge cases:
        0 draws give an empty tensor; of an odd number's last pair one half is thrown away. The stream of bits
        is consumed in a fixed order, so a seeded source gives the same draws for the same sequence of calls.

    Args:
        count: number of draws.
        bits: where the randomness comes from.
        dtype: ``torch.float32`` or ``torch.float64``.

    Raises:
        DpvdError: for another dtype.

    References:
        Box and Muller (1958), "A note on the generation of random normal deviates".

    >>> from dpvd.mechanisms import SystemBits
    >>> standard_normal(5, SystemBits()).shape
    torch.Size([5])
    """
    if dtype not in _WORKING_DTYPES:
        raise DpvdError(f"normal draws are made in torch.float32 or torch.float64, got {dtype}")
    out = torch.empty(count, dtype=dtype, device="cpu")
    raw = np.empty(min((count + 1) // 2, _PAIRS_PER_BLOCK) * _BYTES_PER_PAIR, dtype=np.uint8)
    for start in range(0, count, 2 * _PAIRS_PER_BLOCK):
        _fill_block(out[start : start + 2 * _PAIRS_PER_BLOCK], raw, bits)
    return out


def fill_normal(out: Tensor, std: float, bits: BitSource) -> None:
    """Overwrite a tensor with independent draws from N(0, std²).

    Guarantees and tails are those of `standard_normal`; draws for float32 and float64 are made in that dtype.

    Edge cases:
        ``std`` 0 gives zeros. Empty and non-contiguous tensors and every device are legal: draws are made on
        the CPU and copied.

    Args:
        out: tensor of float32 or float64, any shape.
        std: standard deviation, at least 0.
        bits: where the randomness comes from.

    Raises:
        DpvdError: if ``std`` is negative, not finite or not representable in the tensor's dtype, or the dtype
            is another one. The tensor is then left as it was.
    """
    _check("out", out, std)
    with torch.no_grad():
        if std == 0:
            out.zero_()
        else:
            out.copy_(standard_normal(out.numel(), bits, out.dtype).mul_(std).view(out.shape))


def add_gaussian(tensors: Mapping[str, Tensor], std: float, bits: BitSource) -> None:
    """Add independent draws from N(0, std²) to every entry of every tensor, in place.

    This is the Gaussian mechanism, and the only place in the package where privacy noise is added:

        G = Σ_i clip(g_i) + N(0, std² I),   std = noise multiplier · L2 sensitivity.

    Guarantees:
        Every argument is checked, and all noise is drawn, before the first tensor is touched: after an
        exception nothing has been changed, and nothing was released with part of its noise.

    Edge cases:
        ``std`` 0 leaves the tensors untouched bit for bit and consumes no randomness. No tensors, empty and
        non-contiguous tensors are legal. A tensor listed under two names gets noise twice.

    Args:
        tensors: what to protect, by name; float32 or float64, any shape and device.
        std: standard deviation of the noise, in the unit of the tensors.
        bits: where the randomness comes from.

    Raises:
        DpvdError: if ``std`` is negative, not finite or not representable in a tensor's dtype, or a dtype is
            another one (half precision cannot hold a sum and its noise).

    References:
        Dwork and Roth (2014), "The algorithmic foundations of differential privacy", Appendix A.
    """
    non_negative(std=std)
    for name, tensor in tensors.items():
        _check(name, tensor, std)
    if std == 0 or not tensors:
        return
    wide = any(tensor.dtype == torch.float64 for tensor in tensors.values())
    total = sum(tensor.numel() for tensor in tensors.values())
    noise = standard_normal(total, bits, torch.float64 if wide else torch.float32)  # one draw, then shared out
    used = 0
    with torch.no_grad():
        for tensor in tensors.values():
            draws = noise[used : used + tensor.numel()].view(tensor.shape)
            tensor.add_(draws.to(tensor), alpha=std)
            used += tensor.numel()


def _fill_block(out: Tensor, raw: np.ndarray[tuple[int], np.dtype[np.uint8]], bits: BitSource) -> None:
    """Fill at most one block with N(0, 1): cosines first, then as many sines as there is room for."""
    pairs = (out.numel() + 1) // 2
    raw = raw[: pairs * _BYTES_PER_PAIR]
    bits.fill(raw)
    words = torch.from_numpy(raw[: pairs * 8].view(np.int64))
    angles = torch.from_numpy(raw[pairs * 8 :].view(np.int32))
    uniform = words.bitwise_and_((1 << 63) - 1).to(torch.float64).add_(0.5).mul_(2.0**-63)
    radius = uniform.log_().mul_(-2.0).to(out.dtype).sqrt_()
    angle = angles.to(out.dtype).mul_(math.pi * 2.0**-31)
    cosines, sines = out[:pairs], out[pairs:]
    torch.cos(angle, out=cosines).mul_(radius)
    torch.sin(angle[: sines.numel()], out=sines).mul_(radius[: sines.numel()])


def _check(name: str, tensor: Tensor, std: float) -> None:
    non_negative(std=std)
    if tensor.dtype not in _WORKING_DTYPES:
        raise DpvdError(f"noise goes into float32 or float64, but {name} is {tensor.dtype}: convert it before")
    limits = torch.finfo(tensor.dtype)
    if std != 0 and not limits.tiny <= std <= limits.max / 16:
        raise DpvdError(
            f"std must be 0 or between {limits.tiny:.3g} and {limits.max / 16:.3g} to be represented in "
            f"{tensor.dtype} of {name}, got {std!r}: rescale the data or use float64"
        )
