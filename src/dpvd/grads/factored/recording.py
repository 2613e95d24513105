"""The forward pass: every call of a unit is recorded."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from dpvd.grads.clipping import Unit
from dpvd.grads.factored.layout import CallLayout
from dpvd.grads.factored.rule import (
    Call,
    CannotFactor,
    CustomForwardRule,
    ForwardTrace,
    MultiOutputRule,
    Record,
    leaves,
)
from dpvd.grads.factored.shared import Shared, Tracker
from dpvd.nn import AdditiveNoise, NoiseTape

__all__ = ["batch_dims", "recorded_calls", "records_of"]


@contextmanager
def recorded_calls(
    units: list[Unit], tape: NoiseTape, tracker: Tracker | None = None
) -> Iterator[list[Call]]:
    """Record every call of every unit with a rule made inside the block.

    For that time ``forward`` is replaced on the module instances by one that records: torch's hooks
    do the same at several times the cost, which small networks feel.
    """
    calls: list[Call] = []
    replaced: list[tuple[dict[str, Any], Any]] = []
    try:
        for unit in units:
            if unit.rule is None:
                continue
            attributes = vars(unit.module)
            record = _recording(unit, tape, calls)
            if tracker is not None and unit.name in tracker.layout.calls:
                record = _placed(unit, record, tracker)
            replaced.append((attributes, attributes.get("forward")))
            attributes["forward"] = record  # found before that of the class
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
    forget_draws = isinstance(unit.module, AdditiveNoise) and not unit.module.learned

    def forward(*args: Any, layout: CallLayout | None = None, **kwargs: Any) -> Any:
        first = len(tape.draws)
        output, trace = run(*args, **kwargs)
        if forget_draws:
            del tape.draws[first:]
            del tape.aux[first:]
        if any(edge is not None for edge in trace.edges):
            draws = tape.draws[first:]
            aux = tape.aux[first:]
            call = Call(unit, args, kwargs, draws, aux, trace.edges, trace.saved, layout)
            calls.append(call)
        return output

    return forward


def _placed(unit: Unit, record: Callable[..., Any], tracker: Tracker) -> Callable[..., Any]:
    """For a unit whose calls do not all have the batch first."""
    own = unit.module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        layout = tracker.next_call(unit.name)
        if not layout.is_shared:
            return record(*args, layout=layout, **kwargs)
        plain = [value.plain if isinstance(value, Shared) else value for value in args]
        output = own(*plain, **kwargs)
        call = Call(unit, args, kwargs, [], [])
        return tracker.shared_output(call, output)

    return forward


def records_of(call: Call) -> list[Record]:
    """Where the gradients of a call's parameters are taken."""
    taken = frozenset(map(id, call.unit.parameters.values()))
    inputs = set()
    for value in leaves([*call.args, *call.kwargs.values()]):
        if isinstance(value, Tensor) and value.requires_grad:
            edge = get_gradient_edge(value)
            inputs.add((edge.node, edge.output_nr))
    edges = [edge for edge in call.edges if edge is not None]
    return [Record(edge, taken, frozenset(inputs)) for edge in edges]


def _plain_forward(unit: Unit) -> Callable[..., tuple[Any, ForwardTrace]]:
    """The module's own forward pass."""
    own = unit.module.forward
    expected = len(batch_dims(unit))

    def run(*args: Any, **kwargs: Any) -> tuple[Any, ForwardTrace]:
        output = own(*args, **kwargs)
        edges = _edges(unit, output, expected)
        return output, ForwardTrace(edges, None)

    return run


def batch_dims(unit: Unit) -> tuple[int, ...]:
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
