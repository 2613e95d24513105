"""Which modules are taken as a whole when per-example gradients are formed, and how their calls are observed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dpvd.grads.calls import Call, CannotFactor, Unit, leaves
from dpvd.grads.rules import RULES
from dpvd.grads.rules.common import Inside, ManyOutputs, OwnForward
from dpvd.nn import NoiseTape

__all__ = ["Call", "CannotFactor", "Unit", "batch_dims", "find_units", "observe"]


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
        has_rule = type(module) in RULES
        if any(p.requires_grad for p in module.parameters(recurse=has_rule)):
            units.append(Unit(name, module))
        else:
            for child_name, child in module.named_children():
                visit(f"{name}.{child_name}" if name else child_name, child)

    visit("", model)
    return units


def batch_dims(module: nn.Module) -> tuple[int, ...]:
    """Where the batch is in each gradient that a module's rule gets: one, with the batch first, unless it says more."""
    rule = RULES.get(type(module))
    return rule.batch_dims(module) if isinstance(rule, ManyOutputs) else (0,)


@contextmanager
def observe(units: list[Unit], tape: NoiseTape) -> Iterator[list[Call]]:
    """Record every call of every unit made inside the block."""
    calls: list[Call] = []
    handles: list[Any] = []
    for unit in units:
        insides: list[Inside] = []  # of calls that have ended, if the unit's rule runs its forward pass
        begun: list[int] = []  # how much noise was drawn before the running calls (a stack: units may be re-entrant)

        def before(module: nn.Module, args: Any, begun: list[int] = begun) -> None:
            begun.append(len(tape.draws))

        def after(
            module: nn.Module,
            args: Any,
            kwargs: Any,
            output: Any,
            unit: Unit = unit,
            begun: list[int] = begun,
            insides: list[Inside] = insides,
        ) -> None:
            first = begun.pop()
            inside = insides.pop() if insides else Inside(_edges(unit, output), None)
            if any(edge is not None for edge in inside.edges):
                drawn = tape.draws[first:], tape.aux[first:]
                calls.append(Call(unit, args, kwargs, *drawn, inside.edges, inside.memory))

        rule = RULES.get(type(unit.module))
        if isinstance(rule, OwnForward):
            handles.append(_ReplacedForward(unit, rule, insides))
        handles.append(unit.module.register_forward_pre_hook(before))
        handles.append(unit.module.register_forward_hook(after, with_kwargs=True))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


class _ReplacedForward:
    """Until it is removed, a module's calls run its rule's forward pass."""

    def __init__(self, unit: Unit, rule: OwnForward, insides: list[Inside]) -> None:
        def forward(*args: Any, **kwargs: Any) -> Any:
            output, inside = rule.forward(unit, *args, **kwargs)
            insides.append(inside)
            return output

        self._attributes = vars(unit.module)
        self._attributes["forward"] = forward  # found before that of the class

    def remove(self) -> None:
        del self._attributes["forward"]


def _edges(unit: Unit, output: Any) -> list[Any]:
    """Where gradients of the outputs arrive; None for an output without gradient.

    The edge, not the tensor: a later in-place operation (ReLU(inplace=True)) would replace the tensor's place in
    the graph by its own.
    """
    outputs = leaves(output)
    expected = len(batch_dims(unit.module))
    if len(outputs) != expected or (expected == 1 and not isinstance(output, Tensor)):
        what = "one tensor" if expected == 1 else f"the {expected} values that its rule takes"
        raise CannotFactor(f"{unit.name!r} returns {type(output).__name__}, not {what}")
    return [
        torch.autograd.graph.get_gradient_edge(value) if isinstance(value, Tensor) and value.requires_grad else None
        for value in outputs
    ]
