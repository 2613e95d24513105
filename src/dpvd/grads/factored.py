"""The fast engine: one forward pass, one backward pass to layer outputs, one weighted product per weight.

No per-example gradient of a layer with a rule is ever stored. Modules without a rule are differentiated per
example on their own with ``torch.func``; the rest of the model keeps its factors.
"""

import logging

import torch
from torch import Tensor, nn

from dpvd.grads.assemble import assemble
from dpvd.grads.batches import Batch, LossFn, per_example_losses
from dpvd.grads.clipped import ClippedSum
from dpvd.grads.clipping import Clipping
from dpvd.grads.factors import Direct, Term, prepare
from dpvd.grads.groups import Grouping
from dpvd.grads.rules import RULES
from dpvd.grads.units import Call, CannotFactor, find_units, observe
from dpvd.grads.vmapped import module_gradients
from dpvd.nn import NoiseTape

__all__ = ["factored"]

log = logging.getLogger("dpvd")


def factored(model: nn.Module, loss_fn: LossFn, batch: Batch, clipping: Clipping, grouping: Grouping) -> ClippedSum:
    """Clipped sum from factors.

    Raises:
        CannotFactor: when a module's gradients cannot be told from its inputs and output gradients.
    """
    tape = NoiseTape()
    units = find_units(model)
    with observe(units, tape) as calls, tape.recording():
        losses = per_example_losses(model, loss_fn, batch)
    arriving = _backward_to_outputs(losses, calls)
    terms = _collect_terms(calls, arriving, len(losses), grouping)
    with torch.no_grad():
        gradients = {name: prepare(parts, grouping.jacobian.get(name)) for name, parts in terms.items()}
    return assemble(gradients, losses, clipping, grouping)


def _backward_to_outputs(losses: Tensor, calls: list[Call]) -> list[Tensor | None]:
    """The gradient of the summed loss with respect to each call's output, and nothing further."""
    if not calls or not losses.requires_grad:
        return [None] * len(calls)
    return list(torch.autograd.grad(losses.sum(), [call.edge for call in calls], allow_unused=True))


def _collect_terms(
    calls: list[Call], arriving: list[Tensor | None], count: int, grouping: Grouping
) -> dict[str, list[Term]]:
    """All terms of each parameter, over all calls: parameters that are used twice or tied get the sum."""
    terms: dict[str, list[Term]] = {}
    for call, grad in zip(calls, arriving, strict=True):
        if grad is None:
            continue
        if grad.shape[0] != count:
            raise CannotFactor(f"the output of {call.unit.name!r} does not have the batch as its first dimension")
        call.check_unchanged()
        parameters = call.unit.parameters()
        with torch.no_grad():
            if call.unit.has_rule:
                found = RULES[type(call.unit.module)](call.unit.module, call, grad)
            else:
                _say_fallback(call)
                found = {name: [Direct(value)] for name, value in module_gradients(call, grad).items()}
        for local, parts in found.items():
            if local in parameters:
                terms.setdefault(grouping.name_of(parameters[local]), []).extend(parts)
    return terms


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
