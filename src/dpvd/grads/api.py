"""The one call: clipped per-example gradients of any model."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from dpvd.errors import DpvdError, choice, positive_int
from dpvd.grads.accumulate import micro_batches
from dpvd.grads.batches import LossFn, as_batch, batch_size
from dpvd.grads.changes import Watched
from dpvd.grads.choice import EngineChoice, Isolation
from dpvd.grads.clipped import ClippedGradients, ClippedSum
from dpvd.grads.clipping import Clipping
from dpvd.grads.compatibility import refuse_problems
from dpvd.grads.engines import Engine
from dpvd.grads.groups import Grouping
from dpvd.grads.trial import Subject
from dpvd.privacy import Relation

__all__ = ["Engine", "GradientClipper", "Isolation", "clipped_grad"]


class GradientClipper:
    """Clipped per-example gradients of one model, batch after batch.

    What follows from the model and the loss (units, clipping groups, whether it can be trained
    privately at all, which engine suits it) is worked out once, and again when a module, a mode
    (train, eval), a ``requires_grad`` or what the loss is made of changes. Nothing is remembered
    from one clipper to the next.

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
        isolation: Isolation | str = Isolation.CHECKED,
    ) -> None:
        if micro_batch is not None:
            positive_int(micro_batch=micro_batch)
        self.model = model
        self.loss_fn = loss_fn
        self.clipping = clipping
        self.micro_batch = micro_batch
        asked = choice(engine, Engine, "engine")
        self._choice = EngineChoice(asked, choice(isolation, Isolation, "isolation"), micro_batch)
        self._watched: Watched | None = None
        self._grouping: Grouping | None = None
        self._compiled = False

    @property
    def grouping(self) -> Grouping:
        """The trainable parameters and their clipping groups, as the model is now.

        Raises:
            DpvdError: if ``check`` has something to say of the model.
        """
        if self._grouping is None or self._watched is None or not self._watched.same_modules():
            self._grouping = None
            refuse_problems(self.model)
            self._watched = Watched(self.model, self.loss_fn)
            self._grouping = Grouping.of(self.model, self.clipping.mode)
            self._compiled = _is_compiled(self.model, self.loss_fn)
            self._choice.begin(Subject(self.model, self.loss_fn, self._grouping))
        return self._grouping

    def sensitivity(self, relation: Relation) -> float:
        """How far one example can move the sum of the clipped gradients in L2 norm."""
        return self.clipping.sensitivity(relation, self.grouping.count)

    @property
    def spoiled(self) -> bool:
        """Whether a batch has written something of itself into a buffer, where it still is."""
        return self._choice.spoiled

    def describe_isolation(self) -> str:
        """In words for the statement of privacy: why no example reached into another's gradient."""
        return self._choice.describe()

    def __call__(
        self, batch: Any, step: int = 0, grouping: Grouping | None = None
    ) -> Iterator[ClippedGradients]:
        """The clipped gradients of a batch's examples: in one piece, or in one for each
        micro-batch.

        Edge cases: an empty batch gives one piece without gradients, and nothing is checked. A
        batch of one example cannot show whether examples are mixed: it is taken by itself and
        nothing is concluded from it.

        Args:
            batch: a tensor, or a tuple of tensors, with the examples along the first dimension.
            step: number of the step, from 1, by which later checks are spread; 0 counts the batches
                instead.
            grouping: what ``grouping`` has just said, if it has; asking takes a look at every
                module.

        Raises:
            DpvdError: as :func:`clipped_grad`.
        """
        tensors = as_batch(batch)
        _refuse_autocast()
        if self._watched is not None and not self._watched.same_loss(self.loss_fn):
            self._grouping = None  # work everything out anew
        if grouping is None or grouping is not self._grouping:
            grouping = self.grouping
        if batch_size(tensors) == 0:
            yield _nothing(grouping, self.clipping)
            return
        with _as_written(self._compiled):
            self._choice.prepare(tensors, step)
        for part in micro_batches(tensors, self.micro_batch):
            with _as_written(self._compiled):
                found = self._choice.run(part, self.clipping)
            yield found
            del found  # let go of it before the next one is made


def clipped_grad(
    model: nn.Module,
    loss_fn: LossFn,
    batch: Any,
    *,
    clipping: Clipping,
    engine: Engine | str = Engine.AUTO,
    micro_batch: int | None = None,
    isolation: Isolation | str = Isolation.CHECKED,
) -> ClippedSum:
    """The sum over the batch of clipped per-example gradients, Σ_i clip(∇ loss_i).

    Guarantees:
        Adding or removing one example moves ``result.grads`` by at most
        ``result.sensitivity(relation)`` in L2 norm.
        Nothing of the model changes: no ``.grad`` is written, no hook stays.

    Edge cases:
        An empty batch gives zeros. An example with a non-finite loss or gradient contributes zero
        and is counted.

    Args:
        model: any module whose examples do not interact.
        loss_fn: ``loss_fn(model, *batch)``, one value per example.
        batch: a tensor, or a tuple of tensors, with the examples along the first dimension.
        clipping: the bound on each example's gradient.
        engine: how to compute it.
        micro_batch: at most this many examples go through the model at once, to limit memory; None
            takes the batch as a whole. The result is the same, up to rounding and to the layers'
            own noise, which is drawn for each example in either case.
        isolation: whether it is tried out that examples do not interact, or each gradient is formed
            alone.

    Raises:
        DpvdError: if ``check`` has something to say of the model, the model or the loss mixes
            examples or keeps something of them, or the loss is not one value per example.
    """
    clipper = GradientClipper(
        model,
        loss_fn,
        clipping=clipping,
        engine=engine,
        micro_batch=micro_batch,
        isolation=isolation,
    )
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


def _nothing(grouping: Grouping, clipping: Clipping) -> ClippedGradients:
    first = next(iter(grouping.parameters.values()))
    none, no_norms = first.new_zeros(0), first.new_zeros(0, grouping.count)
    return ClippedGradients(
        {}, no_norms, no_norms, none, 0, clipping, grouping, grouping.jacobians()
    )


def _is_compiled(model: nn.Module, loss_fn: LossFn) -> bool:
    parts = (
        hasattr(module, "_orig_mod") or module._compiled_call_impl is not None
        for module in model.modules()
    )
    return hasattr(loss_fn, "_torchdynamo_orig_callable") or any(parts)


def _refuse_autocast() -> None:
    """Raise if norms and sums would be computed in half precision, too: the sensitivity would not
    hold for them.
    """
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise DpvdError(
            "torch.autocast is on around the step, so that clipping would be in half precision too:"
            " put it into the loss, around the forward pass of the model alone"
        )


def _as_written(compiled: bool) -> AbstractContextManager[Any]:
    """Run what torch.compile has seen as it was written: a compiled graph knows nothing of the
    hooks of an engine.
    """
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()
