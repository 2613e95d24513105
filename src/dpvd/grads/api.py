"""The one call: clipped per-example gradients of any model."""

import logging
from enum import StrEnum
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from dpvd.errors import DpvdError, choice, positive_int
from dpvd.grads import checks
from dpvd.grads.accumulate import add_up, micro_batches
from dpvd.grads.batches import Batch, LossFn, as_batch, batch_size
from dpvd.grads.clipped import ClippedSum
from dpvd.grads.clipping import Clipping
from dpvd.grads.compatibility import refuse_problems
from dpvd.grads.factored import factored
from dpvd.grads.groups import Grouping
from dpvd.grads.loop import loop
from dpvd.grads.units import CannotFactor
from dpvd.grads.vmapped import vmapped

__all__ = ["Engine", "clipped_grad"]

log = logging.getLogger("dpvd")


class Engine(StrEnum):
    """How per-example gradients are formed. All give the same result."""

    AUTO = "auto"
    """The fastest that takes the model, checked once against the oracle."""
    FACTORED = "factored"
    """From factors: no per-example gradient is stored."""
    VMAP = "vmap"
    """torch.func: any module, every per-example gradient stored."""
    LOOP = "loop"
    """One backward pass for each example: the oracle."""


ENGINES: dict[Engine, checks.Engine] = {Engine.FACTORED: factored, Engine.VMAP: vmapped, Engine.LOOP: loop}

# What AUTO chose for a model, by the loss and the number of trainable parameters it chose it for.
_chosen: WeakKeyDictionary[nn.Module, dict[Any, Engine]] = WeakKeyDictionary()


def clipped_grad(
    model: nn.Module,
    loss_fn: LossFn,
    batch: Any,
    *,
    clipping: Clipping,
    engine: Engine | str = Engine.AUTO,
    micro_batch: int | None = None,
) -> ClippedSum:
    """The sum over the batch of clipped per-example gradients, Σ_i clip(∇ loss_i).

    Guarantees:
        Adding or removing one example moves ``result.grads`` by at most ``result.sensitivity(relation)`` in L2 norm.
        Nothing of the model changes: no ``.grad`` is written, no hook stays.

    Edge cases:
        An empty batch gives zeros. An example with a non-finite loss or gradient contributes zero and is counted.

    Args:
        model: any module whose examples do not interact.
        loss_fn: ``loss_fn(model, *batch)``, one value per example.
        batch: a tensor, or a tuple of tensors, with the examples along the first dimension.
        clipping: the bound on each example's gradient.
        engine: how to compute it.
        micro_batch: at most this many examples go through the model at once, to limit memory (three do when the engine
            is chosen, on the first batch); None takes the batch as a whole. The result is the same, up to rounding and
            to the layers' own noise, which is drawn for each example in either case.

    Raises:
        DpvdError: if ``check`` has something to say of the model, the model or the loss mixes examples, or the loss is
            not one value per example.
    """
    tensors = as_batch(batch)
    chosen = choice(engine, Engine, "engine")
    if micro_batch is not None:
        positive_int(micro_batch=micro_batch)
    refuse_problems(model)
    grouping = Grouping.of(model, clipping.mode)
    if batch_size(tensors) == 0:
        return _nothing(grouping, clipping)
    if chosen is Engine.AUTO:
        chosen = _choose(model, loss_fn, tensors, grouping)
    run = ENGINES[chosen]
    try:
        return add_up(run(model, loss_fn, part, clipping, grouping) for part in micro_batches(tensors, micro_batch))
    except CannotFactor as error:
        raise DpvdError(f"the factored engine cannot treat this model: {error}. Use engine='auto'") from error


def _nothing(grouping: Grouping, clipping: Clipping) -> ClippedSum:
    first = next(iter(grouping.parameters.values()))
    return ClippedSum(
        grads={name: torch.zeros_like(p) for name, p in grouping.parameters.items()},
        norms=first.new_zeros(0, grouping.count),
        losses=first.new_zeros(0),
        count=0,
        non_finite=0,
        clipping=clipping,
        jacobian=grouping.jacobian,
    )


def _choose(model: nn.Module, loss_fn: LossFn, batch: Batch, grouping: Grouping) -> Engine:
    """The first engine that agrees with the oracle; remembered for the model and the loss."""
    known = _chosen.setdefault(model, {})
    key = (getattr(loss_fn, "__code__", type(loss_fn)), tuple(grouping.parameters), model.training)
    if key in known:
        return known[key]
    found = Engine.LOOP
    for engine in (Engine.FACTORED, Engine.VMAP):
        try:
            checks.verify(ENGINES[engine], model, loss_fn, batch, grouping)
        except (CannotFactor, checks.Disagreement, RuntimeError) as reason:
            log.info("the %s engine cannot take %s: %s", engine, type(model).__name__, str(reason).split("\n")[0])
            continue
        found = engine
        break
    if batch_size(batch) > 1:  # one example alone cannot show whether examples are mixed
        known[key] = found
    return found
