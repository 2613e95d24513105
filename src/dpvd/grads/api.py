"""The one call: the sum of clipped per-example gradients of any model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dpvd.grads.batch import LossFn
from dpvd.grads.clipper import GradientClipper, Isolation
from dpvd.grads.clipping import Clipping
from dpvd.grads.engines import Engine
from dpvd.privacy import Relation

__all__ = ["ClippedSum", "clipped_grad"]


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
        non_finite: how many of them were excluded, and contributed zero, because their gradient or
            loss was not finite, or far too large.
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
        """How far one example can move ``grads`` in L2 norm, under this relation."""
        groups = self.groups
        return self.clipping.sensitivity(relation, groups)


def clipped_grad(
    model: nn.Module,
    loss_fn: LossFn,
    batch: Any,
    *,
    clipping: Clipping,
    engine: Engine | str = Engine.AUTO,
    micro_batch: int | None = None,
    kept_mb: float = 64.0,
    isolation: Isolation | str = Isolation.CHECKED,
) -> ClippedSum:
    """The sum over the batch of clipped per-example gradients, Σ_i clip(∇ loss_i).

    Guarantees:
        Adding or removing one example moves ``result.grads`` by at most
        ``result.sensitivity(relation)`` in L2 norm.
        Nothing of the model changes: no ``.grad`` is written, no hook stays.

    Edge cases:
        An empty batch gives zeros. An example with a non-finite loss or gradient contributes zero
        and is counted.

    Args:
        model: any module whose examples do not interact.
        loss_fn: ``loss_fn(model, *batch)``, one value per example; ``loss_fn(model, batch)`` for a
            batch that is no tuple or list; or a criterion of torch with reduction="none".
        batch: a tensor, or tuples, dictionaries or dataclasses of tensors, with the examples along
            the first dimension.
        clipping: the bound on each example's gradient.
        engine: how to compute it.
        micro_batch: at most this many examples go through the model at once, to limit memory; None
            takes the batch as a whole. The result is the same, up to rounding and to the layers'
            own noise, which is drawn for each example in either case.
        kept_mb: at most this much of per-example gradients, in 10⁶ bytes, is kept in memory between
            their norms and their sum, beside the layers' inputs and output gradients; what does not
            fit is computed again. Engines that store all gradients take no more examples at once
            than fit, one at least. The result is the same, up to rounding.
        isolation: whether it is tried out that examples do not interact, or each gradient is formed
            alone.

    Raises:
        DpvdError: if ``check`` has something to say of the model, the model or the loss mixes
            examples or keeps something of them, or the loss is not one value per example.
    """
    clipper = GradientClipper(
        model,
        loss_fn,
        clipping=clipping,
        engine=engine,
        micro_batch=micro_batch,
        kept_mb=kept_mb,
        isolation=isolation,
    )
    grouping = clipper.current_grouping()
    total = {name: torch.zeros_like(p) for name, p in grouping.parameters.items()}
    norms = []
    losses = []
    excluded = 0
    jacobian: dict[str, Tensor] = {}
    for part in clipper(batch, grouping=grouping):
        part.add_to(total)
        norms.append(part.norms)
        losses.append(part.losses)
        excluded += part.excluded
        jacobian = dict(part.jacobian)
        del part  # free its memory before the next one is made
    every_norm = torch.cat(norms)
    every_loss = torch.cat(losses)
    count = len(every_loss)
    return ClippedSum(total, every_norm, every_loss, count, excluded, clipping, jacobian)
