"""Whether a model, its loss and its buffers still are what they were: asked in every step."""

from functools import partial
from operator import is_
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from dpvd.grads.batch import LossFn

__all__ = [
    "DEEPEST",
    "BufferWatch",
    "StructureWatch",
    "digest",
    "is_filled",
    "is_plain_object",
    "joined",
    "modules_of",
    "parts_of",
]

DEEPEST = 4  # how many objects are opened, one inside the other, in search of state

_LIBRARIES = ("torch", "numpy", "builtins", "functools", "logging", "threading")
_SUMMED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

ModuleState = tuple[
    nn.Module, bool, bool, list[nn.Module | None], list[nn.Parameter | None], list[bool]
]
"""A module, whether it trains, is compiled; its children, its parameters, which are trained."""


class StructureWatch:
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
        """Asked in every step: walking the model anew would be ten times slower."""
        known = self._modules
        return all(map(_as_before, known))

    def same_loss(self, loss_fn: LossFn) -> bool:
        if loss_fn is not self._loss_fn:
            return False
        parts = _watched_parts(loss_fn)
        return len(parts) == len(self._parts) and all(map(is_, parts, self._parts))


def _watched_parts(value: Any, depth: int = 3) -> list[Any]:
    """What a loss and its parts are made of, in order; for a number its type."""
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
    """Attributes that may decide what is computed.

    Others change all the time, as the last loss or a history does.
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


class BufferWatch:
    """The buffers of a model and of its loss, watched from step to step; parameters if asked.

    A change is seen by the counter that torch keeps of writes to a tensor, not by looking at
    values: this is asked twice in every step.
    """

    def __init__(self, model: nn.Module, loss_fn: Any, *, parameters: bool = False) -> None:
        self._places: list[tuple[str, dict[str, Any]]] = []
        self._parameters: set[str] = set()
        for root, top in (("", model), *modules_of(loss_fn)):
            for name, module in top.named_modules(prefix=root):
                if module._buffers:
                    self._places.append((name, module._buffers))
                if parameters and module._parameters:
                    self._places.append((name, module._parameters))
                    self._parameters.update(joined(name, local) for local in module._parameters)

    def is_parameter(self, name: str) -> bool:
        return name in self._parameters

    def sums(self) -> dict[str, str]:
        """By name, the sum of each parameter, to the last bit; as text, in which NaN equals NaN."""
        named = (
            (joined(place, local), tensor)
            for place, held in self._places
            for local, tensor in held.items()
        )
        return {
            name: digest(tensor)
            for name, tensor in named
            if self.is_parameter(name) and tensor is not None and tensor.dtype in _SUMMED
        }

    def now(self) -> list[tuple[Tensor | None, int]]:
        """Each tensor with the number of writes to it."""
        return [
            (tensor, -1 if tensor is None else tensor._version)
            for _, held in self._places
            for tensor in held.values()
        ]

    def changed(self, before: list[tuple[Tensor | None, int]]) -> list[str]:
        """Names of those that were replaced or written to since."""
        after = self.now()
        if len(after) == len(before) and all(
            a is b and i == j for (a, i), (b, j) in zip(after, before, strict=True)
        ):
            return []
        names = [joined(name, local) for name, held in self._places for local in held]
        if len(after) != len(before):
            return names
        pairs = zip(names, after, before, strict=True)
        return [name for name, (a, i), (b, j) in pairs if a is not b or i != j]


def parts_of(value: Any) -> list[tuple[str, Any]]:
    """What a callable is made of, by name: cells, globals, bound arguments, its object."""
    if isinstance(value, partial):
        bound = [(str(i), argument) for i, argument in enumerate(value.args)]
        return [("func", value.func), *bound, *value.keywords.items()]
    if isinstance(value, MethodType):
        return [("self", value.__self__), ("func", value.__func__)]
    if isinstance(value, FunctionType):
        code = value.__code__
        cells = zip(code.co_freevars, value.__closure__ or (), strict=True)
        named = [(name, cell.cell_contents) for name, cell in cells if is_filled(cell)]
        named += [
            (name, value.__globals__[name]) for name in code.co_names if name in value.__globals__
        ]
        return named + [("default", default) for default in value.__defaults__ or ()]
    return []


def digest(tensor: Tensor) -> str:
    """The sum of a tensor's entries in double precision, as text, in which NaN equals NaN.

    It shows that something was written where torch does not count it. Summed in chunks: as a whole
    it would take a copy of twice the tensor's size.
    """
    flat = tensor.detach().reshape(-1)
    total = 0.0
    for chunk in torch.split(flat, 1 << 18):
        total += float(chunk.sum(dtype=torch.float64))
    return total.hex()


def modules_of(loss_fn: Any) -> list[tuple[str, nn.Module]]:
    """The modules that a loss holds, by where they were found; not those inside them."""
    found: dict[int, tuple[str, nn.Module]] = {}

    def visit(name: str, value: Any, depth: int) -> None:
        if isinstance(value, nn.Module):
            found.setdefault(id(value), (name, value))
        elif depth and isinstance(value, partial | MethodType | FunctionType):
            for part, held in parts_of(value):
                visit(part, held, depth - 1)
        elif depth and is_plain_object(value):
            for part, held in list(vars(value).items()):
                visit(part, held, depth - 1)

    visit("loss", loss_fn, DEEPEST)
    return list(found.values())


def is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - the look itself raises if a variable has no value yet
    except ValueError:
        return False
    return True


def is_plain_object(value: Any) -> bool:
    """Whether this is an object of the user's own, with attributes that can be looked at."""
    if isinstance(value, type | ModuleType) or not hasattr(value, "__dict__"):
        return False
    name = type(value).__module__
    package, _, _ = name.partition(".")
    return package not in _LIBRARIES


def joined(name: str, local: str) -> str:
    if name:
        return f"{name}.{local}"
    return local
