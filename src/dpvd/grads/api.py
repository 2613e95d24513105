"""The one call: clipped per-example gradients of any model."""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from operator import is_
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from dpvd.errors import DpvdError, choice, positive_int
from dpvd.grads import checks
from dpvd.grads.accumulate import micro_batches
from dpvd.grads.batches import Batch, LossFn, as_batch, batch_size
from dpvd.grads.clipped import ClippedGradients, ClippedSum
from dpvd.grads.clipping import Clipping
from dpvd.grads.compatibility import refuse_problems
from dpvd.grads.factored import factored
from dpvd.grads.groups import Grouping
from dpvd.grads.loop import loop
from dpvd.grads.units import CannotFactor
from dpvd.grads.vmapped import vmapped
from dpvd.privacy import Relation

__all__ = ["Engine", "GradientClipper", "clipped_grad"]

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


State = list[tuple[nn.Module, bool, bool, list[nn.Module | None], list[nn.Parameter | None], list[bool]]]
"""Modules with their mode, whether they are compiled, their children, their parameters, whether those are trained."""

ENGINES: dict[Engine, checks.Engine] = {Engine.FACTORED: factored, Engine.VMAP: vmapped, Engine.LOOP: loop}


class GradientClipper:
    """Clipped per-example gradients of one model, batch after batch.

    What follows from the model alone (its units, its clipping groups, whether it can be trained privately at all, which
    engine suits it) is worked out once, and again when a module, a mode (train, eval) or a ``requires_grad`` changes.

    Args: as for :func:`clipped_grad`.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        clipping: Clipping,
        engine: Engine | str = Engine.AUTO,
        micro_batch: int | None = None,
    ) -> None:
        if micro_batch is not None:
            positive_int(micro_batch=micro_batch)
        self.model, self.loss_fn, self.clipping, self.micro_batch = model, loss_fn, clipping, micro_batch
        self._asked = choice(engine, Engine, "engine")
        self._chosen = self._asked
        self._state: State = []
        self._grouping: Grouping | None = None
        self._compiled = False

    @property
    def grouping(self) -> Grouping:
        """The trainable parameters and their clipping groups, as the model is now.

        Raises:
            DpvdError: if ``check`` has something to say of the model.
        """
        if self._grouping is None or not _unchanged(self._state):
            self._grouping = None
            refuse_problems(self.model)
            self._state, self._chosen = _state_of(self.model), self._asked
            self._grouping = Grouping.of(self.model, self.clipping.mode)
            self._compiled = _is_compiled(self.model, self.loss_fn)
        return self._grouping

    def sensitivity(self, relation: Relation) -> float:
        """How far one example can move the sum of the clipped gradients in L2 norm."""
        return self.clipping.sensitivity(relation, self.grouping.count)

    def __call__(self, batch: Any) -> Iterator[ClippedGradients]:
        """The clipped gradients of a batch's examples: in one piece, or in one for each micro-batch.

        Edge cases: an empty batch gives one piece without gradients.
        """
        tensors, grouping = as_batch(batch), self.grouping
        if batch_size(tensors) == 0:
            yield _nothing(grouping, self.clipping)
            return
        with _as_written(self._compiled):
            run = ENGINES[self._engine_for(tensors, grouping)]
        for part in micro_batches(tensors, self.micro_batch):
            try:
                with _as_written(self._compiled):
                    found = run(self.model, self.loss_fn, part, self.clipping, grouping)
                yield found
                del found  # let go of it before the next one is made
            except CannotFactor as error:
                raise DpvdError(f"the factored engine cannot treat this model: {error}. Use engine='auto'") from error

    def _engine_for(self, batch: Batch, grouping: Grouping) -> Engine:
        """The engine asked for, or the first that agrees with the oracle, remembered for the model and the loss."""
        if self._chosen is not Engine.AUTO:
            return self._chosen
        known = _agreed.setdefault(self.model, {})
        loss = getattr(self.loss_fn, "__code__", type(self.loss_fn))
        key = (loss, tuple(grouping.parameters), self.model.training)
        found = known.get(key) or _agreeing(self.model, self.loss_fn, batch, grouping)
        if batch_size(batch) > 1:  # one example alone cannot show whether examples are mixed
            self._chosen = known[key] = found
        return found


# Engines that agreed with the oracle for a model, by the loss and the trainable parameters they did it for.
_agreed: WeakKeyDictionary[nn.Module, dict[Any, Engine]] = WeakKeyDictionary()


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
    clipper = GradientClipper(model, loss_fn, clipping=clipping, engine=engine, micro_batch=micro_batch)
    total = {name: torch.zeros_like(p) for name, p in clipper.grouping.parameters.items()}
    norms, losses, jacobian, non_finite = [], [], dict[str, Tensor](), 0
    for part in clipper(batch):
        part.add_to(total)
        norms.append(part.norms)
        losses.append(part.losses)
        non_finite += part.non_finite
        jacobian = dict(part.jacobian)
        del part  # let go of it before the next one is made
    every = torch.cat(losses)
    return ClippedSum(total, torch.cat(norms), every, len(every), non_finite, clipping, jacobian)


def _agreeing(model: nn.Module, loss_fn: LossFn, batch: Batch, grouping: Grouping) -> Engine:
    for engine in (Engine.FACTORED, Engine.VMAP):
        try:
            checks.verify(ENGINES[engine], model, loss_fn, batch, grouping)
        except (CannotFactor, checks.Disagreement, RuntimeError) as reason:
            log.info("the %s engine cannot take %s: %s", engine, type(model).__name__, str(reason).split("\n")[0])
            continue
        return engine
    return Engine.LOOP


def _nothing(grouping: Grouping, clipping: Clipping) -> ClippedGradients:
    first = next(iter(grouping.parameters.values()))
    none, no_norms = first.new_zeros(0), first.new_zeros(0, grouping.count)
    return ClippedGradients({}, no_norms, no_norms, none, 0, clipping, grouping, grouping.jacobians())


def _is_compiled(model: nn.Module, loss_fn: LossFn) -> bool:
    parts = (hasattr(module, "_orig_mod") or module._compiled_call_impl is not None for module in model.modules())
    return hasattr(loss_fn, "_torchdynamo_orig_callable") or any(parts)


def _as_written(compiled: bool) -> AbstractContextManager[Any]:
    """Run what torch.compile has seen as it was written: a compiled graph knows nothing of the hooks of an engine."""
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


def _state_of(model: nn.Module) -> State:
    """All that the grouping and the choice of an engine depend on."""
    return [
        (
            module,
            module.training,
            module._compiled_call_impl is not None,
            list(module._modules.values()),
            list(module._parameters.values()),
            [p is not None and p.requires_grad for p in module._parameters.values()],
        )
        for module in model.modules()
    ]


def _unchanged(state: State) -> bool:
    """Whether a model still is in this state. Asked in every step: walking the model anew would be ten times slower."""
    for module, training, compiled, children, parameters, trained in state:
        if module.training is not training or (module._compiled_call_impl is not None) is not compiled:
            return False
        if len(module._modules) != len(children) or len(module._parameters) != len(parameters):
            return False
        if not all(map(is_, module._modules.values(), children)):
            return False
        for now, then, train in zip(module._parameters.values(), parameters, trained, strict=True):
            if now is not then or (now is not None and now.requires_grad is not train):
                return False
    return True
