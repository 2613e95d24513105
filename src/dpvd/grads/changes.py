"""Whether a model and its loss still are what they were when something was worked out from them."""

from functools import partial
from operator import is_
from types import FunctionType, MethodType
from typing import Any

from torch import nn

from dpvd.grads.batches import LossFn
from dpvd.grads.state import is_plain_object, modules_of, parts_of

__all__ = ["Watched"]

ModuleState = tuple[
    nn.Module, bool, bool, list[nn.Module | None], list[nn.Parameter | None], list[bool]
]
"""A module, its mode, whether it is compiled, its children, its parameters, whether those are
trained.
"""


class Watched:
    """A model and a loss as they were when this was made.

    Watched are the modules of both, their modes, parameters and what of those is trained; the loss
    itself, and what it closes over, names or was bound to. Numbers may change, as weights of a
    schedule do, and tensors that an object holds as attributes.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFn) -> None:
        self._loss_fn = loss_fn
        self._parts = _watched_parts(loss_fn)
        tops = [model, *(module for _, module in modules_of(loss_fn))]
        modules = dict.fromkeys(module for top in tops for module in top.modules())
        self._modules = [_state_of(module) for module in modules]

    def same_modules(self) -> bool:
        """Asked twice in every step: walking the model anew would be ten times slower."""
        return all(map(_as_before, self._modules))

    def same_loss(self, loss_fn: LossFn) -> bool:
        if loss_fn is not self._loss_fn:
            return False
        parts = _watched_parts(loss_fn)
        return len(parts) == len(self._parts) and all(map(is_, parts, self._parts))


def _watched_parts(value: Any, depth: int = 3) -> list[Any]:
    """What a loss is made of, in order, and what its parts are made of; in place of a number its
    type.
    """
    found: list[Any] = []
    for held in _held_by(value):
        if isinstance(held, int | float) and not isinstance(held, bool):
            found.append(type(held))
            continue
        found.append(held)
        if depth > 1:
            found += _watched_parts(held, depth - 1)
    return found


def _held_by(value: Any) -> list[Any]:
    """What a callable holds. The state of modules is looked at apart."""
    if isinstance(value, nn.Module | type) or not callable(value):
        return []
    if isinstance(value, MethodType):
        return [*_attributes(value.__self__), value.__func__]
    if isinstance(value, FunctionType | partial):
        return [held for _, held in parts_of(value)]
    return _attributes(value)


def _attributes(owner: Any) -> list[Any]:
    """Attributes that may decide what is computed. Others change all the time, as the last loss or
    a history does.
    """
    if isinstance(owner, nn.Module) or not is_plain_object(owner):
        return []
    return [
        held
        for held in vars(owner).values()
        if held is None or isinstance(held, bool | str) or callable(held)
    ]


def _state_of(module: nn.Module) -> ModuleState:
    parameters = list(module._parameters.values())
    trained = [p is not None and p.requires_grad for p in parameters]
    compiled = module._compiled_call_impl is not None
    return module, module.training, compiled, list(module._modules.values()), parameters, trained


def _as_before(state: ModuleState) -> bool:
    module, training, compiled, children, parameters, trained = state
    if module.training is not training or (module._compiled_call_impl is not None) is not compiled:
        return False
    if len(module._modules) != len(children) or len(module._parameters) != len(parameters):
        return False
    if not all(map(is_, module._modules.values(), children)):
        return False
    for now, then, train in zip(module._parameters.values(), parameters, trained, strict=True):
        if now is not then or (now is not None and now.requires_grad is not train):
            return False
    return True
