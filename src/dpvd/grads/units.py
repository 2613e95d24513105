"""Which modules are taken as a whole when per-example gradients are formed, and how their calls are observed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dpvd.grads.rules import RULES
from dpvd.nn import NoiseTape

__all__ = ["Call", "CannotFactor", "Unit", "find_units", "observe"]


class CannotFactor(Exception):
    """The factored engine cannot treat this model; the message says why. Another engine takes over."""


@dataclass(frozen=True)
class Unit:
    """A module whose trainable parameters get their gradients from its inputs and output gradients."""

    name: str
    module: nn.Module

    @property
    def has_rule(self) -> bool:
        return type(self.module) in RULES

    def parameters(self) -> dict[str, nn.Parameter]:
        """The unit's trainable parameters by their name inside the unit."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}


@dataclass
class Call:
    """One call of a unit in one forward pass."""

    unit: Unit
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    draws: list[Tensor]  # the random numbers the unit drew, each with the batch first
    aux: list[Tensor | None]  # what the layer told of each draw: the standard deviation it was multiplied by
    edge: Any = None  # where the gradient of the output arrives in the graph
    versions: list[int] = field(default_factory=list)

    def input(self) -> Tensor:
        """The single tensor the unit was called with."""
        if len(self.args) != 1 or self.kwargs or not isinstance(self.args[0], Tensor):
            raise CannotFactor(f"{self.unit.name!r} was called with more than one input")
        return self.args[0]

    def check_unchanged(self) -> None:
        """Raise if an input was overwritten in place after the call: its gradient cannot be formed any more."""
        if self.versions != _versions(self.args, self.kwargs):
            raise CannotFactor(f"an input of {self.unit.name!r} was changed in place after the call")


def find_units(model: nn.Module) -> list[Unit]:
    """The units of a model, in order.

    A module with a rule is a unit. So is a module that owns trainable parameters itself but has no rule: its
    children are not looked at, since its forward pass may use their parameters in any way.
    """
    units: list[Unit] = []
    seen: set[int] = set()

    def visit(name: str, module: nn.Module) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        owns = any(p.requires_grad for p in module.parameters(recurse=False))
        if owns:
            units.append(Unit(name, module))
        else:
            for child_name, child in module.named_children():
                visit(f"{name}.{child_name}" if name else child_name, child)

    visit("", model)
    return units


@contextmanager
def observe(units: list[Unit], tape: NoiseTape) -> Iterator[list[Call]]:
    """Record every call of every unit made inside the block."""
    calls: list[Call] = []
    handles = []
    for unit in units:
        start: list[int] = []  # where in the tape the running calls began (a stack: units may be re-entrant)

        def before(module: nn.Module, args: Any, start: list[int] = start) -> None:
            start.append(len(tape.draws))

        def after(
            module: nn.Module,
            args: Any,
            kwargs: Any,
            output: Any,
            unit: Unit = unit,
            start: list[int] = start,
        ) -> None:
            first = start.pop()
            call = Call(unit, args, kwargs, tape.draws[first:], tape.aux[first:])
            call.versions = _versions(args, kwargs)
            if not isinstance(output, Tensor):
                raise CannotFactor(f"{unit.name!r} returns {type(output).__name__}, not one tensor")
            if output.requires_grad:
                # The edge, not the tensor: a later in-place operation (ReLU(inplace=True)) would replace the
                # tensor's place in the graph by its own.
                call.edge = torch.autograd.graph.get_gradient_edge(output)
                calls.append(call)

        handles.append(unit.module.register_forward_pre_hook(before))
        handles.append(unit.module.register_forward_hook(after, with_kwargs=True))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _versions(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
    return [value._version for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
