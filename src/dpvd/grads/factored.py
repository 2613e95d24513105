"""The fast engine: one forward pass, one backward pass to layer outputs, one weighted product per
weight.

No per-example gradient of a layer with a rule is ever stored. Modules without a rule are
differentiated per example on their own with ``torch.func``; the rest of the model keeps its
factors.
"""

import logging
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from dpvd.grads.assemble import assemble
from dpvd.grads.batches import Batch, LossFn, per_example_losses
from dpvd.grads.clipped import ClippedGradients
from dpvd.grads.clipping import Clipping
from dpvd.grads.forms import prepare
from dpvd.grads.groups import Grouping
from dpvd.grads.terms import Direct, Outer, Term
from dpvd.grads.units import Call, CannotFactor, batch_dims, observe
from dpvd.grads.vmapped import module_gradients
from dpvd.nn import NoiseTape

__all__ = ["factored"]

log = logging.getLogger("dpvd")


def factored(
    model: nn.Module, loss_fn: LossFn, batch: Batch, clipping: Clipping, grouping: Grouping
) -> ClippedGradients:
    """Clipped gradients as factors.

    Raises:
        CannotFactor: when a module's gradients cannot be told from its inputs and output gradients.
    """
    tape = NoiseTape()
    with observe(grouping.units, tape) as calls, tape.recording():
        losses = per_example_losses(model, loss_fn, batch)
    arriving = _backward_to_outputs(losses, calls)
    with torch.no_grad():
        terms, jacobian = (
            _collect_terms(calls, arriving, len(losses), grouping),
            grouping.jacobians(),
        )
        common = _in_common(terms)
        gradients = {
            name: prepare(parts, jacobian.get(name), common) for name, parts in terms.items()
        }
        return assemble(gradients, losses, clipping, grouping, jacobian)


Grads = tuple[Any, ...]  # for each output of a call the gradient that arrives there, or None


def _backward_to_outputs(losses: Tensor, calls: list[Call]) -> list[Grads]:
    """The gradients of the losses' sum with respect to each call's outputs, and nothing further."""
    edges = [edge for call in calls for edge in call.edges if edge is not None]
    if not edges or not losses.requires_grad:
        return [(None,) * len(call.edges) for call in calls]
    found = iter(torch.autograd.grad(losses, edges, torch.ones_like(losses), allow_unused=True))
    return [tuple(None if edge is None else next(found) for edge in call.edges) for call in calls]


def _collect_terms(
    calls: list[Call], arriving: list[Grads], count: int, grouping: Grouping
) -> dict[str, list[Term]]:
    """All terms of each parameter, over all calls: parameters that are used twice or tied get the
    sum.
    """
    terms: dict[str, list[Term]] = {}
    for call, grads in zip(calls, arriving, strict=True):
        if all(grad is None for grad in grads):
            continue
        unit, parameters = call.unit, call.unit.parameters
        call.check_batch(grads, batch_dims(unit), count)
        call.check_unchanged()
        _check_precision(call, grads)
        if unit.rule is not None:
            found = unit.rule(unit.module, call, *grads)
        else:
            _say_fallback(call)
            found = {
                name: [Direct(value)] for name, value in module_gradients(call, *grads).items()
            }
        for local, parts in found.items():
            if local in parameters:
                terms.setdefault(grouping.name_of(parameters[local]), []).extend(parts)
    return terms


def _check_precision(call: Call, grads: Grads) -> None:
    """Raise if a layer computed in half precision, as under autocast: its factors are too coarse
    for norms and sums.
    """
    coarse = {
        str(grad.dtype)
        for grad in grads
        if grad is not None and grad.dtype in (torch.float16, torch.bfloat16)
    }
    if coarse:
        raise CannotFactor(f"{call.unit.name!r} computes in {', '.join(coarse)}")


def _in_common(terms: dict[str, list[Term]]) -> set[int]:
    """Ids of the left factors that several parameters have."""
    lefts = Counter(
        id(term.left) for parts in terms.values() for term in parts if isinstance(term, Outer)
    )
    return {factor for factor, count in lefts.items() if count > 1}


_said: set[type] = set()


def _say_fallback(call: Call) -> None:
    kind = type(call.unit.module)
    if kind not in _said:
        _said.add(kind)
        log.info(
            "%s (%r) has no gradient rule: differentiated per example with torch.func",
            kind.__name__,
            call.unit.name,
        )
