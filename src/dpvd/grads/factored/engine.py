"""The fast engine: one forward pass, one backward pass to layer outputs, one product per weight.

No per-example gradient of a layer with a rule is ever stored. Parameters of modules without a rule
are followed to where they meet the batch (`shared`).
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dpvd.grads.batch import Batch, LossFn, batch_size, per_example_losses
from dpvd.grads.clipping import Clipping, Grouping
from dpvd.grads.factored.layout import ModelLayout, batch_first
from dpvd.grads.factored.recording import batch_dims, recorded_calls, records_of
from dpvd.grads.factored.represent import allowance_for, represent, shared_factors
from dpvd.grads.factored.rule import HALF, Call, CannotFactor, Terms, in_full
from dpvd.grads.factored.rules import HALF_PRECISION
from dpvd.grads.factored.shared import Tracker
from dpvd.grads.factored.survey import unrecorded
from dpvd.grads.per_example import KEPT_BYTES, ClippedGradients, clip
from dpvd.nn import NoiseTape

__all__ = ["factored"]

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
    layout: ModelLayout = grouping.layout
    if layout.why_not and layout.loose:
        raise CannotFactor(layout.why_not)
    losses, terms = _losses_and_terms(model, loss_fn, batch, grouping)
    with torch.no_grad():
        jacobian = grouping.jacobian()
        shared = shared_factors(terms)
        allowance = allowance_for(terms, kept_bytes)
        gradients = {}
        for name in list(terms):
            # Popped: of a layer whose gradients are kept the factors are let go.
            parts = terms.pop(name)
            gradients[name] = represent(parts, jacobian.get(name), shared, allowance)
        return clip(gradients, losses, clipping, grouping, jacobian)


def _losses_and_terms(
    model: nn.Module, loss_fn: LossFn, batch: Batch, grouping: Grouping
) -> tuple[Tensor, Terms]:
    """Both passes. What arrived at outputs and is in no term is let go before anything is kept."""
    layout: ModelLayout = grouping.layout
    count = batch_size(batch)
    tracker = Tracker(layout, count, grouping.names) if layout.needs_tracker else None
    tape = NoiseTape()
    with ExitStack() as stack:
        recorded = stack.enter_context(recorded_calls(layout.units, tape, tracker))
        if tracker is not None:
            stack.enter_context(tracker.following())
        with tape.recording():
            losses = per_example_losses(model, loss_fn, batch)
        # Checkpoints run parts of the model once more in the backward pass: as before, and
        # without a record.
        calls = list(recorded)
        if tracker is not None:
            tracker = tracker.finished()
        arriving, at_shared = _backward_to_edges(losses, calls, tracker, grouping)
        with torch.no_grad():
            terms = _collect_terms(calls, arriving, count, grouping)
            if tracker is not None:
                for name, parts in tracker.terms(at_shared).items():
                    terms.setdefault(name, []).extend(parts)
    return losses.detach(), terms


def _backward_to_edges(
    losses: Tensor, calls: list[Call], tracker: Tracker | None, grouping: Grouping
) -> tuple[list[Grads], list[Tensor | None]]:
    """The gradients of the losses' sum at each call's outputs, and at what examples share."""
    edges = [edge for call in calls for edge in call.edges if edge is not None]
    of_calls = len(edges)
    if tracker is not None:
        edges += [record.edge for record in tracker.records()]
    layout: ModelLayout = grouping.layout
    if not layout.is_proven:
        _check_recorded(losses, calls, tracker, grouping)
        layout.is_proven = True
    found: list[Tensor | None] = [None] * len(edges)
    if edges and losses.requires_grad:
        ones = torch.ones_like(losses)
        again = tracker is not None and tracker.needs_graph
        found = [*torch.autograd.grad(losses, edges, ones, again, allow_unused=True)]
    at_calls: Iterator[Tensor | None] = iter(found[:of_calls])
    arriving = []
    for call in calls:
        grads = [None if edge is None else next(at_calls) for edge in call.edges]
        arriving.append(tuple(grads))
    return arriving, found[of_calls:]


def _check_recorded(
    losses: Tensor, calls: list[Call], tracker: Tracker | None, grouping: Grouping
) -> None:
    """Raise if gradients reach a parameter on a way that no rule sees."""
    records = [record for call in calls for record in records_of(call)]
    if tracker is not None:
        records += tracker.records()
    names = sorted(unrecorded(losses, records, grouping))
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise CannotFactor(
            f"parameter {names[0]!r}{more} reaches the loss on a way that could not be followed"
        )


def _collect_terms(
    calls: list[Call], arriving: list[Grads], count: int, grouping: Grouping
) -> Terms:
    """All terms of each parameter of the model: a parameter used twice, or tied, gets the sum."""
    terms: Terms = {}
    for call, grads in zip(calls, arriving, strict=True):
        if all(grad is None for grad in grads):
            continue
        call.check_unchanged()
        if call.layout is not None:
            call, grads = _with_batch_first(call, grads, count)
        call.check_batch(grads, batch_dims(call.unit), count)
        parameters = call.unit.parameters
        full, wide = _in_full(call, grads)
        for local, parts in call.unit.rule(call.unit.module, full, *wide).items():
            if local in parameters:
                name = grouping.names[id(parameters[local])]
                terms.setdefault(name, []).extend(parts)
    return terms


def _with_batch_first(call: Call, grads: Grads, count: int) -> tuple[Call, Grads]:
    """A call as the rule expects it, from one that had the batch elsewhere."""
    (grad,) = grads
    moved = batch_first(call.input(), call.layout.into, count)
    return replace(call, args=(moved,)), (batch_first(grad, call.layout.out, count),)


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
