"""Clipped gradients of one model, batch after batch: which engine, and when to try one out."""

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from functools import partial
from typing import Any

import torch
from torch import nn

from dpvd.errors import DpvdError, choice, non_negative, positive_int
from dpvd.grads.batch import Batch, Layout, LossFn, as_batch, batch_size, micro_batches, rows
from dpvd.grads.clipping import Clipping, Grouping
from dpvd.grads.criterion import as_loss_fn
from dpvd.grads.engines import ENGINES, Engine
from dpvd.grads.factored import CannotFactor, ModelLayout, factored
from dpvd.grads.isolation import (
    BufferWatch,
    NotIsolated,
    StructureWatch,
    Subject,
    examine,
    examine_padding,
    examine_state,
    look_around,
    refuse_change,
    why_not_mapped,
)
from dpvd.grads.padding import Padding
from dpvd.grads.per_example import ClippedGradients
from dpvd.grads.validate import refuse_problems
from dpvd.privacy import Relation

__all__ = ["GradientClipper", "Isolation"]

log = logging.getLogger("dpvd")

SMALL = 32  # rows of a check between the first and the last
RARELY = 256  # steps between two checks once a run is on its way


class Isolation(StrEnum):
    """Why one example's gradient does not depend on the others."""

    CHECKED = "checked"
    """It is tried out on the first batch and on some later ones; a model that fails is refused."""
    VMAP = "vmap"
    """Each gradient is formed alone, by torch.func or in a loop: sound under any mixing."""


class GradientClipper:
    """Clipped per-example gradients of one model, batch after batch.

    What follows from the model and the loss (units, clipping groups, whether it can be trained
    privately at all, which engine suits it) is worked out once, and again when a module, a mode
    (train, eval), a ``requires_grad`` or what the loss is made of changes. Nothing is remembered
    from one clipper to the next.

    Args: as for :func:`dpvd.grads.clipped_grad`.
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
        kept_mb: float = 64.0,
    ) -> None:
        if micro_batch is not None:
            positive_int(micro_batch=micro_batch)
        non_negative(kept_mb=kept_mb)
        self.model = model
        self.loss_fn = as_loss_fn(loss_fn)
        self.clipping = clipping
        self.micro_batch = micro_batch
        requested = choice(engine, Engine, "engine")
        self._engines = _EngineChoice(
            requested, choice(isolation, Isolation, "isolation"), micro_batch, int(kept_mb * 1e6)
        )
        self._watch: StructureWatch | None = None
        self._grouping: Grouping | None = None
        self._compiled = False
        self._layout: Layout | None = None

    def current_grouping(self) -> Grouping:
        """The trainable parameters and their clipping groups, as the model is now.

        Looks at every module: ask once in a step, and pass the answer on.

        Raises:
            DpvdError: if ``check`` has something to say of the model.
        """
        unchanged = self._watch is not None and self._watch.same_modules()
        if self._grouping is not None and unchanged:
            return self._grouping
        self._grouping = None
        refuse_problems(self.model)
        self._watch = StructureWatch(self.model, self.loss_fn)
        grouping = Grouping.of(self.model, self.clipping.mode, ModelLayout.of(self.model))
        self._compiled = _is_compiled(self.model, self.loss_fn)
        subject = Subject(self.model, self.loss_fn, grouping)
        self._engines.begin(subject)
        self._grouping = grouping
        return grouping

    def sensitivity(self, relation: Relation) -> float:
        """How far one example can move the sum of the clipped gradients in L2 norm."""
        groups = self.current_grouping().count
        return self.clipping.sensitivity(relation, groups)

    @property
    def kept_mb(self) -> float:
        """At most this much of per-example gradients is kept, in 10⁶ bytes."""
        return self._engines.kept_bytes / 1e6

    @property
    def spoiled(self) -> bool:
        """Whether a batch has written something of itself into a buffer, where it still is."""
        return self._engines.spoiled

    @property
    def engine(self) -> Engine:
        """The engine that took the last batch; the one asked for before there was one."""
        return self._engines.engine

    @property
    def passed_over(self) -> dict[Engine, str]:
        """The engines that could not take the model, and why."""
        return dict(self._engines.passed_over)

    def describe_isolation(self) -> str:
        """In words for the statement of privacy: why no example reached into another's gradient."""
        return self._engines.describe()

    def __call__(
        self,
        batch: Any,
        step: int = 0,
        grouping: Grouping | None = None,
        padding: Padding | None = None,
    ) -> Iterator[ClippedGradients]:
        """The clipped gradients of a batch's examples: one result for each micro-batch, or several
        if each gradient is formed alone and not all of them fit into ``kept_mb``.

        Edge cases: an empty batch gives one result without gradients, and nothing is checked. A
        batch of one example cannot show whether examples are mixed: its gradient is formed alone
        and nothing is concluded from it.

        Args:
            batch: a tensor, a tuple of tensors, a dictionary or a dataclass of them, with the
                examples along the first dimension; constants beside them are the same every time.
            step: number of the step, from 1, by which later checks are spread; 0 counts the batches
                instead.
            grouping: what `current_grouping` has just returned, if it was asked.
            padding: how examples are filled up to the longest of their batch, if they are.

        Raises:
            DpvdError: as :func:`dpvd.grads.clipped_grad`.
        """
        examples = as_batch(batch)
        self._check_layout(examples.layout)
        _refuse_autocast()
        if self._watch is not None and not self._watch.same_loss(self.loss_fn):
            self._grouping = None  # work everything out anew
        if grouping is None or grouping is not self._grouping:
            grouping = self.current_grouping()
        if batch_size(examples) == 0:
            yield _no_gradients(grouping, self.clipping)
            return
        with _eager(self._compiled):
            self._engines.prepare(examples, step, padding)
        for part in micro_batches(examples, self.micro_batch):
            results = self._engines.run(part, self.clipping)
            while True:
                with _eager(self._compiled):
                    found = next(results, None)
                if found is None:
                    break
                yield found
                del found  # free its memory before the next one is made

    def _check_layout(self, layout: Layout) -> None:
        """Raise if a batch is made up in another way than the first one.

        What differs between batches and is no row of an example, such as the length of the longest
        sequence, tells every example of the others.
        """
        first = self._layout
        if first is None:
            self._layout = layout
        elif layout != first:
            raise NotIsolated(layout.difference(first))


class _EngineChoice:
    """The engine for one model and one loss, from batch to batch.

    A batch is tried out thoroughly when it is the first with two examples or more, and the first
    after something has changed; then small samples at steps 2, 4, 8, ... and at every 256th. When
    does not depend on the data.
    """

    def __init__(
        self, requested: Engine, isolation: Isolation, micro_batch: int | None, kept_bytes: int
    ) -> None:
        if isolation is Isolation.VMAP and requested is Engine.FACTORED:
            raise DpvdError(
                "isolation='vmap' forms each example's gradient alone, which engine='factored' does"
                " not: leave the engine to 'auto', or take isolation='checked'"
            )
        self._requested = requested
        self._isolation = isolation
        self._micro_batch = micro_batch
        self.kept_bytes = kept_bytes
        self._choices = torch.Generator().manual_seed(int.from_bytes(os.urandom(7)))
        self._batches = 0
        self._checked = 0
        self._used = dict.fromkeys(ENGINES, 0)  # batches, by the engine that took them
        self._warned = False
        self.spoiled = False  # whether a batch has changed a buffer that then had to be refused

    def begin(self, subject: Subject) -> None:
        """Forget what was found: the model or the loss is another one."""
        self._subject = subject
        self._chosen: Engine | None = None
        self.engine = self._requested  # for the current batch
        self.passed_over: dict[Engine, str] = {}
        # Buffers that may change; None until a batch was tried out.
        self._settled: frozenset[str] | None = None
        self._is_due = False
        self._is_random = False
        self._has_tried_padding = False
        self._buffers = BufferWatch(subject.model, subject.loss_fn)

    def prepare(self, batch: Batch, step: int, padding: Padding | None) -> None:
        """Choose the engine for a batch; try the batch out first if a check is due."""
        self._batches += 1
        is_single = batch_size(batch) == 1 or self._micro_batch == 1
        if self._has_to_look(is_single):
            look_around(self._subject, batch, self._micro_batch)
        self._is_due |= _is_due(step or self._batches)
        if padding is not None and (self._is_due or not self._has_tried_padding):
            self._try_padding(batch, padding)
        if is_single:
            if self._settled is None or self._is_due:
                first = rows(batch, slice(0, 1))
                self._settle(examine_state(self._subject, first))
            self.engine = self._requested
            if self._requested is Engine.AUTO:
                self.engine = Engine.LOOP
            if batch_size(batch) > 1:
                self._is_due = False
        else:
            if self._chosen is None or self._is_due:
                self._try_out(batch)
                self._is_due = False
            assert self._chosen is not None
            self.engine = self._chosen
        self._used[self.engine] += 1

    def _has_to_look(self, is_single: bool) -> bool:
        """Whether the factored engine may run, and does not know the model yet."""
        if self._subject.grouping.layout.is_surveyed or self._isolation is Isolation.VMAP:
            return False
        if self._requested is Engine.AUTO:
            return not is_single
        return self._requested is Engine.FACTORED

    def run(self, part: Batch, clipping: Clipping) -> Iterator[ClippedGradients]:
        """The clipped gradients of a batch, or a slice of it, by the first engine that can.

        Raises:
            DpvdError: if a buffer changes that was not seen to change whatever the data, or the
                engine that was requested by name cannot treat the model.
        """
        for piece in micro_batches(part, self._most_at_once()):
            before = self._buffers.now()
            try:
                found = self._run_engine(piece, clipping)
            except CannotFactor as error:
                self._pass_over(Engine.FACTORED, str(error), piece)
                yield from self.run(piece, clipping)
                continue
            except RuntimeError as error:
                if self._requested is not Engine.AUTO or self.engine is Engine.LOOP:
                    raise
                self._pass_over(self.engine, str(error), piece)
                yield from self.run(piece, clipping)
                continue
            changed = self._buffers.changed(before)
            if changed:
                self.spoiled = True  # unless the next line finds nothing to refuse
                refuse_change(changed, self._settled or frozenset(), self._buffers)
                self.spoiled = False
            yield found
            del found  # free its memory before the next one is made

    def _most_at_once(self) -> int | None:
        """How many examples' gradients have room, for engines that store all of them."""
        if self.engine is Engine.FACTORED:
            return None
        parameters = self._subject.grouping.parameters.values()
        one = sum(parameter.nbytes for parameter in parameters)
        return max(1, self.kept_bytes // one)

    def _run_engine(self, part: Batch, clipping: Clipping) -> ClippedGradients:
        subject = self._subject
        engine = ENGINES[self.engine]
        if self.engine is Engine.FACTORED:
            engine = partial(factored, kept_bytes=self.kept_bytes)
        return engine(subject.model, subject.loss_fn, part, clipping, subject.grouping)

    def describe(self) -> str:
        """What was done so that no example reaches into another's gradient, for the statement."""
        total = sum(self._used.values())
        joint = self._used[Engine.FACTORED]
        alone = total - joint
        ways = []
        if self._used[Engine.VMAP]:
            ways.append("torch.func")
        if self._used[Engine.LOOP]:
            ways.append("one backward pass each")
        used = " and ".join(ways)
        if not total:
            return "no batch has been used"
        if not joint:
            return f"each example's gradient formed alone ({used})"
        checked = f"examples' isolation checked on {self._checked} of {total} batches"
        if not alone:
            return checked
        return f"{checked}; in {alone} of them each example's gradient formed alone ({used})"

    def _try_out(self, batch: Batch) -> None:
        """Check a batch, or a sample of it, and choose the engine by what was found."""
        thorough = self._chosen is None
        sample = self._sample(batch, thorough)
        is_alone = self._isolation is Isolation.VMAP
        if self._requested in (Engine.VMAP, Engine.LOOP):
            is_alone = True
        if self._chosen in (Engine.VMAP, Engine.LOOP):
            is_alone = True
        if is_alone:
            settled = examine_state(self._subject, sample)
            self._settle(settled)
            if self._chosen is None and self._requested is Engine.AUTO:
                self._chosen = self._engine_for_alone(sample)
            elif self._chosen is None:
                self._chosen = self._requested
            return
        finding = examine(self._subject, sample, thorough=thorough, is_random=self._is_random)
        self._is_random = finding.is_random
        self._settle(finding.settled)
        if not finding.why_not:
            self._chosen = Engine.FACTORED
            self._checked += 1
        else:
            self._pass_over(Engine.FACTORED, finding.why_not, sample, certain=finding.made)

    def _try_padding(self, batch: Batch, padding: Padding) -> None:
        """Check that examples do not notice how long the longest of their batch is."""
        reason = "its tensors are not as the collate function made them"
        if padding.fits(batch):
            few = rows(batch, slice(0, SMALL))
            reason = examine_padding(self._subject, few, padding)
        if reason and not self._has_tried_padding:
            log.warning(
                "batches are padded to their longest example, and whether the model looks at"
                " padding cannot be tried out: %s. Make sure that it does not",
                reason,
            )
        self._has_tried_padding = True

    def _settle(self, names: frozenset[str]) -> None:
        """Allow these buffers to change, and those of earlier checks, which may pause."""
        earlier = self._settled or frozenset()
        self._settled = names | earlier

    def _pass_over(self, engine: Engine, reason: str, batch: Batch, certain: bool = True) -> None:
        """Take the next engine, or say why the requested one cannot be used."""
        if self._requested is Engine.FACTORED:
            raise DpvdError(
                f"the factored engine cannot treat this model: {reason}. Use engine='auto'"
            )
        self._log_refusal(engine, reason)
        is_factored = engine is Engine.FACTORED
        self._chosen = self._engine_for_alone(batch) if is_factored else Engine.LOOP
        self.engine = self._chosen
        if not certain and not self._warned:
            self._warned = True
            log.warning(
                "%s, so the %s engine takes the model, which forms each gradient alone",
                reason,
                self._chosen,
            )

    def _engine_for_alone(self, batch: Batch) -> Engine:
        """The faster of the engines that form each example's gradient alone."""
        reason = why_not_mapped(self._subject, batch)
        if not reason:
            return Engine.VMAP
        self._log_refusal(Engine.VMAP, reason)
        return Engine.LOOP

    def _log_refusal(self, engine: Engine, reason: str) -> None:
        model = self._subject.model
        name = type(model).__name__
        first_line = reason.split("\n")[0]
        self.passed_over[engine] = first_line
        log.info("the %s engine cannot take %s: %s", engine, name, first_line)

    def _sample(self, batch: Batch, thorough: bool) -> Batch:
        """Rows at random, as many as go through the model at once; fewer if not thorough."""
        count = batch_size(batch)
        most = count if self._micro_batch is None else min(count, self._micro_batch)
        if not thorough:
            most = min(most, SMALL)
        if most == count:
            return batch
        order = torch.randperm(count, generator=self._choices)
        return rows(batch, order[:most])


def _is_due(step: int) -> bool:
    if step % RARELY == 0:
        return True
    is_power_of_two = step & (step - 1) == 0
    return 1 < step < RARELY and is_power_of_two


def _no_gradients(grouping: Grouping, clipping: Clipping) -> ClippedGradients:
    """The result for an empty batch."""
    first = next(iter(grouping.parameters.values()))
    norms = first.new_zeros(0, grouping.count)
    return ClippedGradients(
        gradients={},
        factors=norms,
        norms=norms,
        losses=first.new_zeros(0),
        excluded=0,
        clipping=clipping,
        grouping=grouping,
        jacobian=grouping.jacobian(),
    )


def _is_compiled(model: nn.Module, loss_fn: LossFn) -> bool:
    if hasattr(loss_fn, "_torchdynamo_orig_callable"):
        return True
    for module in model.modules():
        if hasattr(module, "_orig_mod") or module._compiled_call_impl is not None:
            return True
    return False


def _refuse_autocast() -> None:
    """Raise if norms and sums would be in half precision: the sensitivity would not hold."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise DpvdError(
            "torch.autocast is on around the step, so that clipping would be in half precision too:"
            " put it into the loss, around the forward pass of the model alone"
        )


def _eager(compiled: bool) -> AbstractContextManager[Any]:
    """Run compiled code eagerly: a compiled graph knows nothing of an engine's replaced forward."""
    if not compiled:
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance
