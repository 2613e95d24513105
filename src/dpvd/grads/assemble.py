"""From per-example gradients, in whatever form, to their clip factors."""

from collections.abc import Mapping

import torch
from torch import Tensor

from dpvd.grads.clipped import ClippedGradients
from dpvd.grads.clipping import Clipping
from dpvd.grads.forms import PerExample
from dpvd.grads.groups import Grouping
from dpvd.grads.products import Products, largest_size

__all__ = ["assemble"]


def assemble(
    gradients: Mapping[str, PerExample],
    losses: Tensor,
    clipping: Clipping,
    grouping: Grouping,
    jacobian: Mapping[str, Tensor],
) -> ClippedGradients:
    """Norms and factors. To be called without recording of gradients.

    Args:
        gradients: per-example gradients by parameter name, divided by the Jacobian where there is
            one.
        losses: [B]; an example whose loss is not finite is left out, and one that overflows on the
            way.
        clipping: the bound.
        grouping: which parameters are clipped together.
        jacobian: by parameter name, what gradients of scale parameters were divided by.
    """
    losses, products = losses.detach(), Products()
    columns: list[Tensor | None] = [None] * grouping.count
    for name, gradient in gradients.items():
        group, squared_norm = grouping.group_of[name], gradient.squared_norm(products)
        so_far = columns[group]
        columns[group] = squared_norm if so_far is None else so_far + squared_norm
    norms = torch.stack(
        [torch.zeros_like(losses) if column is None else column for column in columns], dim=1
    ).sqrt_()
    # One look at all that must be neither too large nor NaN; at which examples are, only if there
    # are any.
    largest = min(largest_size(size.dtype) for size in (norms, *products.sizes))
    usable = (
        torch.cat([norms, torch.stack([losses.abs(), *products.sizes], dim=1)], dim=1) <= largest
    )
    non_finite = 0
    if not usable.all():
        finite = usable.all(1)
        non_finite = len(losses) - int(finite.sum())
        norms = torch.where(finite.unsqueeze(1), norms, torch.inf)
    return ClippedGradients(
        gradients, clipping.factors(norms), norms, losses, non_finite, clipping, grouping, jacobian
    )
