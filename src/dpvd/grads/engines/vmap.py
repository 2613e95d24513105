"""Per-example gradients by ``torch.func``: any module, at the price of storing every gradient."""

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from dpvd.grads.batch import Batch, LossFn, copied, losses_of, per_example_losses
from dpvd.grads.clipping import Clipping, Grouping
from dpvd.grads.factored import Materialised
from dpvd.grads.factored.holders import holders_of, substituted
from dpvd.grads.per_example import ClippedGradients, clip
from dpvd.nn import NoiseTape, tape_from

__all__ = ["vmapped"]


def vmapped(
    model: nn.Module, loss_fn: LossFn, batch: Batch, clipping: Clipping, grouping: Grouping
) -> ClippedGradients:
    """Clipped gradients, materialised for the whole model."""
    tape = NoiseTape()
    with tape.recording(), torch.no_grad():
        per_example_losses(model, loss_fn, copied(batch))
    parameters = {name: p.detach() for name, p in grouping.parameters.items()}
    holders = holders_of(model, grouping.parameters)

    def loss_of(
        values: dict[str, Tensor], draws: list[Tensor], example: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        with tape_from(draws), substituted(holders, values):
            batch_of_one = batch.of(tensor.unsqueeze(0) for tensor in example)
            losses = losses_of(model, loss_fn, batch_of_one)
            loss = losses.squeeze(0)
        return loss, loss

    gradient_and_loss = grad(loss_of, has_aux=True)
    per_example = vmap(gradient_and_loss, in_dims=(None, 0, 0), randomness="different")
    found, losses = per_example(parameters, tape.draws, batch.tensors)
    with torch.no_grad():
        jacobian = grouping.jacobian()
        gradients = {}
        for name, values in found.items():  # [B, *shape]
            divided = jacobian.divide(name, values)
            gradients[name] = Materialised(divided)
        return clip(gradients, losses, clipping, grouping, jacobian)
