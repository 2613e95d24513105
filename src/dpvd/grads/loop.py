"""The oracle: one backward pass for each example. Slow, short, and the truth that other engines are tested against."""

import math

import torch
from torch import nn

from dpvd.grads.batches import Batch, LossFn, batch_size, per_example_losses, rows
from dpvd.grads.clipped import ClippedSum
from dpvd.grads.clipping import ROUNDING_UNITS, Clipping, ClippingMode
from dpvd.grads.groups import Grouping
from dpvd.nn import NoiseTape

__all__ = ["loop"]


def loop(model: nn.Module, loss_fn: LossFn, batch: Batch, clipping: Clipping, grouping: Grouping) -> ClippedSum:
    """Clipped sum by the definition. Every example gets the noise that it had in the whole batch's forward pass."""
    tape = NoiseTape()
    with tape.recording(), torch.no_grad():
        losses = per_example_losses(model, loss_fn, batch)
    names, parameters = list(grouping.parameters), list(grouping.parameters.values())
    total = {name: torch.zeros_like(p) for name, p in grouping.parameters.items()}
    norms = losses.new_zeros(batch_size(batch), grouping.count)
    non_finite = 0
    for i in range(batch_size(batch)):
        with tape.replaying(slice(i, i + 1)):
            loss = per_example_losses(model, loss_fn, rows(batch, slice(i, i + 1)))
        found = torch.autograd.grad(loss.sum(), parameters, materialize_grads=True)
        grads = {n: g / grouping.jacobian.get(n, 1.0) for n, g in zip(names, found, strict=True)}
        for group in range(grouping.count):
            members = [grads[n].flatten() for n in names if grouping.group_of[n] == group]
            norms[i, group] = torch.cat(members).norm()
        if not (math.isfinite(loss.item()) and torch.isfinite(norms[i]).all()):
            norms[i] = math.inf
            non_finite += 1
            continue
        for n in names:
            total[n] += _factor(norms[i, grouping.group_of[n]].item(), clipping, losses.dtype) * grads[n]
    return ClippedSum(total, norms, losses, batch_size(batch), non_finite, clipping, grouping.jacobian)


def _factor(norm: float, clipping: Clipping, dtype: torch.dtype) -> float:
    bound = clipping.clip_norm * (1 - ROUNDING_UNITS * torch.finfo(dtype).eps)
    if clipping.mode is ClippingMode.NONE:
        return 1.0
    if clipping.mode is ClippingMode.AUTOMATIC:
        return bound / (norm + clipping.stability)
    return min(1.0, bound / norm) if norm > 0 else 1.0
