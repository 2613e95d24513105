"""Per-example gradients of a single module by ``torch.func``, for modules without a rule."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.func import vjp, vmap

from dpvd.grads.factored.rule import Call, CannotFactor
from dpvd.nn import tape_from

__all__ = ["Holder", "holders_of", "module_gradients", "substituted"]


def module_gradients(call: Call, grad_output: Tensor) -> dict[str, Tensor]:
    """[B, *shape] gradients of a module's parameters, from its inputs and output gradient."""
    module = call.unit.module
    if any(_drops(part) for part in module.modules()):
        raise CannotFactor(f"{call.unit.name!r} draws dropout masks that cannot be replayed")
    count = len(grad_output)
    parameters = {name: p.detach() for name, p in call.unit.parameters.items()}
    holders = holders_of(module, call.unit.parameters)
    given = [*call.args, *call.kwargs.values()]
    mapped = [_is_per_example(value, count) for value in given]

    def one(draws: list[Tensor], inputs: list[Any], arriving: Tensor) -> dict[str, Tensor]:
        """The gradients of one example."""
        pairs = zip(inputs, mapped, strict=True)
        values = [value.unsqueeze(0) if per_example else value for value, per_example in pairs]
        args = values[: len(call.args)]
        kwargs = dict(zip(call.kwargs, values[len(call.args) :], strict=True))

        def forward(values: dict[str, Tensor]) -> Tensor:
            with tape_from(draws), substituted(holders, values):
                result: Tensor = module(*args, **kwargs)
            return result

        backward = vjp(forward, parameters)[1]
        (gradients,) = backward(arriving.unsqueeze(0))
        found: dict[str, Tensor] = gradients
        return found

    inputs = [value.detach() if isinstance(value, Tensor) else value for value in given]
    input_dims = [0 if per_example else None for per_example in mapped]
    per_example = vmap(one, in_dims=(0, input_dims, 0), randomness="different")
    result: dict[str, Tensor] = per_example(call.draws, inputs, grad_output)
    return result


Holder = tuple[dict[str, Any], str, str]
"""A module's parameters, the name of one among them, and its name in the model."""


def holders_of(module: nn.Module, parameters: dict[str, nn.Parameter]) -> list[Holder]:
    """Where each parameter is held: once for each module, however many names lead to it.

    torch.func's functional_call goes by names. Where two lead to one module it takes its own
    stand-in for what was there before, and leaves that behind: the parameter is an ordinary tensor
    from then on and learns nothing.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    found = []
    for part in module.modules():
        for local, parameter in part._parameters.items():
            if id(parameter) in names:
                found.append((part._parameters, local, names[id(parameter)]))
    return found


@contextmanager
def substituted(holders: list[Holder], values: dict[str, Tensor]) -> Iterator[None]:
    """Let the model compute with these values instead of its parameters."""
    own = [held[local] for held, local, _ in holders]
    for held, local, name in holders:
        held[local] = values[name]
    try:
        yield
    finally:
        for (held, local, _), parameter in zip(holders, own, strict=True):
            held[local] = parameter


def _drops(module: nn.Module) -> bool:
    if not isinstance(module, nn.modules.dropout._DropoutNd):
        return False
    return module.training and module.p > 0


def _is_per_example(value: Any, count: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) == count
