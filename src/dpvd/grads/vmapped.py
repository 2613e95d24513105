"""Per-example gradients by ``torch.func``: takes any module, at the price of storing every gradient."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp, vmap

from dpvd.grads.assemble import assemble
from dpvd.grads.batches import Batch, LossFn, per_example_losses
from dpvd.grads.clipped import ClippedGradients
from dpvd.grads.clipping import Clipping
from dpvd.grads.forms import Materialised
from dpvd.grads.groups import Grouping
from dpvd.grads.units import Call, CannotFactor
from dpvd.nn import NoiseTape, tape_from

__all__ = ["module_gradients", "vmapped"]


class _LossModule(nn.Module):
    """Model and loss as one module, so that its parameters can be swapped wherever the loss uses them."""

    def __init__(self, model: nn.Module, loss_fn: LossFn) -> None:
        super().__init__()
        self.model = model
        self.loss_fn = loss_fn

    def forward(self, *batch: Tensor) -> Tensor:
        return self.loss_fn(self.model, *batch)


def vmapped(
    model: nn.Module, loss_fn: LossFn, batch: Batch, clipping: Clipping, grouping: Grouping
) -> ClippedGradients:
    """Clipped gradients, materialised for the whole model."""
    tape = NoiseTape()
    with tape.recording(), torch.no_grad():
        per_example_losses(model, loss_fn, batch)
    module = _LossModule(model, loss_fn)
    parameters = {f"model.{name}": p.detach() for name, p in grouping.parameters.items()}

    def loss_of(values: dict[str, Tensor], draws: list[Tensor], example: Batch) -> tuple[Tensor, Tensor]:
        with tape_from(draws):
            loss = functional_call(module, values, tuple(t.unsqueeze(0) for t in example)).squeeze(0)
        return loss, loss

    per_example = vmap(grad(loss_of, has_aux=True), in_dims=(None, 0, 0), randomness="different")
    gradients, losses = per_example(parameters, tape.draws, batch)
    with torch.no_grad():
        found, jacobian = {name: gradients[f"model.{name}"] for name in grouping.parameters}, grouping.jacobians()
        forms = {name: Materialised(values / jacobian.get(name, 1.0)) for name, values in found.items()}
        return assemble(forms, losses, clipping, grouping, jacobian)


def module_gradients(call: Call, grad_output: Tensor) -> dict[str, Tensor]:
    """[B, *shape] gradients of one module's parameters, from its recorded inputs and output gradients."""
    module = call.unit.module
    if any(isinstance(m, nn.modules.dropout._DropoutNd) and m.training and m.p > 0 for m in module.modules()):
        raise CannotFactor(f"{call.unit.name!r} draws dropout masks that cannot be replayed")
    count = len(grad_output)
    parameters = {name: p.detach() for name, p in call.unit.parameters.items()}
    mapped = [_per_example(value, count) for value in (*call.args, *call.kwargs.values())]

    def one(draws: list[Tensor], inputs: list[Any], arriving: Tensor) -> dict[str, Tensor]:
        values = [v.unsqueeze(0) if per else v for v, per in zip(inputs, mapped, strict=True)]
        args, kwargs = (
            tuple(values[: len(call.args)]),
            dict(zip(call.kwargs, values[len(call.args) :], strict=True)),
        )

        def forward(values: dict[str, Tensor]) -> Tensor:
            with tape_from(draws):
                result: Tensor = functional_call(module, values, args, kwargs)
            return result

        pull = vjp(forward, parameters)[1]
        gradients: dict[str, Tensor] = pull(arriving.unsqueeze(0))[0]
        return gradients

    inputs = [v.detach() if isinstance(v, Tensor) else v for v in (*call.args, *call.kwargs.values())]
    in_dims = (0, [0 if per else None for per in mapped], 0)
    result: dict[str, Tensor] = vmap(one, in_dims=in_dims, randomness="different")(call.draws, inputs, grad_output)
    return result


def _per_example(value: Any, count: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) == count
