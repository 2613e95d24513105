"""What a model and its loss keep between calls: looked at, and put back as it was."""

import random
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from operator import is_
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["Snapshot", "Watch", "digest", "is_plain_object", "modules_of", "parts_of"]

DEEPEST = 4  # how many objects are opened, one inside the other, in search of state
LARGEST_COPY = (
    1 << 20
)  # entries of a tensor that is no buffer; a data set that hangs on an object is not copied
MOST_MEMBERS = 1000  # of a container that is looked into

_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}
_SUMMED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_PLAIN = (bool, int, float, complex, str, type(None))


def parts_of(value: Any) -> list[tuple[str, Any]]:
    """What a callable is made of, with names: cells, globals that it names, arguments bound to it,
    its object.
    """
    if isinstance(value, partial):
        bound = [(str(i), argument) for i, argument in enumerate(value.args)]
        return [("func", value.func), *bound, *value.keywords.items()]
    if isinstance(value, MethodType):
        return [("self", value.__self__), ("func", value.__func__)]
    if isinstance(value, FunctionType):
        code = value.__code__
        cells = zip(code.co_freevars, value.__closure__ or (), strict=True)
        named = [(name, cell.cell_contents) for name, cell in cells if _is_filled(cell)]
        named += [
            (name, value.__globals__[name]) for name in code.co_names if name in value.__globals__
        ]
        return named + [("default", default) for default in value.__defaults__ or ()]
    return []


def digest(tensor: Tensor) -> str:
    """The sum of a tensor's entries in double precision, as text, in which NaN equals NaN.

    It shows that something was written where torch does not count it. Taken piece by piece: as a
    whole it would take a copy of twice the tensor's size.
    """
    pieces = torch.split(tensor.detach().reshape(-1), 1 << 18)
    return float(sum(float(piece.sum(dtype=torch.float64)) for piece in pieces)).hex()


def modules_of(loss_fn: Any) -> list[tuple[str, nn.Module]]:
    """The modules that a loss holds, by where they were found; modules inside those are not
    listed.
    """
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


class Snapshot:
    """All state of a model and its loss that can be found, as it is now.

    Found are buffers, attributes of modules and of plain objects, lists and dictionaries of them,
    variables that functions close over, globals that they name, NumPy arrays and generators of
    random numbers. Parameters are left alone: they are large, and changing them in a forward pass
    is refused elsewhere.

    Attributes:
        buffers: values of the buffers by name.
        values: values of all else, by where they were found.
    """

    def __init__(self, model: nn.Module, loss_fn: Any) -> None:
        self.buffers: dict[str, Tensor | None] = {}
        self.values: dict[str, Any] = {}
        self._put_back: list[Callable[[], Any]] = []
        self._generators: list[Any] = []
        self._seen: set[int] = set()
        self._visit("", model, DEEPEST)
        for name, module in modules_of(loss_fn):
            self._visit(name, module, DEEPEST)
        self._visit("loss", loss_fn, DEEPEST)

    def restore(self) -> None:
        """Put everything back, in the very objects in which it was found."""
        for put_back in self._put_back:
            put_back()

    def reseed(self, seed: int) -> None:
        """Begin every generator that was found at this seed."""
        for generator in self._generators:
            if isinstance(generator, torch.Generator):
                generator.manual_seed(seed)
            elif isinstance(generator, np.random.Generator):
                generator.bit_generator.state = type(generator.bit_generator)(seed).state
            else:  # that of Python, and the older one of NumPy
                generator.seed(seed)

    def changed_buffers(self, other: "Snapshot") -> list[str]:
        """Names of the buffers that are not the same in another snapshot."""
        names = {**self.buffers, **other.buffers}
        return [
            name for name in names if not _same(self.buffers.get(name), other.buffers.get(name))
        ]

    def same_as(self, other: "Snapshot") -> bool:
        """Whether nothing differs, buffers included."""
        if self.values.keys() != other.values.keys() or self.changed_buffers(other):
            return False
        return all(_same(value, other.values[name]) for name, value in self.values.items())

    def _visit(self, name: str, value: Any, depth: int) -> None:
        if isinstance(value, _PLAIN):
            self.values[name] = value
            return
        if id(value) in self._seen or depth == 0:
            return
        self._seen.add(id(value))
        if isinstance(value, nn.Module):
            self._visit_module(name, value, depth)
        elif isinstance(value, Tensor):
            if not value.requires_grad and value.numel() <= LARGEST_COPY:
                self.values[name] = self._keep_tensor(value)
        elif isinstance(value, np.ndarray):
            if value.size <= LARGEST_COPY and value.dtype != object:
                self._keep_array(name, value)
        elif isinstance(value, list | deque | dict | set | tuple):
            self._visit_container(name, value, depth)
        elif isinstance(
            value, torch.Generator | np.random.Generator | np.random.RandomState | random.Random
        ):
            self._keep_generator(value)
        elif isinstance(value, FunctionType | MethodType | partial):
            self._visit_callable(name, value, depth)
        elif is_plain_object(value):
            self._visit_attributes(name, value, vars(value), depth)

    def _visit_module(self, name: str, module: nn.Module, depth: int) -> None:
        self._keep_mapping(module._buffers)
        for local, buffer in module._buffers.items():
            self.buffers[_join(name, local)] = None if buffer is None else self._keep_tensor(buffer)
        own = {key: value for key, value in vars(module).items() if key not in _OF_EVERY_MODULE}
        self._visit_attributes(name, module, own, depth)
        for local, child in module._modules.items():
            if child is not None:
                self._visit(_join(name, local), child, depth)

    def _visit_attributes(
        self, name: str, owner: Any, attributes: dict[str, Any], depth: int
    ) -> None:
        saved = dict(attributes)
        everything = vars(owner)
        opened = isinstance(owner, nn.Module)

        def put_back() -> None:
            for key in list(everything):
                if key not in saved and not (opened and key in _OF_EVERY_MODULE):
                    del everything[key]
            for key, value in saved.items():
                if everything.get(key) is not value:
                    everything[key] = value

        self._put_back.append(put_back)
        for key, value in saved.items():
            self._visit(_join(name, key), value, depth - 1)

    def _visit_container(self, name: str, container: Any, depth: int) -> None:
        if isinstance(container, dict):
            self._keep_mapping(container)
            members: Iterator[Any] = iter(list(container.values()))
        else:
            if isinstance(container, list | deque):
                self._keep_sequence(container)
            elif isinstance(container, set):
                self._keep_set(container)
            members = iter(tuple(container))
        self.values[f"{name}.len()"] = len(container)
        if len(container) <= MOST_MEMBERS:
            for i, member in enumerate(members):
                self._visit(f"{name}[{i}]", member, depth - 1)

    def _visit_callable(self, name: str, value: Any, depth: int) -> None:
        if isinstance(value, FunctionType):
            for cell in value.__closure__ or ():
                if _is_filled(cell):
                    self._put_back.append(partial(_fill, cell, cell.cell_contents))
            rebound = _rebound_globals(value)
            self._put_back.append(partial(value.__globals__.update, rebound))
        for part, held in parts_of(value):
            self._visit(_join(name, part), held, depth - 1)

    def _keep_tensor(self, tensor: Tensor) -> Tensor:
        copy = tensor.detach().clone()

        def put_back() -> None:
            if not _same(tensor, copy):
                with torch.no_grad():
                    tensor.data.copy_(copy)

        self._put_back.append(put_back)
        return copy

    def _keep_array(self, name: str, array: Any) -> None:
        copy = array.copy()
        self.values[name] = copy

        def put_back() -> None:
            if array.flags.writeable:
                array[...] = copy

        self._put_back.append(put_back)

    def _keep_mapping(self, mapping: dict[Any, Any]) -> None:
        saved = dict(mapping)

        def put_back() -> None:
            if len(mapping) != len(saved) or not all(map(is_, mapping.values(), saved.values())):
                mapping.clear()
                mapping.update(saved)

        self._put_back.append(put_back)

    def _keep_sequence(self, sequence: Any) -> None:
        saved = tuple(sequence)

        def put_back() -> None:
            if len(sequence) != len(saved) or not all(map(is_, sequence, saved)):
                sequence.clear()
                sequence.extend(saved)

        self._put_back.append(put_back)

    def _keep_set(self, members: set[Any]) -> None:
        saved = set(members)

        def put_back() -> None:
            members.clear()
            members.update(saved)

        self._put_back.append(put_back)

    def _keep_generator(self, generator: Any) -> None:
        self._generators.append(generator)
        if isinstance(generator, torch.Generator):
            self._put_back.append(partial(generator.set_state, generator.get_state()))
        elif isinstance(generator, np.random.Generator):
            self._put_back.append(
                partial(setattr, generator.bit_generator, "state", generator.bit_generator.state)
            )
        elif isinstance(generator, np.random.RandomState):
            self._put_back.append(partial(generator.set_state, generator.get_state()))
        else:
            self._put_back.append(partial(generator.setstate, generator.getstate()))


class Watch:
    """The buffers of a model and of the modules in its loss, watched from step to step; its
    parameters, if asked to.

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
                    self._parameters.update(_join(name, local) for local in module._parameters)

    def is_parameter(self, name: str) -> bool:
        return name in self._parameters

    def sums(self) -> dict[str, str]:
        """By name, the sum of each parameter, to the last bit; as text, in which NaN equals NaN."""
        named = (
            (_join(place, local), tensor)
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
        names = [_join(name, local) for name, held in self._places for local in held]
        if len(after) != len(before):
            return names
        pairs = zip(names, after, before, strict=True)
        return [name for name, (a, i), (b, j) in pairs if a is not b or i != j]


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - the look itself raises if a variable has no value yet
    except ValueError:
        return False
    return True


def _fill(cell: CellType, value: Any) -> None:
    cell.cell_contents = value


def _rebound_globals(function: FunctionType) -> dict[str, Any]:
    """Globals that a function names and might rebind: neither functions, nor classes, nor modules
    of Python.
    """
    names = function.__globals__
    fixed = (FunctionType, type, ModuleType)
    return {
        name: names[name]
        for name in function.__code__.co_names
        if name in names and not isinstance(names[name], fixed)
    }


def is_plain_object(value: Any) -> bool:
    """Whether this is an object of the user's own, with attributes that can be looked at."""
    if isinstance(value, type | ModuleType) or not hasattr(value, "__dict__"):
        return False
    package = type(value).__module__.partition(".")[0]
    return package not in ("torch", "numpy", "builtins", "functools", "logging", "threading")


def _join(name: str, local: str) -> str:
    return f"{name}.{local}" if name else local


def _same(one: Any, other: Any) -> bool:
    """Equal values; NaN equals NaN, and a number differs from a tensor."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        return torch.equal(one, other) or bool(
            (one == other).logical_or((one != one) & (other != other)).all()
        )
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, Tensor | np.ndarray) or isinstance(other, Tensor | np.ndarray):
        return False
    return bool(one is other or one == other or (one != one and other != other))
