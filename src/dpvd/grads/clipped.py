"""What gradient engines return: clipped per-example gradients, ready to be added up, and their
sum.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dpvd.grads.clipping import Clipping
from dpvd.grads.forms import PerExample
from dpvd.grads.groups import Grouping
from dpvd.privacy import Relation

__all__ = ["ClippedGradients", "ClippedSum"]


@dataclass(frozen=True)
class ClippedGradients:
    """The gradients of a batch's examples with their clip factors, not yet added up.

    Nothing in here is private: not the gradients, not the norms, not the losses.

    Attributes:
        gradients: per-example gradients by parameter name, divided by the Jacobian where there is
            one; a parameter that the loss does not reach is absent.
        factors: [B, G], what each example's gradient is multiplied by; 0 for an example that is
            left out.
        norms: [B, G] per-example norms before clipping; infinite for an example that is left out.
        losses: [B].
        non_finite: how many examples are left out because their gradient or loss is not finite, or
            far too large.
        jacobian: for scale parameters, what their gradients were divided by.
    """

    gradients: Mapping[str, PerExample]
    factors: Tensor
    norms: Tensor
    losses: Tensor
    non_finite: int
    clipping: Clipping
    grouping: Grouping
    jacobian: Mapping[str, Tensor]

    @torch.no_grad()
    def add_to(
        self, totals: Mapping[str, Tensor], scales: Mapping[str, float] | None = None
    ) -> None:
        """totals += scale · Σ_i factor_i · gradient_i for every parameter, in place.

        Args:
            totals: by parameter name, tensors of the parameters' shapes.
            scales: by parameter name; 1 for all if absent.
        """
        factors, gradients = self.factors, self.gradients
        if self.non_finite == len(self.losses):
            return
        if self.non_finite:
            finite = torch.isfinite(self.norms).all(1).nonzero().squeeze(1)
            factors = factors[finite]
            gradients = {name: gradient.only(finite) for name, gradient in gradients.items()}
        columns = factors.unbind(1)
        for name, gradient in gradients.items():
            total, scale = totals[name], 1.0 if scales is None else scales[name]
            weights = columns[self.grouping.group_of[name]]
            if total.is_contiguous():
                gradient.add_sum(weights, total, scale)
            else:  # a parameter in another memory format, such as channels_last
                part = torch.zeros(total.shape, dtype=total.dtype, device=total.device)
                gradient.add_sum(weights, part, scale)
                total += part


@dataclass(frozen=True)
class ClippedSum:
    """The sum of clipped per-example gradients, and what is known of it. No noise has been added.

    Nothing in here is private yet: not the sum, not the norms, not the count, not the losses.

    Attributes:
        grads: the sum, for each trainable parameter by name. For the parameters in ``jacobian`` it
            is the sum of gradients divided by that Jacobian (see there).
        norms: [B, G] per-example norms before clipping, one column for each group that is clipped
            together.
        losses: [B] the per-example losses.
        count: how many examples the batch had.
        non_finite: how many of them contributed zero because their gradient or loss was not finite,
            or far too large.
        clipping: the bound that was in force.
        jacobian: for scale parameters, the factor by which the noisy sum has to be multiplied
            (after the noise) to be the gradient again: they are clipped and noised in the units of
            the weights, not of log σ².
    """

    grads: dict[str, Tensor]
    norms: Tensor
    losses: Tensor
    count: int
    non_finite: int
    clipping: Clipping
    jacobian: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def groups(self) -> int:
        """How many groups of parameters were clipped separately."""
        return self.norms.shape[1]

    def sensitivity(self, relation: Relation) -> float:
        """How far one example can move ``grads`` in L2 norm, under this relation between data
        sets.
        """
        return self.clipping.sensitivity(relation, self.groups)
