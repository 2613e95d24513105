"""When two runs agree, and what is said of a model or a loss whose runs do not."""

import torch
from torch import Tensor

from dpvd.errors import DpvdError
from dpvd.grads.isolation.watch import BufferWatch

__all__ = [
    "MEMORY",
    "MIXING",
    "PADDING",
    "SIZE",
    "NotIsolated",
    "agree",
    "aligned",
    "keeps_data",
    "refuse_change",
    "unmoved",
    "within",
]


class NotIsolated(DpvdError):
    """Examples reach each other, or something of them leaves without noise."""


# What is said of a model or a loss whose runs differ; {} is for where, as `locate` found it.
MIXING = (
    "the loss of an example changes when the other examples of its batch are replaced: {} mixes "
    "examples, so that clipping cannot bound what one of them contributes. Remove the mixing "
    "(statistics, attention, ranking, softmax or permutations over the batch dimension), or take "
    "isolation='vmap', which forms each example's gradient alone and stores it"
)
SIZE = (
    "the loss of an example depends on how many examples are in its batch: {} does that, and one "
    "more changes the gradients of all. Leave the division out: a step divides by the plan's batch "
    "size, which is public. Or take isolation='vmap', which forms each example's gradient alone "
    "and stores it"
)
PADDING = (
    "the loss of an example changes when its batch is padded to a greater length, which the "
    "longest example of a batch decides for all: {} looks at padding, and clipping bounds nothing "
    "that comes that way. Let the model and the loss leave padding out (an attention mask, "
    "lengths, dpvd.losses.token_mean), or pad every batch to one length"
)
MEMORY = (
    "the loss of an example changes with the batches that came before: {} keeps something of "
    "them, in an attribute or a variable, and clipping bounds nothing that comes that way. Keep "
    "nothing of the data between batches"
)


def refuse_change(names: list[str], settled: frozenset[str], watch: BufferWatch) -> None:
    """Raise if a forward pass changed something that may depend on the data."""
    for name in names:
        if watch.is_parameter(name):
            raise NotIsolated(
                f"parameter {name!r} is changed by the forward pass itself: that leaves with the"
                " model without noise. Change it between steps, from what is private already"
            )
        if name not in settled:
            raise keeps_data(name)


def keeps_data(name: str) -> NotIsolated:
    return NotIsolated(
        f"buffer {name!r} keeps something of the data, statistics or examples, which leaves with"
        " the model without noise. Put the module that writes it in eval mode with values from"
        " public data, or remove it"
    )


def unmoved(ours: Tensor, truth: Tensor) -> bool:
    """Equal losses, up to rounding.

    Runs of equal shapes give practically equal bits: 10⁻⁵ is for sequences padded to other lengths.
    """
    relative = min(1e-5, max(1e-10, 100 * torch.finfo(truth.dtype).eps))
    scale = truth.abs().clamp_min(1.0)
    return within(ours, truth, relative * scale)


def within(ours: Tensor, truth: Tensor, tolerance: Tensor | float) -> bool:
    """No further apart than this; NaN equals NaN, and an infinite value itself."""
    same = (ours == truth) | (ours.isnan() & truth.isnan())
    near = (ours - truth).abs() <= tolerance
    return bool((same | near).all())


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
    not_too_small = excess >= -tolerance * (scale + 1e-6)
    not_too_large = excess <= tolerance * (scale + 10)
    return bool(not_too_small.all() and not_too_large.all())


def aligned(ours: Tensor, truth: Tensor, norms: Tensor) -> bool:
    """Whether gradients point where the oracle's do, up to rounding.

    The mean square of the differences of K projections is about ‖ours - truth‖². It may be a small
    part of the parameter's gradients: the fourth root of a unit, 2 % in float32, for gradients that
    autograd rounds to half precision. Where terms cancel, it may be a small part of all of them.

    Args:
        ours, truth: [b, P, K].
        norms: [b, P], those of the oracle.
    """
    finite = torch.isfinite(norms)
    distance = (ours - truth).square().mean(2).sqrt().to(norms)
    own = torch.where(finite, norms, 0.0).amax(0)  # [P]
    allowed = own + 1e-3 * own.max()
    is_near = distance <= torch.finfo(norms.dtype).eps ** 0.25 * allowed
    return bool((is_near | ~finite).all())
