"""Gaussian noise of which later steps take back a part: banded matrix factorisation."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dpvd.errors import DpvdError, positive_int
from dpvd.mechanisms.bits import BitSource
from dpvd.mechanisms.drawn import Draw
from dpvd.mechanisms.noise import GridNoise, check_noise, standard_normal
from dpvd.mechanisms.sampling import Partition

__all__ = ["MOST_BANDS", "CorrelatedNoise", "band_coefficients"]

MOST_BANDS = 64
"""More are refused: the noise that is kept is as large as so many models."""

_MOMENTUM = 0.9  # of the optimizer whose error the coefficients keep small
_ROUNDING = 1 + 2.0**-50  # the norm of a column, computed, is at least the true one
_MOST_UNITS = 2.0**51  # of a sum, as in native/release.c
_MOST_UNITS_PER_STD = 2.0**42  # correlated noise is at most 2^9 of them, so all sums are exact


def band_coefficients(bands: int) -> tuple[float, ...]:
    """The first column of C, from its diagonal downwards, as multiples of the diagonal.

    They are the first coefficients of ((1 - x)(1 - 0.9 x))^(-1/2). All of them would make C the
    square root of the matrix that turns gradients into the weights of SGD with momentum 0.9; cut
    off after ``bands`` they are within a few per cent of the best with so many bands. They fall,
    so C⁻¹ decays: no noise is kept for ever.

    References: Kalinin and Lampert (2024), arXiv 2405.13763, "banded square root".

    >>> band_coefficients(3)
    (1.0, 0.95, 0.90375)
    """
    positive_int(bands=bands)
    if bands > MOST_BANDS:
        raise DpvdError(f"bands must be at most {MOST_BANDS}, got {bands}")
    root = np.ones(bands)  # of 1 / (1 - x)
    for power in range(1, bands):
        root[power] = root[power - 1] * (2 * power - 1) / (2 * power)
    damped = root * _MOMENTUM ** np.arange(bands)  # of 1 / (1 - 0.9 x)
    product = np.convolve(root, damped)[:bands]
    return tuple(product.tolist())


@dataclass(frozen=True)
class _Origin:
    """What a step's noise belongs to, and the step itself."""

    step: int
    partition: Partition | None
    noise: GridNoise
    shapes: tuple[tuple[str, torch.Size], ...]  # of the sums, by name

    def follows(self, other: "_Origin | None") -> bool:
        """Whether it is the next step, and all else is as it was."""
        return other is not None and self == replace(other, step=other.step + 1)


@dataclass(frozen=True)
class _Kept:
    """The noise of the last steps, in units of the grid, newest first: nobody may see it."""

    origin: _Origin | None = None
    past: tuple[Tensor, ...] = ()


class CorrelatedNoise:
    """Noise N with C N = Z: C has b bands and columns of norm at most 1, Z is independent noise.

    With a_0 = 1, ..., a_{b-1} the coefficients of C and |a| their norm, step t releases

        round_γ(s_t) + M_t,    M_t = round_γ(|a| n_t - a_1 M_{t-1} - ... - a_{b-1} M_{t-b+1}),

    s_t the sum, n_t from N(0, std²), γ and std by `noise_on_grid`. M_{t-j} is what step t - j
    released less its rounded sum S_{t-j}, and S_t lies on the grid. So with r what is released

        r_t = round_γ(|a| y_t - a_1 r_{t-1} - ...),   y_t = (S_t + a_1 S_{t-1} + ...) / |a| + n_t:

    a function of what was released before and of y = C S + Z, an ideal Gaussian mechanism on the
    rounded sums. It is the one that is accounted for.

    Guarantees:
        Noise is carried on only from a step to the next one, of the same partition of the data,
        with the same parameters and scale of noise. Otherwise it begins anew, which is allowed
        between cycles of b steps and refused inside: an example might be there twice in b steps.
        It is kept in the memory of this object and nowhere else.

    Args:
        bands: b, at least 2.

    References: Choquette-Choo et al. (2023), arXiv 2306.08153. docs/correlated-noise.md has the
    whole argument.
    """

    def __init__(self, bands: int) -> None:
        self.bands = bands
        first, *later = band_coefficients(bands)
        self._later = later
        self._norm = math.hypot(first, *later) * _ROUNDING
        self._kept = _Kept()
        self._coming: _Origin | None = None

    def begin(self, draw: Draw, noise: GridNoise, sums: Mapping[str, Tensor]) -> None:
        """Say which step the next release belongs to; ask before anything is charged.

        Args:
            draw: of the step's batch.
            noise: of Z.
            sums: tensors like those that will be released, by name.

        Raises:
            DpvdError: if the noise must begin anew in the middle of a cycle, or is too large for
                its grid.
        """
        if noise.std > _MOST_UNITS_PER_STD * noise.unit:
            raise DpvdError(
                f"correlated noise of {noise.std!r} has no grid in double precision: choose a noise"
                " multiplier, and a clip norm, nearer to 1"
            )
        shapes = tuple((name, total.shape) for name, total in sums.items())
        coming = _Origin(draw.step, draw.partition, noise, shapes)
        if draw.step % self.bands and not coming.follows(self._kept.origin):
            raise DpvdError(
                f"step {draw.step} is not a multiple of the plan's {self.bands} bands, and does not"
                " follow the last step of this object with the same partition of the data, clip"
                " norm and trainable parameters: take all batches from one plan.batches or"
                " plan.loader, make changes at multiples only, or go on with a new PrivateStep,"
                " which begins at the next"
            )
        self._coming = coming

    @torch.no_grad()
    def release(
        self,
        sums: Mapping[str, Tensor],
        noise: GridNoise,
        bits: BitSource,
        *,
        scales: Mapping[str, float],
        parameters: Mapping[str, Tensor],
    ) -> None:
        """Add the noise to sums and pass the result on, as `release_sums` does with other noise.

        Guarantees: as there. The noise is remembered before the first tensor is touched.
        """
        check_noise(noise, sums)
        sizes = [total.numel() for total in sums.values()]
        units = self._next(noise, sum(sizes), bits)
        for name, part in zip(sums, torch.split(units, sizes), strict=True):
            total = sums[name]
            noisy = _in_units(total, noise.unit) + part.view(total.shape)
            # + 0: a zero that is negative would tell of a sum that was
            change = (noisy + 0.0) * (scales[name] * noise.unit)
            if name in parameters:
                parameter = parameters[name]
                parameter.copy_(parameter.cpu().double() + change)
                total.zero_()
            else:
                total.copy_(change)

    def _next(self, noise: GridNoise, entries: int, bits: BitSource) -> Tensor:
        """M_t in units of the grid: whole numbers in float64, one for each entry of all sums."""
        coming = self._coming
        if coming is None or coming.noise != noise:
            raise DpvdError("begin(...) must announce each release, with the noise that it has")
        past = self._kept.past if coming.follows(self._kept.origin) else ()
        units = standard_normal(entries, bits).mul_(self._norm * noise.std / noise.unit)
        for coefficient, earlier in zip(self._later, past, strict=False):
            units.sub_(earlier, alpha=coefficient)
        units.round_()
        # In one assignment: an interrupt finds either the old or the new.
        self._kept = _Kept(coming, (units, *past)[: self.bands - 1])
        self._coming = None
        return units


def _in_units(total: Tensor, unit: float) -> Tensor:
    """round(total / γ) on the CPU, cut like native/release.c does; no two come further apart."""
    units = total.detach().cpu().double() / unit
    units = units.nan_to_num(nan=_MOST_UNITS, posinf=_MOST_UNITS, neginf=-_MOST_UNITS)
    return units.clamp(-_MOST_UNITS, _MOST_UNITS).round()
