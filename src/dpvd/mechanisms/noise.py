"""Gaussian noise, and the one place where it is added to protect data."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from dpvd.errors import DpvdError, non_negative
from dpvd.mechanisms.bits import BitSource, KeyedBits
from dpvd.native import BLOCK_BYTES, BLOCK_DRAWS, bytes_for, draw_from_bytes, draw_from_key

__all__ = ["add_gaussian", "fill_normal", "standard_normal"]

# By the dtypes that noise is drawn in, the least and the largest standard deviation that can be represented.
_LIMITS = {kind: (torch.finfo(kind).tiny, torch.finfo(kind).max / 16) for kind in (torch.float32, torch.float64)}
_SMALL = 1 << 14  # entries; below, a draw of its own costs more than a buffer


def standard_normal(count: int, bits: BitSource, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return ``count`` independent draws from N(0, 1) in a new tensor on the CPU.

    Box and Muller's transform turns two independent uniforms into two independent normals:

        r = √(-2 ln u),   (r cos φ, r sin φ),   u uniform on (0, 1), φ uniform on (-π, π).

    Guarantees:
        u has 63 bits and is finest near 0, where the tails are made. So the tails are right up to
        |x| = √(128 ln 2) ≈ 9.4, beyond which no value is drawn; a true normal does that with probability 5e-21 per
        draw. The angle has 32 bits; the distribution is symmetric, and no draw is 0. In float32 a seeded source gives
        the same draws on every machine, bit for bit.

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
    if dtype not in _LIMITS:
        raise DpvdError(f"normal draws are made in torch.float32 or torch.float64, got {dtype}")
    out = torch.empty(count, dtype=dtype, device="cpu")
    _draw(out, 1.0, bits, add=False)
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
    _check(std, {"out": out})
    with torch.no_grad():
        if std == 0:
            out.zero_()
        else:
            noise = torch.empty(out.shape, dtype=out.dtype, device="cpu")
            _draw(noise.view(-1), std, bits, add=False)
            out.copy_(noise)


def add_gaussian(tensors: Mapping[str, Tensor], std: float, bits: BitSource) -> None:
    """Add independent draws from N(0, std²) to every entry of every tensor, in place.

    This is the Gaussian mechanism, and the only place in the package where privacy noise is added:

        G = Σ_i clip(g_i) + N(0, std² I),   std = noise multiplier · L2 sensitivity.

    Guarantees:
        Every argument is checked before the first tensor is touched, and a tensor's random bits are secured before it
        is: no exception leaves a tensor with part of its noise. Tensors are noised in order, each as by
        `standard_normal`; float32 tensors of less than 16,384 entries come last, all in one draw.

    Edge cases:
        ``std`` 0 leaves the tensors untouched bit for bit and consumes no randomness. No tensors, empty and
        non-contiguous tensors are legal. A tensor listed under two names gets noise twice. Large contiguous
        float32 tensors on the CPU are noised in one pass, without memory for the noise.

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
    _check(std, tensors)
    if std == 0 or not tensors:
        return
    with torch.no_grad():
        small: list[Tensor] = []
        for tensor in tensors.values():
            if tensor.numel() < _SMALL and tensor.dtype == torch.float32:
                small.append(tensor)
            elif tensor.dtype == torch.float32 and tensor.device.type == "cpu" and tensor.is_contiguous():
                _draw(tensor.view(-1), std, bits, add=True)
                torch.autograd.graph.increment_version(tensor)  # autograd cannot see a write through NumPy
            else:
                _add_from_buffer([tensor], std, bits)
        _add_from_buffer(small, std, bits)


def _add_from_buffer(tensors: list[Tensor], std: float, bits: BitSource) -> None:
    """Noise for tensors of one type, drawn into one buffer and shared out in order."""
    if not tensors:
        return
    noise = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=tensors[0].dtype, device="cpu")
    _draw(noise, std, bits, add=False)
    for tensor, part in zip(tensors, torch.split(noise, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.add_(part.view(tensor.shape).to(tensor.device))


def _draw(out: Tensor, std: float, bits: BitSource, *, add: bool) -> None:
    """Overwrite a flat tensor on the CPU with N(0, std²), or add that to it; bits are secured before it is touched."""
    array = out.detach().numpy()
    size = bytes_for(len(array))
    if not isinstance(bits, KeyedBits):
        raw = np.empty(size, dtype=np.uint8)
        bits.fill(raw)
        draw_from_bytes(array, std, raw, add=add)
        return
    begin, threads = 0, torch.get_num_threads()
    for window in bits.windows(size, BLOCK_BYTES):
        end = begin + -(-window.size // BLOCK_BYTES) * BLOCK_DRAWS
        piece = array[begin:end]
        draw_from_key(piece, std, window.key, window.start, add=add, threads=threads)
        begin = end


def _check(std: float, tensors: Mapping[str, Tensor]) -> None:
    non_negative(std=std)
    for name, tensor in tensors.items():
        limits = _LIMITS.get(tensor.dtype)
        if limits is None:
            raise DpvdError(f"noise goes into float32 or float64, but {name} is {tensor.dtype}: convert it before")
        least, most = limits
        if std != 0 and not least <= std <= most:
            raise DpvdError(
                f"std must be 0 or between {least:.3g} and {most:.3g} to be represented in "
                f"{tensor.dtype} of {name}, got {std!r}: rescale the data or use float64"
            )
