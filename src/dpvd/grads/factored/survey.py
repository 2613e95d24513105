"""Finds out where the batch is in what a model computes, by running it on three and on four rows.

What changes its size with the number of examples is the batch, wherever it is. From there it
follows which values all examples share, and in which operations they meet the batch.
"""

import logging
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

from dpvd.grads.batch import Batch, LossFn, batch_size, copied, per_example_losses, rows
from dpvd.grads.clipping import Grouping, Unit
from dpvd.grads.factored.layout import (
    IRREGULAR,
    POSITIONAL,
    CallLayout,
    Dim,
    ModelLayout,
    OpKey,
    OpLayout,
    batch_dim,
    find_units,
)
from dpvd.grads.factored.recording import recorded_calls, records_of
from dpvd.grads.factored.rule import CannotFactor, HiddenGraph, MultiOutputRule, Record, leaves
from dpvd.grads.factored.shared import operation_name
from dpvd.nn import NoiseTape
from dpvd.nn.noise import inside_transform

__all__ = ["MOST", "survey", "unrecorded"]

log = logging.getLogger("dpvd")

MOST = 4  # rows of the longer run; the shorter one has one less of the same
ATTEMPTS = 4  # runs in which rules may turn out not to apply


def survey(
    model: nn.Module, loss_fn: LossFn, batch: Batch, grouping: Grouping, most: int = MOST
) -> None:
    """Find the layout of a model, and write it into ``grouping.layout``.

    State and random streams are the caller's business. A model that cannot be surveyed is left
    with the reason: it can still be treated if all its layers have rules and the batch first.

    Args:
        model: the model.
        loss_fn: its loss.
        batch: from which a few rows are taken, some of them twice if there are too few.
        grouping: its layout is filled in.
        most: how many rows may pass through the model at once, at least 2.
    """
    longer = min(MOST, most)
    counts = (longer - 1, longer)
    layout: ModelLayout = grouping.layout
    without_rule: dict[int, str] = {}
    layout.is_surveyed = True
    for _ in range(ATTEMPTS):
        layout.units = find_units(model, without_rule)
        try:
            few, more = (_observe(model, loss_fn, batch, count, grouping) for count in counts)
            if few.names != more.names:  # the first run may have filled a cache
                few = _observe(model, loss_fn, batch, counts[0], grouping)
            more_reasons = _compare(few, more, layout, grouping)
        except HiddenGraph as error:
            place = _hiding(model, loss_fn, copied(rows(batch, slice(0, 2))))
            raise HiddenGraph(str(error).replace(" hides", f"{place} hides", 1)) from error
        except Exception as error:  # a model may say in any way that so few rows will not do
            layout.why_not = (str(error) or type(error).__name__).splitlines()[0]
            return
        if not more_reasons:
            break
        without_rule |= more_reasons
    _log_loose(model, layout, without_rule)


# What is observed in a run


@dataclass(frozen=True)
class _Event:
    """An operation, or a call of a unit.

    Attributes:
        name: of the operation, or of the unit.
        unit: if it is a call.
        operands: the tensors that went in.
        results: those that came out.
    """

    name: str
    unit: Unit | None
    operands: list[Tensor]
    results: list[Tensor]


@dataclass
class _Observation:
    """One run: its events in order, and the parameters that gradients reach unrecorded."""

    count: int
    events: list[_Event] = field(default_factory=list)
    unrecorded: set[str] = field(default_factory=set)

    @property
    def names(self) -> list[str]:
        return [event.name for event in self.events]


class _Operations(TorchFunctionMode):
    """Writes down every operation outside the calls of units."""

    def __init__(self, events: list[_Event]) -> None:
        super().__init__()
        self.events = events
        self.depth = 0  # of calls of units

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.depth or inside_transform():
            return result
        operands = _tensors((args, kwargs or {}))
        results = _tensors(result)
        if operation_name(func) == "__setitem__":
            results = operands[:1]
        if operands and results:
            event = _Event(operation_name(func), None, operands, results)
            self.events.append(event)
        return result


def _observe(
    model: nn.Module, loss_fn: LossFn, batch: Batch, count: int, grouping: Grouping
) -> _Observation:
    """A run on this many rows; the tensors are held, so that identities stay their own."""
    available = min(batch_size(batch), MOST - 1)
    chosen = rows(copied(batch), torch.arange(count) % available)
    found = _Observation(count)
    tape = NoiseTape()
    operations = _Operations(found.events)
    units: list[Unit] = grouping.layout.units
    with ExitStack() as stack:
        calls = stack.enter_context(recorded_calls(units, tape))
        stack.enter_context(tape.recording())
        _note_calls(units, operations)
        with operations:
            losses = per_example_losses(model, loss_fn, chosen)
    records = [record for call in calls for record in records_of(call)]
    found.unrecorded = unrecorded(losses, records, grouping)
    return found


def _note_calls(units: list[Unit], operations: _Operations) -> None:
    """Write down the calls of units. What they replace is put back by ``recorded_calls``."""
    for unit in units:
        if unit.rule is not None:
            attributes = vars(unit.module)
            attributes["forward"] = _noting(unit, attributes["forward"], operations)


def _noting(unit: Unit, run: Any, operations: _Operations) -> Any:
    def forward(*args: Any, **kwargs: Any) -> Any:
        operations.depth += 1
        try:
            output = run(*args, **kwargs)
        finally:
            operations.depth -= 1
        operands = _tensors((args, kwargs))
        results = [value for value in leaves(output) if isinstance(value, Tensor)]
        if not operations.depth:
            operations.events.append(_Event(unit.name, unit, operands, results))
        return output

    return forward


def _tensors(value: Any) -> list[Tensor]:
    found, _ = tree_flatten(value)
    return [leaf for leaf in found if isinstance(leaf, Tensor)]


# What follows from two runs


def _compare(
    few: _Observation, more: _Observation, layout: ModelLayout, grouping: Grouping
) -> dict[int, str]:
    """Fill in the layout. Returns: modules whose rule does not apply, and why."""
    counts = (few.count, more.count)
    if few.names != more.names:
        raise CannotFactor("what it computes depends on how many examples there are")
    reasons = _bypassed(layout, grouping, few.unrecorded | more.unrecorded)
    shared: dict[int, frozenset[str]] = {}  # by identity in the longer run: made from what
    for unit in layout.loose:
        for parameter in unit.parameters.values():
            shared[id(parameter)] = frozenset({grouping.names[id(parameter)]})
    calls: dict[str, list[CallLayout]] = {}
    ops: dict[OpKey, list[OpLayout]] = {}
    for event, other in zip(more.events, few.events, strict=True):
        operands = _dims(other.operands, event.operands, counts)
        results = _dims(other.results, event.results, counts)
        given = [shared[id(tensor)] for tensor in event.operands if id(tensor) in shared]
        made_from = frozenset().union(*given)
        if event.unit is not None:
            is_usual = _is_usual(event, results, more.count)
            place = _Place(event, operands, results, made_from, is_usual)
            made_from = _place_call(place, calls, reasons, grouping)
        elif made_from:
            key = (tuple(sorted(made_from)), event.name)
            ops.setdefault(key, []).append(OpLayout(operands, results))
        _pass_on(event.results, results, made_from, shared)
    layout.calls = {
        name: found for name, found in calls.items() if not all(call.is_usual for call in found)
    }
    layout.ops = ops
    return reasons


def _pass_on(
    tensors: list[Tensor],
    dims: tuple[Dim, ...],
    made_from: frozenset[str],
    shared: dict[int, frozenset[str]],
) -> None:
    """A result without a batch is shared; one with it is of the batch, from here on."""
    for tensor, dim in zip(tensors, dims, strict=True):
        if made_from and dim is None and tensor.requires_grad:
            shared[id(tensor)] = made_from
        elif not isinstance(tensor, nn.Parameter):
            shared.pop(id(tensor), None)


@dataclass(frozen=True)
class _Place:
    """A call of a unit, and where the batch is in it.

    Attributes:
        event: the call.
        operands: for each tensor that went in.
        results: for each that came out.
        given: what the shared values that went in were made from.
        is_usual: whether the batch is where the unit's rule expects it.
    """

    event: _Event
    operands: tuple[Dim, ...]
    results: tuple[Dim, ...]
    given: frozenset[str]
    is_usual: bool


def _place_call(
    place: _Place,
    calls: dict[str, list[CallLayout]],
    reasons: dict[int, str],
    grouping: Grouping,
) -> frozenset[str]:
    """Place a unit's call. Returns: what its result is made from, if examples share it."""
    unit = place.event.unit
    operands, results, given = place.operands, place.results, place.given
    assert unit is not None
    has_batch = any(dim is not None for dim in results)
    if has_batch and not given and place.is_usual:
        calls.setdefault(unit.name, []).append(CallLayout(0, 0, is_usual=True))
        return frozenset()
    into = operands[0] if operands else None
    is_positional = type(unit.module) in POSITIONAL and len(operands) == len(results) == 1
    is_mixed = has_batch and (bool(given) or into is None)
    if not is_positional or is_mixed or IRREGULAR in (into, *results):
        reasons[id(unit.module)] = "it is not called with one batch of examples"
        return frozenset()
    calls.setdefault(unit.name, []).append(CallLayout(into, results[0]))
    if has_batch:
        return frozenset()
    if not given:
        return frozenset({f"{unit.name}()"})
    own = {grouping.names[id(parameter)] for parameter in unit.parameters.values()}
    return given | own


def _is_usual(event: _Event, dims: tuple[Dim, ...], count: int) -> bool:
    """Whether the batch is where the unit's rule expects it."""
    assert event.unit is not None
    if isinstance(event.unit.rule, MultiOutputRule):
        return True  # these look for themselves
    return dims == (0,) and len(event.results[0]) == count


def _bypassed(layout: ModelLayout, grouping: Grouping, names: set[str]) -> dict[int, str]:
    """Units whose parameters are used by others than themselves, as a head tied by hand does."""
    found = {}
    for unit in layout.units:
        if unit.rule is None:
            continue
        own = {grouping.names[id(parameter)] for parameter in unit.parameters.values()}
        if own & names:
            found[id(unit.module)] = "its parameters are used outside of its own call, too"
    return found


def _dims(few: list[Tensor], more: list[Tensor], counts: tuple[int, int]) -> tuple[Dim, ...]:
    if len(few) != len(more):
        return (IRREGULAR,) * len(more)
    return tuple(
        batch_dim(one.shape, other.shape, counts) for one, other in zip(few, more, strict=True)
    )


# Whether everything was recorded


def unrecorded(losses: Tensor, records: list[Record], grouping: Grouping) -> set[str]:
    """Names of the parameters that gradients reach on a way that no record accounts for.

    Every path in the graph of the losses is followed to its end. One that ends at a parameter must
    have come through an edge at which that parameter's gradient is taken, and not through an input
    of that call since. So nothing can be used behind the engine's back: not a weight in a penalty,
    not one that another module reads.

    Raises:
        HiddenGraph: if a part of the graph is not there to be looked at.
    """
    at_edge: dict[Any, list[Record]] = {}
    for record in records:
        at_edge.setdefault((record.edge.node, record.edge.output_nr), []).append(record)
    found: set[str] = set()
    outside: tuple[Record, ...] = ()
    waiting: list[Any] = [(losses.grad_fn, losses.output_nr, outside)]
    seen: set[Any] = set()
    while waiting:
        node, output, inside = waiting.pop()
        if any((node, output) in record.inputs for record in inside):
            inside = outside
        inside = tuple(at_edge.get((node, output), inside))
        state = (node, tuple(map(id, inside)))
        if node is None or state in seen:
            continue
        seen.add(state)
        if _is_hidden(node):
            raise HiddenGraph(
                "reentrant checkpointing hides what it computes from every engine. Use"
                " use_reentrant=False; in transformers"
                " model.gradient_checkpointing_enable({'use_reentrant': False})"
            )
        reached = id(getattr(node, "variable", None))
        if reached in grouping.names and not any(reached in record.taken for record in inside):
            found.add(grouping.names[reached])
        waiting += [(*edge, inside) for edge in node.next_functions]
    return found


def _is_hidden(node: Any) -> bool:
    return "CheckpointFunctionBackward" in node.name()


def _hiding(model: nn.Module, loss_fn: LossFn, batch: Batch) -> str:
    """In words, the first module that returns what a hidden part of the graph has made."""
    found: list[str] = []

    def note(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        is_new = _reaches_hidden(output) and not _reaches_hidden((args, kwargs))
        if is_new and not found:
            found.append(f" in {name!r} ({type(module).__name__})")

    with ExitStack() as stack:
        for name, module in model.named_modules():
            hook = module.register_forward_hook(partial(note, name), with_kwargs=True)
            stack.callback(hook.remove)
        with suppress(Exception):  # the refusal is the same without a name
            per_example_losses(model, loss_fn, batch)
    return "".join(found)


def _reaches_hidden(value: Any) -> bool:
    waiting: list[Any] = [tensor.grad_fn for tensor in _tensors(value)]
    seen = {None}
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        if _is_hidden(node):
            return True
        seen.add(node)
        waiting += [parent for parent, _ in node.next_functions]
    return False


# By model, the names of the modules of which it was said that they have no rule.
_logged: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()


def _log_loose(model: nn.Module, layout: ModelLayout, without_rule: dict[int, str]) -> None:
    """Log, once for each module of a model, that it has no rule."""
    said = _logged.setdefault(model, set())
    for unit in layout.loose:
        if unit.name in said:
            continue
        said.add(unit.name)
        why = without_rule.get(id(unit.module))
        reason = f"cannot be treated by its rule ({why})" if why else "has no gradient rule"
        log.info(
            "%s (%r) %s: its own parameters are followed to where they meet the batch",
            type(unit.module).__name__,
            unit.name,
            reason,
        )
