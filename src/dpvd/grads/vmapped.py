"""Per-example gradients by ``torch.func``: takes any module, at the price of storing every
gradient.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vjp, vmap

from dpvd.grads.assemble import assemble
from dpvd.grads.batches import Batch, LossFn, copied, per_example_losses
from dpvd.grads.clipped import ClippedGradients
from dpvd.grads.clipping import Clipping
from dpvd.grads.forms import Materialised
from dpvd.grads.groups import Grouping
from dpvd.grads.units import Call, CannotFactor
from dpvd.nn import NoiseTape, tape_from

__all__ = ["module_gradients", "vmapped"]


def vmapped(
    model: nn.Module, loss_fn: LossFn, batch: Batch, clipping: Clipping, grouping: Grouping
) -> ClippedGradients:
    """Clipped gradients, materialised for the whole model."""
    tape = NoiseTape()
    with tape.recording(), torch.no_grad():
        per_example_losses(model, loss_fn, copied(batch))
    parameters = {name: p.detach() for name, p in grouping.parameters.items()}
    places = _places(model, grouping.parameters)

    def loss_of(
        values: dict[str, Tensor], draws: list[Tensor], example: Batch
    ) -> tuple[Tensor, Tensor]:
        with tape_from(draws), _in_place_of(places, values):
            loss = loss_fn(model, *(t.unsqueeze(0) for t in example)).squeeze(0)
        return loss, loss

    per_example = vmap(grad(loss_of, has_aux=True), in_dims=(None, 0, 0), randomness="different")
    gradients, losses = per_example(parameters, tape.draws, batch)
    with torch.no_grad():
        jacobian = grouping.jacobians()
        forms = {
            name: Materialised(found / jacobian.get(name, 1.0)) for name, found in gradients.items()
        }
        return assemble(forms, losses, clipping, grouping, jacobian)


def module_gradients(call: Call, grad_output: Tensor) -> dict[str, Tensor]:
    """[B, *shape] gradients of one module's parameters, from its recorded inputs and output
    gradients.
    """
    module = call.unit.module
    if any(
        isinstance(m, nn.modules.dropout._DropoutNd) and m.training and m.p > 0
        for m in module.modules()
    ):
        raise CannotFactor(f"{call.unit.name!r} draws dropout masks that cannot be replayed")
    count = len(grad_output)
    parameters = {name: p.detach() for name, p in call.unit.parameters.items()}
    places = _places(module, call.unit.parameters)
    mapped = [_per_example(value, count) for value in (*call.args, *call.kwargs.values())]

    def one(draws: list[Tensor], inputs: list[Any], arriving: Tensor) -> dict[str, Tensor]:
        values = [v.unsqueeze(0) if per else v for v, per in zip(inputs, mapped, strict=True)]
        args, kwargs = (
            tuple(values[: len(call.args)]),
            dict(zip(call.kwargs, values[len(call.args) :], strict=True)),
        )

        def forward(values: dict[str, Tensor]) -> Tensor:
            with tape_from(draws), _in_place_of(places, values):
                result: Tensor = module(*args, **kwargs)
            return result

        pull = vjp(forward, parameters)[1]
        gradients: dict[str, Tensor] = pull(arriving.unsqueeze(0))[0]
        return gradients

    inputs = [
        v.detach() if isinstance(v, Tensor) else v for v in (*call.args, *call.kwargs.values())
    ]
    in_dims = (0, [0 if per else None for per in mapped], 0)
    result: dict[str, Tensor] = vmap(one, in_dims=in_dims, randomness="different")(
        call.draws, inputs, grad_output
    )
    return result


Place = tuple[dict[str, Any], str, str]
"""A module's parameters, the name of one among them, and its name in the model."""


def _places(module: nn.Module, parameters: dict[str, nn.Parameter]) -> list[Place]:
    """Where each parameter is held: in one place for each module that has it, however many names
    lead to that module.

    torch.func's functional_call goes by names. Where two lead to one module it takes its own
    stand-in for what was there before, and leaves that behind: the parameter is an ordinary tensor
    from then on and learns nothing.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    return [
        (part._parameters, local, names[id(parameter)])
        for part in module.modules()
        for local, parameter in part._parameters.items()
        if id(parameter) in names
    ]


@contextmanager
def _in_place_of(places: list[Place], values: dict[str, Tensor]) -> Iterator[None]:
    """Let the model compute with these values instead of its parameters."""
    own = [held[local] for held, local, _ in places]
    for held, local, name in places:
        held[local] = values[name]
    try:
        yield
    finally:
        for (held, local, _), parameter in zip(places, own, strict=True):
            held[local] = parameter


def _per_example(value: Any, count: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) == count
