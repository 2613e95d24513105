"""Runs of a model and its loss that can be compared: the same state and the same seed."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpvd.grads.batch import Batch, LossFn, copied, per_example_losses
from dpvd.grads.clipping import Clipping, ClippingMode, Grouping
from dpvd.grads.engines.loop import projected_in_joint_pass
from dpvd.grads.factored import CannotFactor, factored
from dpvd.grads.isolation.randomness import (
    dropout_off,
    equal_draws,
    seeded,
    stream_positions,
    streams_restored,
)
from dpvd.grads.isolation.snapshot import Snapshot
from dpvd.grads.per_example import Directions

__all__ = ["UNCLIPPED", "CannotTry", "Run", "Runner", "Subject", "undisturbed"]

UNCLIPPED = Clipping(ClippingMode.NONE)


@dataclass(frozen=True)
class Subject:
    """What is tried out."""

    model: nn.Module
    loss_fn: LossFn
    grouping: Grouping

    @property
    def device(self) -> torch.device:
        parameters = self.grouping.parameters
        first = next(iter(parameters.values()))
        return first.device


class CannotTry(Exception):
    """Runs cannot be compared with each other; the message says why."""


@contextmanager
def undisturbed(subject: Subject) -> Iterator[Snapshot]:
    """Restore state and random streams at the end of the block."""
    with streams_restored():
        start = Snapshot(subject.model, subject.loss_fn)
        try:
            yield start
        finally:
            start.restore()


@dataclass(frozen=True)
class Run:
    """What was seen of a run.

    Attributes:
        losses: [B].
        norms: [B, G], those of the factored engine; None if it did not run.
        by_parameter: [B, P], the same for each parameter, if directions were given.
        projections: [B, P, K], the gradients in these directions.
        ended: where the random streams ended.
        drawn: shapes of the random tensors, in a run with equal draws for every example.
    """

    losses: Tensor
    norms: Tensor | None
    by_parameter: Tensor | None
    projections: Tensor | None
    ended: tuple[Any, ...]
    drawn: list[torch.Size]


class Runner:
    """Makes runs, all from the same state of the model and, unless said otherwise, one seed.

    Attributes:
        why_not: why the factored engine must not be used; it runs as long as this is empty.
    """

    def __init__(self, subject: Subject, start: Snapshot, seed: int, why_not: str) -> None:
        self.subject = subject
        self.start = start
        self.seed = seed
        self.why_not = why_not

    def run(
        self,
        batch: Batch,
        *,
        seed: int | None = None,
        quietly: bool = False,
        dropout: bool = False,
        norms: bool = True,
        directions: Directions | None = None,
        after: Snapshot | None = None,
    ) -> Run:
        """One run from the start, or from what another run left."""
        subject = self.subject
        before = self.start if after is None else after
        before.restore()
        copy = copied(batch)  # a model may overwrite its inputs
        with ExitStack() as stack:
            stack.enter_context(seeded(self.seed if seed is None else seed, subject.device))
            if seed is not None:
                self.start.reseed(seed)
            drawn: list[torch.Size] = []
            if quietly:
                drawn = stack.enter_context(equal_draws(subject.model)).shapes
            if not dropout:
                stack.enter_context(dropout_off(subject.model))
            if norms and not self.why_not:
                try:
                    found = factored(
                        subject.model, subject.loss_fn, copy, UNCLIPPED, subject.grouping
                    )
                    ended = stream_positions()
                    if directions is None:
                        return Run(found.losses, found.norms, None, None, ended, drawn)
                    parts = found.norms_by_parameter()
                    projections = found.projected(len(found.losses), directions)
                    return Run(found.losses, found.norms, parts, projections, ended, drawn)
                except (CannotFactor, RuntimeError) as error:
                    self.why_not = str(error).split("\n")[0]
            else:
                losses = per_example_losses(subject.model, subject.loss_fn, copy).detach()
                return Run(losses, None, None, None, stream_positions(), drawn)
        return self.run(
            batch, seed=seed, quietly=quietly, dropout=dropout, norms=False, after=after
        )

    def _run_or_give_up(
        self, batch: Batch, *, quietly: bool = False, norms: bool = True, seed: int | None = None
    ) -> Run:
        try:
            return self.run(batch, quietly=quietly, norms=norms, seed=seed)
        except Exception as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise CannotTry(f"a run on other examples failed ({reason})") from error

    def _ask_oracle(
        self, batch: Batch, i: int, dropout: bool, directions: Directions
    ) -> tuple[Tensor, Tensor]:
        """Of one row: norms [P] and projections [P, K].

        In a pass of its own for each row: some layers overwrite in the backward pass what they had
        saved.
        """
        subject = self.subject
        self.start.restore()
        silent = nullcontext() if dropout else dropout_off(subject.model)
        with seeded(self.seed, subject.device), silent:
            copy = copied(batch)
            return projected_in_joint_pass(
                subject.model, subject.loss_fn, copy, i, subject.grouping, directions
            )
