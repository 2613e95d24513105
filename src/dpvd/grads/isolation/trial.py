"""The runs by which it is tried out whether examples keep to themselves."""

import os
from dataclasses import replace

import torch
from torch import Tensor

from dpvd.grads.batch import Batch, batch_size, rows
from dpvd.grads.isolation.compare import (
    MEMORY,
    MIXING,
    SIZE,
    NotIsolated,
    agree,
    aligned,
    keeps_data,
    refuse_change,
    unmoved,
    within,
)
from dpvd.grads.isolation.locate import Scene, locate
from dpvd.grads.isolation.randomness import has_dropout
from dpvd.grads.isolation.runs import CannotTry, Run, Runner, Subject
from dpvd.grads.isolation.snapshot import Snapshot
from dpvd.grads.isolation.watch import BufferWatch
from dpvd.grads.per_example import Directions

__all__ = ["OTHER_DRAWS", "WAYS", "Trial"]

# Rows that are observed, beside those with the largest and the smallest loss.
OBSERVED_AT_RANDOM = 4
ENLARGED = 1000.0
# By what the other rows of a batch are replaced: copies of the row with the largest loss, enlarged,
# or of that with the smallest, or rows drawn from the batch.
WAYS = {"largest": ENLARGED, "smallest": 1.0, "drawn": 1.0}
OTHER_DRAWS = "what is drawn at random depends on which examples are in the batch"


class Trial(Runner):
    """The runs of one trial: some rows of a batch are observed while the others change."""

    def __init__(
        self,
        subject: Subject,
        batch: Batch,
        start: Snapshot,
        why_not: str = "",
        is_random: bool = False,
    ) -> None:
        self.choices = torch.Generator().manual_seed(int.from_bytes(os.urandom(7)))
        seed = int(torch.randint(1 << 31, (), generator=self.choices))
        super().__init__(subject, start, seed, why_not)
        self.batch = batch
        self.random = is_random
        # States left by the batch itself and by another one, at the same seed.
        self.left: list[tuple[Snapshot, Snapshot]] = []
        self.watch = BufferWatch(subject.model, subject.loss_fn, parameters=True)
        written = self.watch.now()
        sums = self.watch.sums()
        if has_dropout(subject.model):
            # All other runs are without dropout, which some modules can only be treated without.
            self.run(batch, dropout=True)
        self.base = self.run(batch)
        self.base_left = self._left_now()
        refuse_change(self._written_parameters(written, sums), frozenset(), self.watch)
        self.observed = self._choose_observed()

    # The trials

    def replay(self) -> None:
        """The same examples once more.

        At another seed first: if that changes nothing, the model is not random.
        """
        other = self.run(self.batch, seed=self.seed + 1, norms=False)
        self.random = not unmoved(other.losses, self.base.losses)
        if not self.random:
            return
        # By the same engine: rules may draw in another order than the model.
        again = self.run(self.batch)
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
        """The observed rows beside others: neither losses nor gradient norms may move."""
        if self.random and self.left:
            # A row that was drawn as partner may have been one of those observed.
            self.seed += 2
            self.base = self.run(self.batch)
            self.base_left = self._left_now()
        replaced, seen = self._run_replaced(way)
        same_engine = (seen.norms is None) == (self.base.norms is None)
        if same_engine:  # an engine may run a module more than once
            self.left.append((self.base_left, self._left_now()))
        comparable = not self.random or seen.ended == self.base.ended
        if comparable and unmoved(self._observed(seen.losses), self._observed(self.base.losses)):
            self._compare_norms(self.base, seen)
        else:
            self._replace_quietly(replaced, seen)

    def _replace_quietly(self, replaced: Batch, seen: Run) -> None:
        """Once more with the same draws for every example.

        For models whose losses moved under the same seeds. Either examples mix, or what the others
        drew has moved the stream from which the observed ones draw, which is no mixing. A model
        that is not random moves again.
        """
        base = self._run_or_give_up(self.batch, quietly=True)
        again = self._run_or_give_up(replaced, quietly=True)
        if base.drawn != again.drawn:
            raise CannotTry(OTHER_DRAWS)
        if not unmoved(self._observed(again.losses), self._observed(base.losses)):
            beside_others = Scene(replaced, self.observed)
            where = locate(self, Scene(self.batch, self.observed), beside_others)
            raise NotIsolated(MIXING.format(where))
        if seen.ended == self.base.ended:
            raise CannotTry(
                "losses move with the other examples, but only while it draws random numbers"
            )
        self._compare_norms(base, again)

    def change_size(self) -> None:
        """The observed rows with half of the others."""
        others = self._others()
        order = torch.randperm(len(others), generator=self.choices)
        half = others[order[: len(others) // 2]]
        chosen = torch.cat([self.observed, half]).sort().values
        fewer = rows(self.batch, chosen)
        positions = torch.searchsorted(chosen, self.observed)
        if not self.random:
            seen = self._run_or_give_up(fewer, norms=False)
            if self._same_beside_fewer(_at(seen.losses, positions), self.base):
                return
        base = self._quiet_base()
        seen = self._run_or_give_up(fewer, quietly=True, norms=False)
        if base.drawn != seen.drawn:
            raise CannotTry(OTHER_DRAWS)
        if not self._same_beside_fewer(_at(seen.losses, positions), base):
            beside_fewer = Scene(fewer, positions)
            where = locate(self, Scene(self.batch, self.observed), beside_fewer)
            raise NotIsolated(SIZE.format(where))

    def _same_beside_fewer(self, losses: Tensor, base: Run) -> bool:
        """Up to rounding: that of what a loss is made from, in products of other sizes."""
        expected = self._observed(base.losses)
        finite = expected[torch.isfinite(expected)].abs()
        scale = float(finite.max()) if len(finite) else 1.0
        return within(losses, expected, 1e-4 * max(scale, 0.1))

    def run_another(self) -> None:
        """A run on the batch and one on other examples, only for what they leave behind."""
        self.run(self.batch, norms=False)
        own = self._left_now()
        if batch_size(self.batch) > 1:
            # Doubled: rows that merely swap positions would leave the same mean behind.
            another = [self._replaced("drawn", 2.0), self._replaced("drawn", 1.0)]
        else:
            another = [self.batch.of(map(_another_like, self.batch.tensors))]
        for batch in another:
            try:
                self.run(batch, norms=False)
            except Exception:  # made-up values may be out of range, and a model may raise anything
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
                everyone = torch.arange(batch_size(self.batch))
                own_scene = Scene(self.batch, everyone, own, quietly=False)
                where = locate(self, own_scene, replace(own_scene, after=others))
                raise NotIsolated(MEMORY.format(where))
        return settled

    def ask_oracle(self, count: int) -> None:
        """Compare the factored engine's gradients of a few rows with those of the oracle.

        The oracle takes the gradient of each row's own loss in a joint pass, with the masks of
        dropout that the engine had. Parameter by parameter: rows of a small part of the network
        that belong to another example would hardly show in the norm of all. Norms, and projections
        on random directions: rows of another example may well have the same norm.
        """
        few = rows(self.batch, self._oracle_rows(count))
        wanted = range(min(count, batch_size(few)))
        if not wanted:
            return
        dropout = self._replays_dropout(few)
        directions = Directions(self.choices)
        ours = self.run(few, dropout=dropout, directions=directions)
        answers = [self._ask_oracle(few, i, dropout, directions) for i in wanted]
        if ours.by_parameter is None or ours.projections is None:
            return
        truth = torch.stack([norms for norms, _ in answers])  # [b, P]
        projections = torch.stack([projected for _, projected in answers])  # [b, P, K]
        columns = zip(ours.by_parameter[: len(wanted)].unbind(1), truth.unbind(1), strict=True)
        if not all(agree(own, expected) for own, expected in columns):
            self.why_not = "per-example norms differ from those of the oracle"
        elif not aligned(ours.projections[: len(wanted)], projections, truth):
            self.why_not = "per-example gradients point elsewhere than those of the oracle"

    # How they are made

    def _replays_dropout(self, batch: Batch) -> bool:
        """Whether the same seed gives engine and model the same masks.

        Some rules run a layer in their own way, and draw in another order; dropout is off then.
        """
        if not has_dropout(self.subject.model):
            return False
        engine = self.run(batch, dropout=True)
        model = self.run(batch, dropout=True, norms=False)
        return unmoved(engine.losses, model.losses)

    def _written_parameters(
        self, written: list[tuple[Tensor | None, int]], sums: dict[str, str]
    ) -> list[str]:
        """Names of the parameters that changed; torch does not count writes through ``.data``."""
        changed = self.watch.changed(written)
        counted = [name for name in changed if self.watch.is_parameter(name)]
        now = self.watch.sums()
        uncounted = [name for name, total in sums.items() if now.get(name) != total]
        return counted + uncounted

    def _left_now(self) -> Snapshot:
        subject = self.subject
        return Snapshot(subject.model, subject.loss_fn)

    def _run_replaced(self, way: str) -> tuple[Batch, Run]:
        """A run with the other rows replaced; enlarged and relabelled if the model allows it."""
        factor = WAYS[way]
        attempts = (True, False) if factor != 1 else ()
        for relabelled in attempts:
            replaced = self._replaced(way, factor, relabelled=relabelled)
            try:
                return replaced, self.run(replaced)
            except Exception as problem:
                del problem  # a model may say in any way that this is out of range
        replaced = self._replaced(way, 1.0)
        return replaced, self._run_or_give_up(replaced)

    def _quiet_base(self) -> Run:
        """A run with the same draws for every example, if that leaves nothing to chance."""
        base = self._run_or_give_up(self.batch, quietly=True, norms=False)
        other = self._run_or_give_up(self.batch, quietly=True, norms=False, seed=self.seed + 1)
        if not unmoved(other.losses, base.losses):
            raise CannotTry(
                "it draws random numbers that cannot be made the same for every example"
            )
        return base

    def _compare_norms(self, base: Run, seen: Run) -> None:
        if seen.norms is None or base.norms is None:
            return
        ours = self._observed(seen.norms)
        truth = self._observed(base.norms)
        tolerance = torch.finfo(truth.dtype).eps ** 0.5
        if not self.why_not and not within(ours, truth, tolerance * truth.abs()):
            self.why_not = (
                "the norm of an example's gradient changes with the other examples, its loss"
                " does not"
            )

    # Which rows

    def _choose_observed(self) -> Tensor:
        """The rows with the largest and the smallest loss and some at random, at most half."""
        count = len(self.base.losses)
        drawn = torch.randperm(count, generator=self.choices)[:OBSERVED_AT_RANDOM].tolist()
        chosen = [self._extreme("largest"), self._extreme("smallest"), *drawn]
        distinct = list(dict.fromkeys(chosen))
        most = max(1, count // 2)
        return torch.tensor(distinct[:most]).sort().values

    def _observed(self, values: Tensor) -> Tensor:
        """The values of the observed rows."""
        return _at(values, self.observed)

    def _extreme(self, which: str) -> int:
        losses = self.base.losses
        sign = 1.0 if which == "largest" else -1.0
        finite = torch.where(torch.isfinite(losses), sign * losses, -torch.inf)
        return int(finite.argmax())

    def _others(self) -> Tensor:
        count = batch_size(self.batch)
        is_other = torch.ones(count, dtype=torch.bool)
        is_other[self.observed] = False
        return is_other.nonzero().squeeze(1)

    def _replaced(self, which: str, factor: float, relabelled: bool = False) -> Batch:
        """The batch with all rows but those observed replaced.

        By copies of one row, enlarged, or by rows drawn from the batch. Relabelled rows have values
        that the batch may lack, as a batch lacks a rare class: one more than they had.
        """
        count = batch_size(self.batch)
        others = self._others()
        source = torch.arange(count)
        if which == "drawn":
            onwards = torch.randint(1, count, (len(others),), generator=self.choices)
            source[others] = (others + onwards) % count  # never the row itself
        else:
            source[others] = self._extreme(which)
        result = rows(self.batch, source)
        for tensor in result.tensors:
            changed = others.to(tensor.device)
            if tensor.is_floating_point():
                tensor[changed] *= factor
            if relabelled and tensor.dtype is not torch.bool:
                tensor[changed] += 1
            elif relabelled:
                tensor[changed] ^= True
        return result

    def _oracle_rows(self, count: int) -> Tensor:
        """Rows at random, one more than are compared if there is one: none is to be alone.

        Only rows with a finite gradient: a joint backward pass multiplies what is not finite by 0,
        and all are lost.
        """
        norms = self.base.norms
        assert norms is not None
        usable = torch.isfinite(norms).all(1).nonzero().squeeze(1).cpu()
        order = torch.randperm(len(usable), generator=self.choices)
        return usable[order[: count + 1]]


def _at(tensor: Tensor, positions: Tensor) -> Tensor:
    on_device = positions.to(tensor.device)
    return tensor[on_device]


def _another_like(tensor: Tensor) -> Tensor:
    if tensor.is_floating_point():
        return tensor * ENLARGED + 1
    return torch.zeros_like(tensor)
