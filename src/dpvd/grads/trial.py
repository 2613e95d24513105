"""The runs by which it is tried out whether examples keep to themselves."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpvd.grads.batches import Batch, LossFn, batch_size, per_example_losses
from dpvd.grads.clipping import Clipping, ClippingMode
from dpvd.grads.closeness import agree, unmoved, within
from dpvd.grads.factored import factored
from dpvd.grads.groups import Grouping
from dpvd.grads.loop import norms_in_company
from dpvd.grads.refusals import MEMORY, MIXING, SIZE, NotIsolated, keeps_data, refuse_change
from dpvd.grads.state import Snapshot, Watch
from dpvd.grads.streams import begun_at, dropout_off, drops, positions, quiet, streams_kept
from dpvd.grads.units import CannotFactor

__all__ = ["UNCLIPPED", "WAYS", "CannotTry", "Subject", "Trial", "undisturbed"]

KEPT_AT_RANDOM = 4  # rows that are looked at, beside those with the largest and the smallest loss
ENLARGED = 1000.0
# By what the other rows of a batch are replaced: copies of the row with the largest loss, enlarged,
# or of that with the smallest, or rows drawn from the batch.
WAYS = {"largest": ENLARGED, "smallest": 1.0, "drawn": 1.0}
UNCLIPPED = Clipping(ClippingMode.NONE)
OTHER_DRAWS = "what is drawn at random depends on which examples are in the batch"


@dataclass(frozen=True)
class Subject:
    """What is tried out."""

    model: nn.Module
    loss_fn: LossFn
    grouping: Grouping

    @property
    def device(self) -> torch.device:
        return next(iter(self.grouping.parameters.values())).device


class CannotTry(Exception):
    """Runs cannot be compared with each other; the message says why."""


@contextmanager
def undisturbed(subject: Subject) -> Iterator[Snapshot]:
    with streams_kept():
        start = Snapshot(subject.model, subject.loss_fn)
        try:
            yield start
        finally:
            start.restore()


@dataclass(frozen=True)
class _Seen:
    """A run: losses [B], the factored engine's norms [B, G] if it ran, where streams ended, shapes
    of equal draws.
    """

    losses: Tensor
    norms: Tensor | None
    ended: tuple[Any, ...]
    drawn: list[torch.Size]


class Trial:
    """The runs of one trial, all from the same state of the model and, unless said otherwise, at
    the same seed.
    """

    def __init__(
        self,
        subject: Subject,
        batch: Batch,
        start: Snapshot,
        why_not: str = "",
        is_random: bool = False,
    ) -> None:
        self.subject = subject
        self.batch = batch
        self.start = start
        self.why_not = why_not  # the factored engine runs as long as this is empty
        self.choices = torch.Generator().manual_seed(int.from_bytes(os.urandom(7)))
        self.seed = int(torch.randint(1 << 31, (), generator=self.choices))
        self.random = is_random
        self.left: list[
            tuple[Snapshot, Snapshot]
        ] = []  # by the batch itself and by another one, at the same seed
        self.watch = Watch(subject.model, subject.loss_fn, parameters=True)
        written = self.watch.now()
        sums = self.watch.sums()
        if drops(
            subject.model
        ):  # all other runs are without dropout, which some modules can only be treated without
            self.run(batch, dropout=True)
        self.base = self.run(batch)
        self.base_left = self._left_now()
        refuse_change(self._written_parameters(written, sums), frozenset(), self.watch)
        self.kept = self._choose_kept()

    # The trials

    def replay(self) -> None:
        """The same examples once more. At another seed first: if that changes nothing, the model is
        not random.
        """
        other = self.run(self.batch, seed=self.seed + 1, norms=False)
        self.random = not unmoved(other.losses, self.base.losses)
        if not self.random:
            return
        again = self.run(
            self.batch
        )  # by the same engine: rules may draw in another order than the model
        if not unmoved(again.losses, self.base.losses):
            raise CannotTry("the same batch gives other losses under the same seeds")

    def change_one_thing(self) -> None:
        """Replace the other examples in one way, or take fewer of them."""
        which = int(torch.randint(len(WAYS) + 1, (), generator=self.choices))
        if which == len(WAYS):
            self.change_size()
        else:
            self.replace_others(list(WAYS)[which])

    def replace_others(self, way: str) -> None:
        """The kept rows beside others. Their losses must not move, nor the norms of their
        gradients.
        """
        if (
            self.random and self.left
        ):  # a row that was drawn as partner may have been one of those kept
            self.seed += 2
            self.base = self.run(self.batch)
            self.base_left = self._left_now()
        replaced, seen = self._run_replaced(way)
        if (seen.norms is None) == (
            self.base.norms is None
        ):  # an engine may run a module more than once
            self.left.append((self.base_left, self._left_now()))
        comparable = not self.random or seen.ended == self.base.ended
        if comparable and unmoved(_of(seen.losses, self.kept), _of(self.base.losses, self.kept)):
            self._compare_norms(self.base, seen)
        else:
            self._replace_quietly(replaced, seen)

    def _replace_quietly(self, replaced: Batch, seen: _Seen) -> None:
        """Once more with the same draws for every example.

        For models whose losses moved under the same seeds. Either examples mix, or what the others
        drew has moved the stream from which the kept ones draw, which is no mixing. A model that is
        not random moves again.
        """
        base = self._run_or_give_up(self.batch, quietly=True)
        again = self._run_or_give_up(replaced, quietly=True)
        if base.drawn != again.drawn:
            raise CannotTry(OTHER_DRAWS)
        if not unmoved(_of(again.losses, self.kept), _of(base.losses, self.kept)):
            raise NotIsolated(MIXING)
        if seen.ended == self.base.ended:
            raise CannotTry(
                "losses move with the other examples, but only while it draws random numbers"
            )
        self._compare_norms(base, again)

    def change_size(self) -> None:
        """The kept rows with half of the others."""
        others = self._others()
        order = torch.randperm(len(others), generator=self.choices)[: len(others) // 2]
        chosen = torch.cat([self.kept, others[order]]).sort().values
        fewer = _take(self.batch, chosen)
        places = torch.searchsorted(chosen, self.kept)
        if not self.random:
            seen = self._run_or_give_up(fewer, norms=False)
            if self._same_beside_fewer(_of(seen.losses, places), self.base):
                return
        base = self._quiet_base()
        seen = self._run_or_give_up(fewer, quietly=True, norms=False)
        if base.drawn != seen.drawn:
            raise CannotTry(OTHER_DRAWS)
        if not self._same_beside_fewer(_of(seen.losses, places), base):
            raise NotIsolated(SIZE)

    def _same_beside_fewer(self, losses: Tensor, base: _Seen) -> bool:
        """Up to rounding, which depends on how many rows a product has, and is that of what a loss
        is made from.
        """
        expected = _of(base.losses, self.kept)
        finite = expected[torch.isfinite(expected)].abs()
        scale = float(finite.max()) if len(finite) else 1.0
        return within(losses, expected, 1e-4 * max(scale, 0.1))

    def run_another(self) -> None:
        """A run on the batch and one on other examples, only for what they leave behind."""
        self.run(self.batch, norms=False)
        own = self._left_now()
        if batch_size(self.batch) > 1:
            # Doubled: rows that merely change places would leave the same mean behind.
            another = [self._replaced("drawn", 2.0), self._replaced("drawn", 1.0)]
        else:
            another = [tuple(_another_like(tensor) for tensor in self.batch)]
        for batch in another:
            try:
                self.run(batch, norms=False)
            except (
                Exception
            ):  # what was made up may be out of range, and a model may say so in any way
                continue
            self.left.append((own, self._left_now()))
            return

    def compare_state(self) -> frozenset[str]:
        """What the runs left behind must not depend on their examples.

        Returns: names of the buffers that changed all the same.
        """
        settled = frozenset(self.start.changed_buffers(self.base_left))
        for own, others in self.left:
            for name in own.changed_buffers(others):
                raise keeps_data(name)
            if own.same_as(others):
                continue
            after_itself = self.run(self.batch, after=own, norms=False)
            once_more = self.run(self.batch, after=own, norms=False)
            after_others = self.run(self.batch, after=others, norms=False)
            repeats = unmoved(once_more.losses, after_itself.losses)
            if repeats and not unmoved(after_others.losses, after_itself.losses):
                raise NotIsolated(MEMORY)
        return settled

    def ask_oracle(self, count: int) -> None:
        """The factored engine's norms on a few rows against gradients of each row's own loss in a
        joint pass.

        Ordinary dropout is off: rules draw it again in their own way.
        """
        few = _take(self.batch, self._oracle_rows(count))
        wanted = range(min(count, batch_size(few)))
        if not wanted:
            return
        ours = self.run(few).norms
        truth = torch.stack([self._norms_in_company(few, i) for i in wanted])
        if ours is not None and not agree(ours[: len(wanted)], truth):
            self.why_not = "per-example norms differ from those of the oracle"

    def _norms_in_company(self, batch: Batch, i: int) -> Tensor:
        """[G]. In a pass of its own for each example: some layers overwrite, going back, what they
        kept.
        """
        subject = self.subject
        self.start.restore()
        with begun_at(self.seed, subject.device), dropout_off(subject.model):
            copy = tuple(tensor.clone() for tensor in batch)
            return norms_in_company(subject.model, subject.loss_fn, copy, i, subject.grouping)

    # How they are made

    def run(
        self,
        batch: Batch,
        *,
        seed: int | None = None,
        quietly: bool = False,
        dropout: bool = False,
        norms: bool = True,
        after: Snapshot | None = None,
    ) -> _Seen:
        """One run from the start, or from what another run left."""
        subject = self.subject
        (self.start if after is None else after).restore()
        copy = tuple(tensor.clone() for tensor in batch)  # a model may write over its inputs
        with ExitStack() as stack:
            stack.enter_context(begun_at(self.seed if seed is None else seed, subject.device))
            if seed is not None:
                self.start.reseed(seed)
            drawn = stack.enter_context(quiet(subject.model)).shapes if quietly else []
            if not dropout:
                stack.enter_context(dropout_off(subject.model))
            if norms and not self.why_not:
                try:
                    found = factored(
                        subject.model, subject.loss_fn, copy, UNCLIPPED, subject.grouping
                    )
                    return _Seen(found.losses, found.norms, positions(), drawn)
                except (CannotFactor, RuntimeError) as error:
                    self.why_not = str(error).split("\n")[0]
            else:
                losses = per_example_losses(subject.model, subject.loss_fn, copy).detach()
                return _Seen(losses, None, positions(), drawn)
        return self.run(
            batch, seed=seed, quietly=quietly, dropout=dropout, norms=False, after=after
        )

    def _written_parameters(
        self, written: list[tuple[Tensor | None, int]], sums: dict[str, str]
    ) -> list[str]:
        """Names of the parameters that changed; torch does not count what is written through
        ``.data``.
        """
        counted = [name for name in self.watch.changed(written) if self.watch.is_parameter(name)]
        now = self.watch.sums()
        return counted + [name for name, total in sums.items() if now.get(name) != total]

    def _left_now(self) -> Snapshot:
        return Snapshot(self.subject.model, self.subject.loss_fn)

    def _run_replaced(self, way: str) -> tuple[Batch, _Seen]:
        """A run with the other rows replaced; not enlarged, or not relabelled, if the model cannot
        take that.
        """
        factor = WAYS[way]
        for relabelled in (True, False) if factor != 1 else ():
            replaced = self._replaced(way, factor, relabelled=relabelled)
            try:
                return replaced, self.run(replaced)
            except Exception as problem:
                del problem  # a model may say in any way that this is out of range
        replaced = self._replaced(way, 1.0)
        return replaced, self._run_or_give_up(replaced)

    def _quiet_base(self) -> _Seen:
        """A run on the batch with the same draws for every example, if that leaves nothing to
        chance.
        """
        base = self._run_or_give_up(self.batch, quietly=True, norms=False)
        other = self._run_or_give_up(self.batch, quietly=True, norms=False, seed=self.seed + 1)
        if not unmoved(other.losses, base.losses):
            raise CannotTry(
                "it draws random numbers that cannot be made the same for every example"
            )
        return base

    def _run_or_give_up(
        self, batch: Batch, *, quietly: bool = False, norms: bool = True, seed: int | None = None
    ) -> _Seen:
        try:
            return self.run(batch, quietly=quietly, norms=norms, seed=seed)
        except Exception as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise CannotTry(f"a run on other examples failed ({reason})") from error

    def _compare_norms(self, base: _Seen, seen: _Seen) -> None:
        kept = self.kept
        if seen.norms is None or base.norms is None:
            return
        ours = _of(seen.norms, kept)
        truth = _of(base.norms, kept)
        tolerance = torch.finfo(truth.dtype).eps ** 0.5
        if not self.why_not and not within(ours, truth, tolerance * truth.abs()):
            self.why_not = (
                "the norm of an example's gradient changes with the other examples, its loss"
                " does not"
            )

    def _choose_kept(self) -> Tensor:
        """The rows with the largest and the smallest loss and some at random, at most half of
        all.
        """
        losses = self.base.losses
        count = len(losses)
        drawn = torch.randperm(count, generator=self.choices)[:KEPT_AT_RANDOM].tolist()
        chosen = list(dict.fromkeys([self._extreme("largest"), self._extreme("smallest"), *drawn]))
        return torch.tensor(chosen[: max(1, count // 2)]).sort().values

    def _extreme(self, which: str) -> int:
        losses = self.base.losses
        sign = 1.0 if which == "largest" else -1.0
        return int(torch.where(torch.isfinite(losses), sign * losses, -torch.inf).argmax())

    def _others(self) -> Tensor:
        is_other = torch.ones(batch_size(self.batch), dtype=torch.bool)
        is_other[self.kept] = False
        return is_other.nonzero().squeeze(1)

    def _replaced(self, which: str, factor: float, relabelled: bool = False) -> Batch:
        """The batch with all rows but those kept replaced: by copies of one row, enlarged, or by
        rows drawn from it.

        Relabelled rows have values that the batch may lack, as a batch lacks a rare class: one more
        than they had.
        """
        count = batch_size(self.batch)
        others = self._others()
        source = torch.arange(count)
        if which == "drawn":
            onwards = torch.randint(1, count, (len(others),), generator=self.choices)
            source[others] = (others + onwards) % count  # never the row itself
        else:
            source[others] = self._extreme(which)
        result = _take(self.batch, source)
        for tensor in result:
            if tensor.is_floating_point():
                tensor[others.to(tensor.device)] *= factor
            if relabelled and tensor.dtype is not torch.bool:
                tensor[others.to(tensor.device)] += 1
            elif relabelled:
                tensor[others.to(tensor.device)] ^= True
        return result

    def _oracle_rows(self, count: int) -> Tensor:
        """Rows at random, one more than are compared if there is one: an example is to have
        company.

        Only rows with a finite gradient: a joint backward pass multiplies what is not finite by 0,
        and all are lost.
        """
        norms = self.base.norms
        assert norms is not None
        usable = torch.isfinite(norms).all(1).nonzero().squeeze(1).cpu()
        return usable[torch.randperm(len(usable), generator=self.choices)[: count + 1]]


def _take(batch: Batch, which: Tensor) -> Batch:
    return tuple(_of(tensor, which) for tensor in batch)


def _of(tensor: Tensor, which: Tensor) -> Tensor:
    return tensor[which.to(tensor.device)]


def _another_like(tensor: Tensor) -> Tensor:
    return tensor * ENLARGED + 1 if tensor.is_floating_point() else torch.zeros_like(tensor)
