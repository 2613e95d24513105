"""Whether a model and its loss still are what they were when something was worked out from them."""

from operator import is_
from types import FunctionType, MethodType
from typing import Any

from torch import nn

from dpvd.grads.batches import LossFn
from dpvd.grads.state import modules_of, parts_of

__all__ = ["Watched"]

ModuleState = tuple[nn.Module, bool, bool, list[nn.Module | None], list[nn.Parameter | None], list[bool]]
"""A module, its mode, whether it is compiled, its children, its parameters, whether those are trained."""


class Watched:
    """A model and a loss as they were when this was made.

    Watched are the modules of both, their modes, parameters and what of those is trained; the loss itself, and what it
    closes over, names or was bound to. Numbers may change, as weights of a schedule do, and tensors that an object
    holds as attributes.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFn) -> None:
        self._loss_fn = loss_fn
        self._parts = _watched_parts(loss_fn)
        tops = [model, *(module for _, module in modules_of(loss_fn))]
        modules = dict.fromkeys(module for top in tops for module in top.modules())
        self._modules = [_state_of(module) for module in modules]

    def unchanged(self, loss_fn: LossFn) -> bool:
        """Asked twice in every step: walking the model anew would be ten times slower."""
        if loss_fn is not self._loss_fn or not all(map(_as_before, self._modules)):
            return False
        parts = _watched_parts(loss_fn)
        return len(parts) == len(self._parts) and all(map(is_, parts, self._parts))


def _watched_parts(loss_fn: Any, depth: int = 2) -> list[Any]:
    """What a loss is made of, in order; in place of a number its type."""
    if not isinstance(loss_fn, nn.Module) and not isinstance(loss_fn, FunctionType | MethodType):
        attributes = getattr(loss_fn, "__dict__", {})
        return _parts(list(attributes.values()), False, depth) + _parts_of_callable(loss_fn, depth)
    return _parts_of_callable(loss_fn, depth)


def _parts_of_callable(value: Any, depth: int) -> list[Any]:
    if isinstance(value, MethodType):
        attributes = getattr(value.__self__, "__dict__", {})
        own = [] if isinstance(value.__self__, nn.Module) else _parts(list(attributes.values()), False, depth)
        return own + _parts_of_callable(value.__func__, depth)
    return _parts([held for _, held in parts_of(value)], True, depth)


def _parts(values: list[Any], tensors: bool, depth: int) -> list[Any]:
    """Values that matter, and what functions among them are made of."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, int | float) and not isinstance(value, bool):
            found.append(type(value))
        elif tensors or value is None or isinstance(value, bool | str | nn.Module) or callable(value):
            found.append(value)
            if depth > 1 and isinstance(value, FunctionType | MethodType):
                found += _parts_of_callable(value, depth - 1)
    return found


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
