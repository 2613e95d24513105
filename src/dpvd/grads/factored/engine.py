"""The fast engine: one forward pass, one backward pass to layer outputs, one product per weight.

No per-example gradient of a layer with a rule is ever stored. Modules without a rule are
differentiated per example by themselves with ``torch.func``; the rest of the model keeps its
factors.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from dpvd.grads.batch import Batch, LossFn, per_example_losses
from dpvd.grads.clipping import Clipping, Grouping, Unit
from dpvd.grads.factored.fallback import module_gradients
from dpvd.grads.factored.represent import allowance_for, represent, shared_factors
from dpvd.grads.factored.rule import (
    HALF,
    Call,
    CannotFactor,
    CustomForwardRule,
    Direct,
    ForwardTrace,
    MultiOutputRule,
    Terms,
    in_full,
    leaves,
)
from dpvd.grads.factored.rules import HALF_PRECISION, RULES
from dpvd.grads.per_example import KEPT_BYTES, ClippedGradients, clip
from dpvd.nn import AdditiveNoise, NoiseTape

__all__ = ["factored", "find_units"]

log = logging.getLogger("dpvd")

Grads = tuple[Any, ...]
"""For each output of a call the gradient that arrives there, or None."""


def factored(
    model: nn.Module,
    loss_fn: LossFn,
    batch: Batch,
    clipping: Clipping,
    grouping: Grouping,
    kept_bytes: int = KEPT_BYTES,
) -> ClippedGradients:
    """Clipped gradients as factors.

    Args:
        model, loss_fn, batch, clipping, grouping: as for every engine.
        kept_bytes: most that is kept of gradients until they are added up, beside the factors.

    Raises:
        CannotFactor: when a module's gradients cannot be told from its inputs and output gradients.
    """
    tape = NoiseTape()
    with _recorded_calls(grouping.units, tape) as calls, tape.recording():
        losses = per_example_losses(model, loss_fn, batch)
    arriving = _backward_to_outputs(losses, calls)
    with torch.no_grad():
        terms = _collect_terms(calls, arriving, len(losses), grouping)
        jacobian = grouping.jacobian()
        shared = shared_factors(terms)
        allowance = allowance_for(terms, kept_bytes)
        gradients = {}
        for name, parts in terms.items():
            gradients[name] = represent(parts, jacobian.get(name), shared, allowance)
        return clip(gradients, losses, clipping, grouping, jacobian)


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
        owned = module.parameters(recurse=has_rule)
        if any(parameter.requires_grad for parameter in owned):
            rule = RULES.get(type(module))
            units.append(Unit(name, module, rule))
            return
        prefix = f"{name}." if name else ""
        for child_name, child in module.named_children():
            visit(prefix + child_name, child)

    visit("", model)
    return units


# The forward pass: every call of a unit is recorded


@contextmanager
def _recorded_calls(units: list[Unit], tape: NoiseTape) -> Iterator[list[Call]]:
    """Record every call of every unit made inside the block.

    For that time ``forward`` is replaced on the module instances by one that records: torch's hooks
    do the same at several times the cost, which small networks feel.
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
    run = _plain_forward(unit)
    if isinstance(unit.rule, CustomForwardRule):
        run = partial(unit.rule.forward, unit)
    # Additive noise of a fixed scale is in the outputs and nowhere else: no gradient needs it.
    is_fixed = isinstance(unit.module, AdditiveNoise) and not unit.module.learned
    forget_draws = is_fixed and unit.rule is not None

    def forward(*args: Any, **kwargs: Any) -> Any:
        first = len(tape.draws)
        output, trace = run(*args, **kwargs)
        if forget_draws:
            del tape.draws[first:]
            del tape.aux[first:]
        if any(edge is not None for edge in trace.edges):
            draws = tape.draws[first:]
            aux = tape.aux[first:]
            call = Call(unit, args, kwargs, draws, aux, trace.edges, trace.saved)
            calls.append(call)
        return output

    return forward


def _plain_forward(unit: Unit) -> Callable[..., tuple[Any, ForwardTrace]]:
    """The module's own forward pass."""
    own = unit.module.forward
    expected = len(_batch_dims(unit))

    def run(*args: Any, **kwargs: Any) -> tuple[Any, ForwardTrace]:
        output = own(*args, **kwargs)
        edges = _edges(unit, output, expected)
        return output, ForwardTrace(edges, None)

    return run


def _batch_dims(unit: Unit) -> tuple[int, ...]:
    """The batch dimension of each gradient that a unit's rule gets."""
    if isinstance(unit.rule, MultiOutputRule):
        return unit.rule.batch_dims(unit.module)
    return (0,)  # one gradient, with the batch first


def _edges(unit: Unit, output: Any, expected: int) -> list[Any]:
    """Where gradients of the outputs arrive; None for an output without gradient.

    The edge, not the tensor: a later in-place operation (ReLU(inplace=True)) would replace the
    tensor's position in the graph by its own.
    """
    outputs = leaves(output)
    if len(outputs) != expected or (expected == 1 and not isinstance(output, Tensor)):
        what = "one tensor" if expected == 1 else f"the {expected} values that its rule takes"
        raise CannotFactor(f"{unit.name!r} returns {type(output).__name__}, not {what}")
    edges = []
    for value in outputs:
        edge = None
        if isinstance(value, Tensor) and value.requires_grad:
            edge = get_gradient_edge(value)
        edges.append(edge)
    return edges


# The backward pass, and what rules make of it


def _backward_to_outputs(losses: Tensor, calls: list[Call]) -> list[Grads]:
    """The gradients of the losses' sum with respect to each call's outputs, and nothing further."""
    edges = [edge for call in calls for edge in call.edges if edge is not None]
    found: Iterator[Tensor | None] = iter([None] * len(edges))
    if edges and losses.requires_grad:
        ones = torch.ones_like(losses)
        found = iter(torch.autograd.grad(losses, edges, ones, allow_unused=True))
    arriving = []
    for call in calls:
        grads = [None if edge is None else next(found) for edge in call.edges]
        arriving.append(tuple(grads))
    return arriving


def _collect_terms(
    calls: list[Call], arriving: list[Grads], count: int, grouping: Grouping
) -> Terms:
    """All terms of each parameter of the model: a parameter used twice, or tied, gets the sum."""
    terms: Terms = {}
    for call, grads in zip(calls, arriving, strict=True):
        if all(grad is None for grad in grads):
            continue
        call.check_batch(grads, _batch_dims(call.unit), count)
        call.check_unchanged()
        parameters = call.unit.parameters
        for local, parts in _terms_of_call(*_in_full(call, grads)).items():
            if local in parameters:
                name = grouping.names[id(parameters[local])]
                terms.setdefault(name, []).extend(parts)
    return terms


def _terms_of_call(call: Call, grads: Grads) -> Terms:
    """By the unit's rule, or by ``torch.func`` for a module without one."""
    rule = call.unit.rule
    terms: Terms
    if rule is not None:
        terms = rule(call.unit.module, call, *grads)
        return terms
    _log_fallback(call)
    found = module_gradients(call, *grads)
    terms = {}
    for name, values in found.items():
        terms[name] = [Direct(values)]
    return terms


def _in_full(call: Call, grads: Grads) -> tuple[Call, Grads]:
    """A call in full precision, for rules that compute with what they are given.

    Under autocast inputs and gradients arrive in half precision. Norms and sums are made from the
    numbers that arrived, in float32: for most layers a few examples at a time (`HALF_PRECISION`).
    """
    if type(call.unit.module) in HALF_PRECISION:
        return call, grads
    values = (*call.args, *call.kwargs.values(), *call.draws, *call.aux, *grads)
    if not any(isinstance(value, Tensor) and value.dtype in HALF for value in values):
        return call, grads

    def full(value: Any) -> Any:
        return in_full(value) if isinstance(value, Tensor) else value

    widened = replace(
        call,
        args=tuple(map(full, call.args)),
        kwargs={name: full(value) for name, value in call.kwargs.items()},
        draws=list(map(full, call.draws)),
        aux=list(map(full, call.aux)),
    )
    return widened, tuple(map(full, grads))


_logged: set[type] = set()


def _log_fallback(call: Call) -> None:
    """Log, once for each type, that a module has no rule."""
    kind = type(call.unit.module)
    if kind not in _logged:
        _logged.add(kind)
        log.info(
            "%s (%r) has no gradient rule: differentiated per example with torch.func",
            kind.__name__,
            call.unit.name,
        )
