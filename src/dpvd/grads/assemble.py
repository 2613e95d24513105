"""From per-example gradients, in whatever form, to their clipped sum."""

from collections.abc import Mapping

import torch
from torch import Tensor

from dpvd.grads.clipped import ClippedSum
from dpvd.grads.clipping import Clipping
from dpvd.grads.factors import PerExample
from dpvd.grads.groups import Grouping

__all__ = ["assemble"]


@torch.no_grad()
def assemble(gradients: Mapping[str, PerExample], losses: Tensor, clipping: Clipping, grouping: Grouping) -> ClippedSum:
    """Norms, factors, weighted sums. A parameter without gradients gets zeros.

    Args:
        gradients: per-example gradients by parameter name, divided by the Jacobian where the grouping has one.
        losses: [B]; an example whose loss is not finite contributes zero.
        clipping: the bound.
        grouping: which parameters are clipped together.
    """
    losses = losses.detach()
    squared = losses.new_zeros(len(losses), grouping.count)
    for name, gradient in gradients.items():
        squared[:, grouping.group_of[name]] += gradient.squared_norm()
    squared = torch.where(torch.isfinite(losses).unsqueeze(1), squared, torch.full_like(squared, torch.inf))
    factors = clipping.factors(squared)
    grads = {
        name: gradients[name].weighted_sum(factors[:, grouping.group_of[name]]).view_as(parameter)
        if name in gradients
        else torch.zeros_like(parameter)
        for name, parameter in grouping.parameters.items()
    }
    return ClippedSum(
        grads=grads,
        norms=squared.sqrt(),
        losses=losses,
        count=len(losses),
        non_finite=int((~torch.isfinite(squared).all(1)).sum()),
        clipping=clipping,
        jacobian=grouping.jacobian,
    )
