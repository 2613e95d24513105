"""Which engine takes a batch, and when a batch is tried out for examples that do not keep to
themselves.
"""

import logging
import os
from enum import StrEnum

import torch

from dpvd.errors import DpvdError
from dpvd.grads.batches import Batch, batch_size, rows
from dpvd.grads.clipped import ClippedGradients
from dpvd.grads.clipping import Clipping
from dpvd.grads.engines import ENGINES, Engine
from dpvd.grads.isolation import examine, examine_state, why_not_mapped
from dpvd.grads.refusals import refuse_change
from dpvd.grads.state import Watch
from dpvd.grads.trial import Subject
from dpvd.grads.units import CannotFactor

__all__ = ["EngineChoice", "Isolation"]

log = logging.getLogger("dpvd")

SMALL = 32  # rows of a check between the first and the last
RARELY = 256  # steps between two checks once a run is on its way


class Isolation(StrEnum):
    """Why one example's gradient does not depend on the others."""

    CHECKED = "checked"
    """It is tried out on the first batch and on some later ones; a model that fails is refused."""
    VMAP = "vmap"
    """Each example's gradient is formed alone, by torch.func or in a loop, and stored: sound under
    any mixing.
    """


class EngineChoice:
    """The engine for one model and one loss, from batch to batch.

    A batch is tried out thoroughly when it is the first with two examples or more, and the first
    after something has changed; then small samples at steps 2, 4, 8, ... and at every 256th. When
    does not depend on the data.
    """

    def __init__(self, asked: Engine, isolation: Isolation, micro_batch: int | None) -> None:
        if isolation is Isolation.VMAP and asked is Engine.FACTORED:
            raise DpvdError(
                "isolation='vmap' forms each example's gradient alone, which engine='factored' does"
                " not: leave the engine to 'auto', or take isolation='checked'"
            )
        self._asked = asked
        self._isolation = isolation
        self._micro_batch = micro_batch
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
        self._engine = self._asked  # for the batch at hand
        self._settled: frozenset[str] | None = (
            None  # buffers that may change; None until a batch was tried out
        )
        self._is_due = False
        self._is_random = False
        self._buffers = Watch(subject.model, subject.loss_fn)

    def prepare(self, batch: Batch, step: int) -> None:
        """Choose the engine for a batch; try the batch out first if it is time to."""
        self._batches += 1
        self._is_due |= _is_due(step or self._batches)
        if batch_size(batch) == 1 or self._micro_batch == 1:
            if self._settled is None or self._is_due:
                self._settle(examine_state(self._subject, rows(batch, slice(0, 1))))
            self._engine = Engine.LOOP if self._asked is Engine.AUTO else self._asked
            if batch_size(batch) > 1:
                self._is_due = False
        else:
            if self._chosen is None or self._is_due:
                self._try_out(batch)
                self._is_due = False
            assert self._chosen is not None
            self._engine = self._chosen
        self._used[self._engine] += 1

    def run(self, part: Batch, clipping: Clipping) -> ClippedGradients:
        """The clipped gradients of a batch, or of a slice of it, by the engine chosen or the next
        that can.

        Raises:
            DpvdError: if a buffer changes that was not seen to change whatever the data, or the
                engine that was asked for by name cannot treat the model.
        """
        subject = self._subject
        before = self._buffers.now()
        try:
            found = ENGINES[self._engine](
                subject.model, subject.loss_fn, part, clipping, subject.grouping
            )
        except CannotFactor as error:
            self._pass_over(Engine.FACTORED, str(error), part)
            return self.run(part, clipping)
        except RuntimeError as error:
            if self._asked is not Engine.AUTO or self._engine is Engine.LOOP:
                raise
            self._pass_over(self._engine, str(error), part)
            return self.run(part, clipping)
        changed = self._buffers.changed(before)
        if changed:
            self.spoiled = True  # unless the next line says that all is well
            refuse_change(changed, self._settled or frozenset(), self._buffers)
            self.spoiled = False
        return found

    def describe(self) -> str:
        """What was done so that no example reaches into another's gradient, for the statement of
        privacy.
        """
        joint = self._used[Engine.FACTORED]
        alone = sum(self._used.values()) - joint
        ways = {Engine.VMAP: "torch.func", Engine.LOOP: "one backward pass each"}
        named = " and ".join(words for engine, words in ways.items() if self._used[engine])
        if not joint + alone:
            return "no batch has been used"
        if not joint:
            return f"each example's gradient formed alone ({named})"
        checked = f"examples' isolation checked on {self._checked} of {joint + alone} batches"
        return (
            f"{checked}; in {alone} of them each example's gradient formed alone ({named})"
            if alone
            else checked
        )

    def _try_out(self, batch: Batch) -> None:
        thorough = self._chosen is None
        sample = self._sample(batch, thorough)
        joint = (
            self._asked in (Engine.AUTO, Engine.FACTORED) and self._isolation is Isolation.CHECKED
        )
        if joint and self._chosen in (None, Engine.FACTORED):
            finding = examine(self._subject, sample, thorough=thorough, is_random=self._is_random)
            self._is_random = finding.is_random
            self._settle(finding.settled)
            if not finding.why_not:
                self._chosen = Engine.FACTORED
                self._checked += 1
            else:
                self._pass_over(Engine.FACTORED, finding.why_not, sample, certain=finding.made)
        else:
            self._settle(examine_state(self._subject, sample))
            if self._chosen is None:
                self._chosen = (
                    self._asked if self._asked is not Engine.AUTO else self._alone(sample)
                )

    def _settle(self, names: frozenset[str]) -> None:
        """These buffers may change; so may those of earlier checks, which may have come to rest for
        a while.
        """
        self._settled = names | (self._settled or frozenset())

    def _pass_over(self, engine: Engine, reason: str, batch: Batch, certain: bool = True) -> None:
        """Take the next engine, or say why the one that was asked for cannot be taken."""
        if self._asked is Engine.FACTORED:
            raise DpvdError(
                f"the factored engine cannot treat this model: {reason}. Use engine='auto'"
            )
        self._say(engine, reason)
        self._chosen = self._alone(batch) if engine is Engine.FACTORED else Engine.LOOP
        self._engine = self._chosen
        if not certain and not self._warned:
            self._warned = True
            log.warning(
                "%s, so the %s engine takes the model, which forms each gradient alone",
                reason,
                self._chosen,
            )

    def _alone(self, batch: Batch) -> Engine:
        """The faster of the engines that form each example's gradient alone."""
        reason = why_not_mapped(self._subject, batch)
        if not reason:
            return Engine.VMAP
        self._say(Engine.VMAP, reason)
        return Engine.LOOP

    def _say(self, engine: Engine, reason: str) -> None:
        name = type(self._subject.model).__name__
        log.info("the %s engine cannot take %s: %s", engine, name, reason.split("\n")[0])

    def _sample(self, batch: Batch, thorough: bool) -> Batch:
        """Rows at random, no more than go through the model at once; for a thorough check all of
        these.
        """
        count = batch_size(batch)
        most = count if self._micro_batch is None else min(count, self._micro_batch)
        if not thorough:
            most = min(most, SMALL)
        if most == count:
            return batch
        which = torch.randperm(count, generator=self._choices)[:most]
        return tuple(tensor[which.to(tensor.device)] for tensor in batch)


def _is_due(step: int) -> bool:
    return step % RARELY == 0 or (1 < step < RARELY and step & (step - 1) == 0)
