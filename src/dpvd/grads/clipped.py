"""What every gradient engine returns."""

from dataclasses import dataclass, field

from torch import Tensor

from dpvd.grads.clipping import Clipping
from dpvd.privacy import Relation

__all__ = ["ClippedSum"]


@dataclass(frozen=True)
class ClippedSum:
    """The sum of clipped per-example gradients, and what is known of it. No noise has been added.

    Nothing in here is private yet: not the sum, not the norms, not the count, not the losses.

    Attributes:
        grads: the sum, for each trainable parameter by name. For the parameters in ``jacobian`` it is the sum of
            gradients divided by that Jacobian (see there).
        norms: [B, G] per-example norms before clipping, one column for each group that is clipped together.
        losses: [B] the per-example losses.
        count: how many examples the batch had.
        non_finite: how many of them contributed zero because their gradient or loss was not finite.
        clipping: the bound that was in force.
        jacobian: for scale parameters, the factor by which the noisy sum has to be multiplied (after the noise) to
            be the gradient again: they are clipped and noised in the units of the weights, not of log σ².
    """

    grads: dict[str, Tensor]
    norms: Tensor
    losses: Tensor
    count: int
    non_finite: int
    clipping: Clipping
    jacobian: dict[str, Tensor] = field(default_factory=dict)

    @property
    def groups(self) -> int:
        """How many groups of parameters were clipped separately."""
        return self.norms.shape[1]

    def sensitivity(self, relation: Relation) -> float:
        """How far one example can move ``grads`` in L2 norm, under this relation between data sets."""
        return self.clipping.sensitivity(relation, self.groups)
