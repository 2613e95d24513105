"""Gaussian noise on a grid, and the one place where it is added to protect data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpvd.errors import DpvdError, positive, positive_int
from dpvd.mechanisms.bits import BitSource, KeyedBits, Window
from dpvd.native import (
    EXACT_BLOCK_BYTES,
    EXACT_BLOCK_DRAWS,
    MOST_UNITS_PER_STD,
    GridScale,
    exact_bytes_for,
    exact_normals,
    release_from_bytes,
    release_from_key,
)

__all__ = ["GridNoise", "check_noise", "noise_on_grid", "release_sums", "standard_normal"]

_FINENESS = 2.0**-10  # all roundings to the grid together, as a part of sensitivity and noise
_SMALL = 1 << 14  # entries; below, a draw of its own costs more than a copy

# By the dtypes that noise goes into, the least and the largest standard deviation that they hold.
_KINDS = (torch.float32, torch.float64)
_LIMITS = {kind: (torch.finfo(kind).tiny, torch.finfo(kind).max / 16) for kind in _KINDS}


@dataclass(frozen=True)
class GridNoise:
    """Gaussian noise for sums that are rounded to a grid; made by `noise_on_grid`.

    Attributes:
        std: standard deviation.
        unit: γ, the distance of neighbouring points of the grid, a power of two.
    """

    std: float
    unit: float


@lru_cache(maxsize=64)  # asked in every step, mostly for the same
def noise_on_grid(sensitivity: float, std: float, entries: int) -> GridNoise:
    """Return noise that protects a sum as ``std`` does in theory, and that rounding cannot undo.

    In real numbers the Gaussian mechanism is s + N(0, (zΔ)²), s the sum, Δ its L2 sensitivity,
    z = ``std`` / Δ. In floating point the last bits of the result can tell what s was. So sum and
    noise are rounded to multiples of γ, which are added exactly:

        released = round_γ(s) + round_γ(n),   n from N(0, z² (Δ + γ√d)²),   d the number of entries.

    Rounding moves an entry of s by at most γ/2, so neighbouring sums that lie Δ apart are Δ + γ√d
    apart afterwards, at most. round_γ(s) lies on the grid, so it can be moved inside the other
    rounding:

        released = round_γ(round_γ(s) + n),

    a function of an ideal Gaussian mechanism with sensitivity Δ + γ√d and multiplier z, the one
    that is accounted for. What happens to it afterwards, rounding to float32 among it, is
    post-processing.

    γ is the largest power of two with γ√d ≤ 2⁻¹⁰ min(Δ, std): 0.1 % more noise at most.

    Args:
        sensitivity: Δ.
        std: zΔ.
        entries: d, of all the sums that one example has a part in.

    Raises:
        DpvdError: if a number is not positive and finite, or Δ and the noise are too far apart for
            one grid.

    >>> noise = noise_on_grid(sensitivity=1.0, std=2.0, entries=10_000)
    >>> noise.unit == 2**-17, round(noise.std, 4)
    (True, 2.0015)
    """
    positive(sensitivity=sensitivity)
    positive(std=std)
    positive_int(entries=entries)
    root = math.sqrt(entries)
    _, exponent = math.frexp(_FINENESS * min(sensitivity, std) / root)  # x < 2^exponent
    unit = math.ldexp(1.0, exponent - 1)
    enlarged = std * (1 + unit * root / sensitivity)
    too_small = unit < 2.0**-1000  # not far below, 1 / γ would be infinite
    if too_small or not enlarged <= MOST_UNITS_PER_STD * unit:
        raise DpvdError(
            f"noise of {std!r} on a sum with sensitivity {sensitivity!r} has no grid in double "
            "precision: choose a noise multiplier, and a clip norm, nearer to 1"
        )
    return GridNoise(enlarged, unit)


def standard_normal(count: int, bits: BitSource) -> Tensor:
    """Return ``count`` independent draws from N(0, 1) in a new float64 tensor on the CPU.

    They are the draws that privacy noise is made of. Box and Muller's transform turns two
    independent uniforms into two independent normals:

        r = √(-2 ln u),   (r cos φ, r sin φ),   u uniform on (0, 1), φ uniform on (-π, π).

    Guarantees:
        u has 73 bits and is finest near 0, where the tails are made. So the tails go on to |x| =
        √(148 ln 2) ≈ 10.1, beyond which no value is drawn; a true normal does that with probability
        4e-24 per draw. The angle has 54 bits; the distribution is symmetric, and no draw is 0. The
        relative error of a draw is at most 5 · 2⁻⁵³.

    Edge cases:
        0 draws give an empty tensor; of an odd number's last pair one half is thrown away. The
        stream of bits is consumed in a fixed order, so a seeded source gives the same draws for the
        same sequence of calls.

    Args:
        count: number of draws.
        bits: where the randomness comes from.

    References:
        Box and Muller (1958), "A note on the generation of random normal deviates".

    >>> from dpvd.mechanisms import SystemBits
    >>> standard_normal(5, SystemBits()).shape
    torch.Size([5])
    """
    raw = np.empty(exact_bytes_for(count), dtype=np.uint8)
    bits.fill(raw)
    out = torch.empty(count, dtype=torch.float64, device="cpu")
    exact_normals(out.numpy(), raw)
    return out


@dataclass(frozen=True)
class Chunk:
    """Entries with one draw of noise: of one type, at one scale, all with parameters or none."""

    scale: float
    sums: list[Tensor]
    parameters: list[Tensor]

    @property
    def count(self) -> int:
        return sum(total.numel() for total in self.sums)


@torch.no_grad()
def release_sums(
    sums: Mapping[str, Tensor],
    noise: GridNoise,
    bits: BitSource,
    *,
    scales: Mapping[str, float],
    parameters: Mapping[str, Tensor],
) -> None:
    """Add Gaussian noise to sums and pass the result on; no sum is left without its noise.

    This is the Gaussian mechanism, and the only place in the package where privacy noise is added,
    beside `CorrelatedNoise.release` for noise that is correlated. For each name

        noisy = round_γ(sum) + round_γ(N(0, std²))            see `noise_on_grid`
        parameter ← parameter + scale · noisy,   sum ← 0      where there is a parameter
        sum ← scale · noisy                                   where there is none

    Guarantees:
        Every argument is checked and all random bits are secured before the first tensor is
        touched. noisy is exact in double precision; what is made of it is rounded once, to the type
        of the tensor. Large sums take their noise in order; those of less than 16,384 entries come
        last, all of one scale in one draw.

    Edge cases:
        No sums, empty and non-contiguous tensors and every device are legal: what does not lie in
        one block on the CPU is copied there and back. Large contiguous tensors on the CPU are
        passed over once, without memory for noise.

    Args:
        sums: what to protect, by name; float32 or float64, any shape.
        noise: standard deviation and grid, for the entries of all the sums together.
        bits: where the randomness comes from.
        scales: by name, what the noisy sums are multiplied by.
        parameters: by name, for some of the sums, where they go; of the same shape, type and
            device.

    Raises:
        DpvdError: if the noise is not representable in a tensor's dtype, or a dtype is another one
            (half precision cannot hold a sum and its noise).

    References:
        Dwork and Roth (2014), "The algorithmic foundations of differential privacy", Appendix A.
    """
    check_noise(noise, sums)
    chunks = chunks_of(sums, scales, parameters)
    secured = [secure(exact_bytes_for(chunk.count), bits) for chunk in chunks]
    for chunk, randomness in zip(chunks, secured, strict=True):
        scale = GridScale(noise.unit, noise.std, chunk.scale)
        flat_sums = flat(chunk.sums)
        if len(chunk.sums) > 1 and chunk.parameters:
            _release_small(chunk, flat_sums, scale, randomness)
            continue
        flat_parameters = flat(chunk.parameters) if chunk.parameters else None
        release(flat_sums, flat_parameters, scale, randomness)
        give_back(flat_sums, chunk.sums)
        if flat_parameters is not None:
            give_back(flat_parameters, chunk.parameters)


def chunks_of(
    sums: Mapping[str, Tensor],
    scales: Mapping[str, float],
    parameters: Mapping[str, Tensor],
) -> list[Chunk]:
    """Large sums each by itself, in order, then small ones by what they have in common."""
    large: list[Chunk] = []
    small: dict[tuple[torch.dtype, float, bool], Chunk] = {}
    for name, total in sums.items():
        if total.numel() >= _SMALL:
            chunk = Chunk(scales[name], [], [])
            large.append(chunk)
        else:
            kind = total.dtype, scales[name], name in parameters
            chunk = small.setdefault(kind, Chunk(scales[name], [], []))
        chunk.sums.append(total)
        if name in parameters:
            chunk.parameters.append(parameters[name])
    return [*large, *small.values()]


Randomness = list[Window] | npt.NDArray[np.uint8]


def secure(size: int, bits: BitSource) -> Randomness:
    """Random bytes that nobody else gets: as windows of a key stream if the source has one."""
    if isinstance(bits, KeyedBits):
        return bits.windows(size, EXACT_BLOCK_BYTES)
    raw = np.empty(size, dtype=np.uint8)
    bits.fill(raw)
    return raw


def release(
    sums: Tensor,
    parameters: Tensor | None,
    scale: GridScale,
    randomness: Randomness,
) -> None:
    """Noise for flat tensors on the CPU."""
    totals = sums.numpy()
    targets = None if parameters is None else parameters.numpy()
    if not isinstance(randomness, list):
        release_from_bytes(totals, targets, scale, randomness)
        return
    threads = torch.get_num_threads()
    begin = 0
    for window in randomness:
        end = begin + -(-window.size // EXACT_BLOCK_BYTES) * EXACT_BLOCK_DRAWS
        part = None if targets is None else targets[begin:end]
        release_from_key(totals[begin:end], part, scale, window.key, window.start, threads=threads)
        begin = end


def _release_small(
    chunk: Chunk, flat_sums: Tensor, scale: GridScale, randomness: Randomness
) -> None:
    """Noise for many small sums at once; few calls count for more here than a pass over memory."""
    release(flat_sums, None, scale, randomness)
    changes = [
        part.view(parameter.shape).to(parameter.device)
        for part, parameter in zip(
            torch.split(flat_sums, [total.numel() for total in chunk.sums]),
            chunk.parameters,
            strict=True,
        )
    ]
    torch._foreach_add_(chunk.parameters, changes)
    torch._foreach_zero_(chunk.sums)


def flat(tensors: list[Tensor]) -> Tensor:
    """All entries, one after the other, on the CPU; the memory of a single tensor that lies so."""
    if len(tensors) == 1:
        only = tensors[0].detach()
        if only.device.type == "cpu" and only.is_contiguous():
            return only.view(-1)
    entries = [tensor.detach().reshape(-1).cpu() for tensor in tensors]
    return torch.cat(entries)


def give_back(flat: Tensor, tensors: list[Tensor]) -> None:
    """Write into the tensors what `flat` took out of them."""
    if flat.data_ptr() == tensors[0].data_ptr():
        # autograd cannot see a write through NumPy
        torch.autograd.graph.increment_version(tensors[0])
        return
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view(tensor.shape))


def check_noise(noise: GridNoise, sums: Mapping[str, Tensor]) -> None:
    """Raise unless tensors of these types can hold this noise; ask before anything is charged.

    Raises:
        DpvdError: naming the tensor.
    """
    for name, total in sums.items():
        limits = _LIMITS.get(total.dtype)
        if limits is None:
            raise DpvdError(
                f"noise goes into float32 or float64, but {name} is {total.dtype}: convert it"
                " before"
            )
        least, most = limits
        if not least <= noise.std <= most:
            raise DpvdError(
                f"noise of {noise.std!r} is not between {least:.3g} and {most:.3g}, so "
                f"{total.dtype} of {name} cannot hold it: rescale the data or use float64"
            )
