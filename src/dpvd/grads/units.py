"""Which modules are taken as a whole when per-example gradients are formed, and how their calls are
observed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpvd.grads.calls import Call, CannotFactor, Unit, leaves
from dpvd.grads.rules import RULES
from dpvd.grads.rules.common import Inside, ManyOutputs, OwnForward
from dpvd.nn import NoiseTape
from dpvd.nn.noise_families import AdditiveNoise

__all__ = ["Call", "CannotFactor", "Unit", "batch_dims", "find_units", "observe"]


def find_units(model: nn.Module) -> list[Unit]:
    """The units of a model, in order.

    A module with a rule is a unit. So is a module that owns trainable parameters itself but has no
    rule: its children are not looked at, since its forward pass may use their parameters in any
    way.
    """
    units: list[Unit] = []
    seen: set[int] = set()

    def visit(name: str, module: nn.Module) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        has_rule = type(module) in RULES
        if any(p.requires_grad for p in module.parameters(recurse=has_rule)):
            units.append(Unit(name, module, RULES.get(type(module))))
        else:
            for child_name, child in module.named_children():
                visit(f"{name}.{child_name}" if name else child_name, child)

    visit("", model)
    return units


def batch_dims(unit: Unit) -> tuple[int, ...]:
    """Where the batch is in each gradient that a unit's rule gets: one, with the batch first,
    unless it says more.
    """
    return unit.rule.batch_dims(unit.module) if isinstance(unit.rule, ManyOutputs) else (0,)


@contextmanager
def observe(units: list[Unit], tape: NoiseTape) -> Iterator[list[Call]]:
    """Record every call of every unit made inside the block.

    For that time a unit's forward pass is replaced by one that records: torch's hooks do the same
    at several times the cost, which small networks feel.
    """
    calls: list[Call] = []
    replaced: list[tuple[dict[str, Any], Any]] = []
    try:
        for unit in units:
            attributes = vars(unit.module)
            replaced.append((attributes, attributes.get("forward")))
            attributes["forward"] = _recording(unit, tape, calls)  # found before that of the class
        yield calls
    finally:
        for attributes, own in replaced:
            if own is None:
                attributes.pop("forward", None)
            else:
                attributes["forward"] = own


def _recording(unit: Unit, tape: NoiseTape, calls: list[Call]) -> Callable[..., Any]:
    """The unit's forward pass, or that of its rule, with a record of each call."""
    own_forward = isinstance(unit.rule, OwnForward)
    # Additive noise of a fixed scale is in the outputs and nowhere else: no gradient asks what it
    # was.
    forgotten = (
        unit.rule is not None and isinstance(unit.module, AdditiveNoise) and not unit.module.learned
    )
    run = (
        partial(unit.rule.forward, unit)
        if own_forward
        else _run_as_it_is(unit, len(batch_dims(unit)))
    )

    def forward(*args: Any, **kwargs: Any) -> Any:
        first = len(tape.draws)
        output, inside = run(*args, **kwargs)
        if forgotten:
            del tape.draws[first:], tape.aux[first:]
        if any(edge is not None for edge in inside.edges):
            drawn = tape.draws[first:], tape.aux[first:]
            calls.append(Call(unit, args, kwargs, *drawn, inside.edges, inside.memory))
        return output

    return forward


def _run_as_it_is(unit: Unit, expected: int) -> Callable[..., tuple[Any, Inside]]:
    own = unit.module.forward

    def run(*args: Any, **kwargs: Any) -> tuple[Any, Inside]:
        output = own(*args, **kwargs)
        return output, Inside(_edges(unit, output, expected), None)

    return run


def _edges(unit: Unit, output: Any, expected: int) -> list[Any]:
    """Where gradients of the outputs arrive; None for an output without gradient.

    The edge, not the tensor: a later in-place operation (ReLU(inplace=True)) would replace the
    tensor's place in the graph by its own.
    """
    outputs = leaves(output)
    if len(outputs) != expected or (expected == 1 and not isinstance(output, Tensor)):
        what = "one tensor" if expected == 1 else f"the {expected} values that its rule takes"
        raise CannotFactor(f"{unit.name!r} returns {type(output).__name__}, not {what}")
    return [
        torch.autograd.graph.get_gradient_edge(value)
        if isinstance(value, Tensor) and value.requires_grad
        else None
        for value in outputs
    ]
