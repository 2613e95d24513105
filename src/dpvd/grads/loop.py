"""The oracle: one backward pass for each example. Slow, short, and the truth that other engines are tested against."""

import math

import torch
from torch import nn

from dpvd.grads.batches import Batch, LossFn, per_example_losses, rows
from dpvd.grads.clipped import ClippedGradients
from dpvd.grads.clipping import ROUNDING_UNITS, Clipping, ClippingMode
from dpvd.grads.factors import Materialised
from dpvd.grads.groups import Grouping
from dpvd.nn import NoiseTape

__all__ = ["loop"]


def loop(model: nn.Module, loss_fn: LossFn, batch: Batch, clipping: Clipping, grouping: Grouping) -> ClippedGradients:
    """Clipped gradients by the definition. Every example gets the noise it had in the whole batch's forward pass."""
    tape = NoiseTape()
    with tape.recording(), torch.no_grad():
        losses = per_example_losses(model, loss_fn, batch)
    names, parameters, jacobian = list(grouping.parameters), list(grouping.parameters.values()), grouping.jacobians()
    gradients = {name: p.new_zeros(len(losses), *p.shape) for name, p in grouping.parameters.items()}
    norms, factors = (losses.new_zeros(len(losses), grouping.count) for _ in range(2))
    for i in range(len(losses)):
        with tape.replaying(slice(i, i + 1)):
            loss = per_example_losses(model, loss_fn, rows(batch, slice(i, i + 1)))
        found = torch.autograd.grad(loss.sum(), parameters, materialize_grads=True)
        for name, gradient in zip(names, found, strict=True):
            gradients[name][i] = gradient / jacobian.get(name, 1.0)
        for group in range(grouping.count):
            members = [gradients[n][i].flatten() for n in names if grouping.group_of[n] == group]
            norms[i, group] = torch.cat(members).norm()
            factors[i, group] = _factor(norms[i, group].item(), clipping, losses.dtype)
        if not (math.isfinite(loss.item()) and torch.isfinite(norms[i]).all()):
            norms[i], factors[i] = math.inf, 0.0
    non_finite = int(torch.isinf(norms).all(1).sum())
    forms = {name: Materialised(values) for name, values in gradients.items()}
    return ClippedGradients(forms, factors, norms, losses, non_finite, clipping, grouping, jacobian)


def _factor(norm: float, clipping: Clipping, dtype: torch.dtype) -> float:
    bound = clipping.clip_norm * (1 - ROUNDING_UNITS * torch.finfo(dtype).eps)
    if clipping.mode is ClippingMode.NONE:
        return 1.0
    if clipping.mode is ClippingMode.AUTOMATIC:
        return bound / (norm + clipping.stability)
    return min(1.0, bound / norm) if norm > 0 else 1.0
