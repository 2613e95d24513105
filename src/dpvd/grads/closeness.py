"""When two numbers that were computed twice are the same."""

import torch
from torch import Tensor

__all__ = ["agree", "unmoved", "within"]


def unmoved(ours: Tensor, truth: Tensor) -> bool:
    """Equal losses. Runs of equal shapes give practically equal bits: 10⁻⁵ is for sequences padded
    to other lengths.
    """
    relative = min(1e-5, max(1e-10, 100 * torch.finfo(truth.dtype).eps))
    return within(ours, truth, relative * truth.abs().clamp_min(1.0))


def within(ours: Tensor, truth: Tensor, tolerance: Tensor | float) -> bool:
    """No further apart than this; NaN equals NaN, and an infinite value itself."""
    same = (ours == truth) | (ours.isnan() & truth.isnan())
    return bool((same | ((ours - truth).abs() <= tolerance)).all())


def agree(ours: Tensor, truth: Tensor) -> bool:
    """Whether norms are those of the oracle, up to rounding.

    Where terms cancel a norm is known only to the square root of a unit, and is then rounded up:
    that clips too much, if anything. So norms may be a little too large near zero, but not too
    small.
    """
    tolerance = torch.finfo(truth.dtype).eps ** 0.5 * 10  # 3e-3 in float32, 1e-7 in float64
    finite = torch.isfinite(truth)
    if not torch.equal(finite, torch.isfinite(ours)):
        return False
    if not finite.any():
        return True
    excess = (ours - truth)[finite]
    scale = float(truth[finite].abs().max())
    return bool(
        (excess >= -tolerance * (scale + 1e-6)).all() and (excess <= tolerance * (scale + 10)).all()
    )
