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

from dpvd.grads.isolation.watch import (
    DEEPEST,
    is_filled,
    is_plain_object,
    joined,
    modules_of,
    parts_of,
)

__all__ = ["Snapshot"]

# Entries of a tensor that is no buffer; a data set that hangs on an object is not copied.
LARGEST_COPY = 1 << 20
MOST_MEMBERS = 1000  # of a container that is looked into

_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}
_PLAIN = (bool, int, float, complex, str, type(None))


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
            self.buffers[joined(name, local)] = (
                None if buffer is None else self._keep_tensor(buffer)
            )
        own = {key: value for key, value in vars(module).items() if key not in _OF_EVERY_MODULE}
        self._visit_attributes(name, module, own, depth)
        for local, child in module._modules.items():
            if child is not None:
                self._visit(joined(name, local), child, depth)

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
            self._visit(joined(name, key), value, depth - 1)

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
                if is_filled(cell):
                    self._put_back.append(partial(_fill, cell, cell.cell_contents))
            rebound = _rebound_globals(value)
            self._put_back.append(partial(value.__globals__.update, rebound))
        for part, held in parts_of(value):
            self._visit(joined(name, part), held, depth - 1)

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


def _fill(cell: CellType, value: Any) -> None:
    cell.cell_contents = value


def _rebound_globals(function: FunctionType) -> dict[str, Any]:
    """Globals that a function names and might rebind: no functions, classes or modules."""
    known = function.__globals__
    fixed = (FunctionType, type, ModuleType)
    found = {}
    for name in function.__code__.co_names:
        if name in known and not isinstance(known[name], fixed):
            found[name] = known[name]
    return found


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
