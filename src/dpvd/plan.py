"""The one place where sampling, clipping, noise, steps and relation are bound together.

The engine executes the plan and the accountant reads the same plan, so they cannot disagree.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import InitVar, asdict, dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from dp_accounting import ComposedDpEvent, DpEvent

from dpvd.batches import Columns, prefetched, read_batches, sample_of
from dpvd.errors import (
    Choice,
    DpvdError,
    exact_fields,
    in_unit_interval,
    non_negative,
    phrase,
    phrases,
    positive,
    positive_int,
)
from dpvd.grads import Clipping, ClippingMode
from dpvd.loader import Collate, DrawsInPasses, PlannedLoader, as_dataset
from dpvd.mechanisms import (
    MOST_BANDS,
    BitSource,
    CyclicSampler,
    FixedSizeSampler,
    Partition,
    PoissonSampler,
    SeededBits,
    SystemBits,
    handed_out,
)
from dpvd.privacy import (
    AccountantName,
    Guarantee,
    Relation,
    SamplingKind,
    epsilon,
    fingerprint,
    noise_multiplier_for,
    sampling_rate,
    steps_for,
    steps_in,
)
from dpvd.ranks import Ranks

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["NoiseKind", "PrivacyPlan"]


LARGE_DELTA = (
    "whole examples, which a delta that is not below one over their number allows to be published"
)

_SAME_DATA = "give every process all examples, in the same order"

COUNT = "the number of gradients within the clip norm"  # what adaptive clipping releases, too


class NoiseKind(StrEnum):
    """Where the privacy noise and the sampling come from."""

    SYSTEM = "system"
    """A cipher stream keyed by the operating system: secret, never repeated."""
    SEEDED = "seeded"
    """A stream that follows from a seed: reproducible, and no secret to whoever knows the seed."""


@dataclass(frozen=True)
class PrivacyPlan:
    """What a private training run does to the data, in full, before it starts.

    Guarantees:
        ``event()``, from which every ε is computed, and the sampler and noise level that training
        uses are functions of the same fields.

    Args:
        examples: number of training examples. It is treated as public.
        batch_size: the expected batch size (Poisson) or the exact one (fixed size). Gradients are
            divided by this number, never by the size of the batch that was drawn.
        steps: number of noisy steps; or give ``epochs``.
        noise_multiplier: noise standard deviation divided by the sensitivity; 0 is ordinary
            training; None until ``calibrate`` has chosen it.
        clipping: the bound on one example's gradient.
        sampling: how batches are drawn.
        relation: which data sets count as neighbours.
        noise: where randomness comes from; ``seeded`` needs ``seed``.
        seed: of the seeded streams.
        unit: what one example is, in words, for the guarantee ("patient"); "example" says nothing
            of that.
        tuned: what was chosen by looking at the data, in words, for the guarantee; () says that
            nothing was, None that nobody said.
        public: facts about the data that are public, in words, beside the number of examples; as
            ``tuned``.
        initial_weights: where the weights come from before the first step, in words ("random").
        bands: over how many steps the noise is correlated; 1 is independent noise. With b bands
            the data are divided at random into b parts, from which batches come in turn; see
            docs/correlated-noise.md.
        secret_size: whether ``examples`` is a round number that may be published, and the true one,
            which may be up to twice or half as large, is a secret. Poisson sampling is accounted in
            the same way for each of them.
        epochs: passes over the data, instead of ``steps``.

    >>> plan = PrivacyPlan(examples=60_000, batch_size=600, epochs=200)
    >>> plan.steps, plan.sampling_prob
    (20000, 0.01)
    """

    examples: int
    batch_size: int
    steps: int = 0
    noise_multiplier: float | None = None
    clipping: Clipping = field(default_factory=Clipping)
    sampling: Choice[SamplingKind] = Choice(SamplingKind.POISSON)
    relation: Choice[Relation] = Choice(Relation.ADD_OR_REMOVE)
    noise: Choice[NoiseKind] = Choice(NoiseKind.SYSTEM)
    seed: int | None = None
    unit: str = "example"
    tuned: tuple[str, ...] | None = None
    public: tuple[str, ...] | None = None
    initial_weights: str | None = None
    bands: int = 1
    secret_size: bool = False
    epochs: InitVar[float | None] = None

    def __post_init__(self, epochs: float | None) -> None:
        sampling_rate(self.batch_size, self.examples)  # refuses sizes that make no sense
        if epochs is not None:
            if self.steps:
                raise DpvdError("give steps or epochs, not both")
            self._set(steps=steps_in(epochs, batch_size=self.batch_size, examples=self.examples))
        positive_int(steps=self.steps)
        if not isinstance(self.clipping, Clipping):
            raise DpvdError(
                f"clipping must be a Clipping, such as Clipping('flat', 1.0), got {self.clipping!r}"
            )
        if self.noise_multiplier is not None:
            non_negative(noise_multiplier=self.noise_multiplier)
        self._set(
            unit=phrase(self.unit, "unit"),
            tuned=None if self.tuned is None else phrases(self.tuned, "tuned"),
            public=None if self.public is None else phrases(self.public, "public"),
        )
        if self.initial_weights is not None:
            self._set(initial_weights=phrase(self.initial_weights, "initial_weights"))
        if self.secret_size and self.sampling is not SamplingKind.POISSON:
            raise DpvdError(
                "fixed-size sampling needs the exact number of examples: a secret size needs"
                " Poisson sampling"
            )
        if (self.noise is NoiseKind.SEEDED) != (self.seed is not None):
            raise DpvdError(
                "seeded noise needs a seed, and a seed needs noise='seeded': it must be asked for"
                " by name"
            )
        if self.noise_multiplier and self.clipping.mode is ClippingMode.NONE:
            raise DpvdError(
                "noise without clipping bounds nothing: choose a clipping mode, or"
                " noise_multiplier=0"
            )
        self._check_bands()

    def _check_bands(self) -> None:
        """Raise unless there is a theorem for noise that is correlated in this plan."""
        positive_int(bands=self.bands)
        most = min(MOST_BANDS, self.examples // self.batch_size)
        if self.bands == 1:
            return
        if self.bands > most:
            raise DpvdError(
                f"bands must be at most {most} here, got {self.bands}: each of so many parts of the"
                f" {self.examples} examples must hold a batch of {self.batch_size}, and"
                f" {MOST_BANDS} is the limit"
            )
        if self.sampling is not SamplingKind.POISSON:
            raise DpvdError("correlated noise (bands above 1) needs sampling='poisson'")
        if self.relation is not Relation.ADD_OR_REMOVE:
            raise DpvdError(
                "correlated noise (bands above 1) is accounted under relation='add-or-remove' only"
            )
        if self.clipping.is_adaptive:
            raise DpvdError(
                "adaptive clipping changes the scale of the noise at every step, which correlated"
                " noise (bands above 1) cannot follow: choose another clipping"
            )

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    # What the engine executes.

    @property
    def sampling_prob(self) -> float:
        """The probability with which an example takes part in a step."""
        return sampling_rate(self.batch_size, self.examples)

    @property
    def sampler(self) -> PoissonSampler | FixedSizeSampler | CyclicSampler:
        if self.bands > 1:
            return CyclicSampler(self.bands * self.batch_size / self.examples, self.bands)
        if self.sampling is SamplingKind.POISSON:
            return PoissonSampler(self.sampling_prob)
        return FixedSizeSampler(self.batch_size, self.examples)

    @property
    def private(self) -> bool:
        """Whether noise is added at all."""
        return self._noise_multiplier() > 0

    def noise_std(self, sensitivity: float) -> float:
        """Standard deviation of the noise on the clipped sum, z · Δ.

        Where a step releases a count beside it (adaptive clipping), z is the larger one that the
        two then need to cost as much as the plan's: see `Clipping.split_noise`.
        """
        if not self.private:
            return 0.0
        multiplier, _ = self.clipping.split_noise(self._noise_multiplier())
        return multiplier * sensitivity

    def count_noise_std(self) -> float:
        """Standard deviation of the noise on the centred count that adaptive clipping releases."""
        _, multiplier = self.clipping.split_noise(self._noise_multiplier())
        return multiplier * self.clipping.count_sensitivity(self.relation)

    def bits(self, purpose: str) -> BitSource:
        """A fresh stream of random bits for this purpose ("noise", "sampling")."""
        if self.noise is NoiseKind.SEEDED:
            assert self.seed is not None  # checked at construction
            return SeededBits(self.seed, purpose)
        return SystemBits()

    def batches(
        self,
        data: Any,
        *,
        bits: BitSource | None = None,
        start: int = 0,
        device: torch.device | str | None = None,
        prefetch: bool = False,
        shared: bool = False,
        group: "ProcessGroup | None" = None,
    ) -> Iterator[Any]:
        """The batches of the plan's steps, drawn by the sampler that the account assumes.

        Only the rows that were drawn are read, and they keep their type: data may lie in
        memory-mapped files, and images travel as the bytes they are.

        Args:
            data: tensors or arrays with the examples along the first dimension, as many as the plan
                says; in tuples, dictionaries or dataclasses, in which the batches then come, too.
            bits: where the draw comes from; the plan's own stream if not given.
            start: how many steps have been taken already (``step.position``).
            device: where batches are wanted; where the data is, if not given.
            prefetch: read each batch in the background while the one before it is used. It pays
                where reading takes time: files that do not fit into memory, another device. A
                seeded stream is read in step all the same: its position, from which a resumed run
                goes on, is that of the steps taken.
            shared: give a draw of all examples as the data themselves, not as a copy. It saves
                time and memory where every step takes all examples; nothing may write to the
                batches then.
            group: of the processes that train together. Each gives all the data, in the same order,
                and gets what was drawn from its own part of them, which is all it reads.

        Raises:
            DpvdError: if the data are not tensors of the plan's length, ``bits`` are not of the
                plan's kind, or the plan has no step ``start``; or if processes have other data.
        """
        ranks = Ranks(group)
        with ranks.together():
            columns = self.check_data(data)
            self._check_start(start)
            self._check_ranks(ranks)
        ranks.check_same({"the data": sample_of(columns) if ranks.are_several else ""}, _SAME_DATA)
        if bits is not None:
            self.check_source(bits, "bits")
        stream = self._sampling_bits(len(columns), start) if bits is None else bits
        part = ranks.part_of(len(columns))
        partition = self._partition(len(columns))
        batches = read_batches(
            columns,
            lambda step: self._draw(step, len(columns), part, partition, stream),
            steps=range(start, self.steps),
            fingerprint=self.fingerprint,
            device=device,
            shared=shared,
            ranks=ranks,
            partition=partition,
        )
        if prefetch and not isinstance(stream, SeededBits):
            batches = prefetched(batches)
        return handed_out(batches)

    def loader(
        self,
        dataset: Any,
        *,
        collate_fn: Collate | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        start: int = 0,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        group: "ProcessGroup | None" = None,
    ) -> PlannedLoader:
        """A ``torch.utils.data.DataLoader`` whose batches are the plan's draws.

        One pass is one epoch, and the next pass goes on where it ended: as many passes as the plan
        has epochs take all of its steps.

        Edge cases: an empty draw is a batch without rows. To make one, the first example is
        collated and its row cut off.

        Args:
            dataset: a map-style data set, a ``datasets.Dataset``, a list of examples; or tensors
                and arrays, as for :meth:`batches`.
            collate_fn: makes a batch of a list of examples, with one row for each, from that
                example alone; torch's own if not given.
            num_workers: processes that read examples; 0 reads them in this one.
            pin_memory: as of torch's DataLoader, and so are ``persistent_workers``,
                ``prefetch_factor``, ``worker_init_fn`` and ``multiprocessing_context``.
            start: how many steps have been taken already (``step.position``).
            group: of the processes that train together; see :meth:`batches`.

        Raises:
            DpvdError: if examples cannot be had by number, they are not as many as the plan says,
                or the plan has no step ``start``; or if processes have other data.
        """
        ranks = Ranks(group)
        with ranks.together():
            examples = as_dataset(dataset)
            self._check_length(len(examples))
            self._check_start(start)
            self._check_ranks(ranks)
        ranks.check_same({"the data": sample_of(examples) if ranks.are_several else ""}, _SAME_DATA)
        partition = self._partition(len(examples))  # one for all passes

        def draw_from(step: int) -> Iterator[list[int]]:
            count = len(examples)
            self._check_length(count)
            stream = self._sampling_bits(count, step)
            for number in itertools.count(step):
                part = ranks.part_of(count)
                drawn: list[int] = self._draw(number, count, part, partition, stream).tolist()
                yield drawn

        draws = DrawsInPasses(
            draw_from,
            self._pass_end,
            fingerprint=self.fingerprint,
            steps=self.steps,
            start=start,
            ranks=ranks,
            partition=partition,
        )
        options = {
            "num_workers": num_workers,
            "pin_memory": pin_memory,
            "persistent_workers": persistent_workers,
            "prefetch_factor": prefetch_factor,
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context,
        }
        return PlannedLoader(examples, draws, collate_fn, options)

    def _pass_end(self, position: int) -> int:
        """The step before which the epoch of step ``position`` ends."""
        epoch = int(position * self.batch_size / self.examples)
        end = position
        while end <= position and end < self.steps:
            epoch += 1
            end = steps_in(epoch, batch_size=self.batch_size, examples=self.examples)
        return min(end, self.steps)

    def _check_start(self, start: int) -> None:
        if isinstance(start, bool) or not isinstance(start, int) or not 0 <= start <= self.steps:
            raise DpvdError(
                f"start must be a whole number from 0 to the plan's {self.steps} steps, got"
                f" {start!r}"
            )
        if start % self.bands and start < self.steps:
            raise DpvdError(
                f"start must be a multiple of the plan's {self.bands} bands, got {start}: new"
                " batches divide the data anew, which the account allows between cycles only. Keep"
                " on with the batches you have, or make a new PrivateStep, whose position is such a"
                " number"
            )

    def _partition(self, examples: int) -> Partition | None:
        """The examples divided into parts at random; None where all of them are in each draw."""
        if self.bands == 1:
            return None
        return Partition.drawn(examples, self.bands, self.bits("partition"))

    def _draw(
        self,
        step: int,
        examples: int,
        part: range,
        partition: Partition | None,
        bits: BitSource,
    ) -> torch.Tensor:
        """The numbers of a step's examples, of those in ``part``."""
        sampler = self.sampler
        if not isinstance(sampler, CyclicSampler):
            return sampler.draw_part(examples, part, bits)
        assert partition is not None  # with bands there are parts
        if len(partition.parts) != examples:
            raise DpvdError(
                f"the data had {len(partition.parts)} examples when they were divided into parts,"
                f" and have {examples} now: make a new loader"
            )
        return sampler.draw(partition, step, bits)

    def _check_ranks(self, ranks: Ranks) -> None:
        """Raise where several processes cannot draw what one would."""
        if ranks.are_several and self.sampling is SamplingKind.FIXED_SIZE:
            raise DpvdError(
                "batches of a fixed size are drawn from all examples at once, which several"
                " processes with secret bits of their own cannot do: take sampling='poisson', or"
                " train in one process"
            )
        if ranks.are_several and self.bands > 1:
            raise DpvdError(
                "correlated noise is kept in one process: take bands=1, or train in one process"
            )

    def check_source(self, bits: BitSource, name: str) -> None:
        """Raise unless random bits are of the kind that the plan, and so its statement, names."""
        if bits.private is not (self.noise is NoiseKind.SYSTEM):
            raise DpvdError(
                f"{name} is a source that is {'secret' if bits.private else 'not secret'}, but the"
                f" plan has noise={str(self.noise)!r}: ask for seeded noise in the plan, so that"
                " its statement says so"
            )

    def check_data(self, data: Any) -> Columns:
        """The columns of the data, which must be as many examples as the plan is for.

        Raises:
            DpvdError: if they are not.
        """
        columns = data if isinstance(data, Columns) else Columns(data)
        self._check_length(len(columns))
        return columns

    def _check_length(self, length: int) -> None:
        """Raise if the data have another length than the plan is for."""
        near = self.secret_size and self.examples <= 2 * length and length <= 2 * self.examples
        if length != self.examples and not near:
            raise DpvdError(
                f"the plan is for {self.examples} examples, the data have {length}: make the"
                f" plan with examples={length}, or with secret_size=True and a round number"
                " close to it"
            )

    def _sampling_bits(self, examples: int, start: int) -> BitSource:
        """The plan's own stream, a seeded one after the draws of the first ``start`` steps."""
        stream = self.bits("sampling")
        if isinstance(stream, SeededBits):
            stream.position = start * self.sampler.bytes_per_draw(examples)
        return stream

    # What the accountant reads.

    def event(self, steps: int | None = None) -> DpEvent:
        """What so many steps (all, if not given) release, in dp-accounting's vocabulary."""
        return self.sampler.event(self._noise_multiplier(), self.steps if steps is None else steps)

    def epsilon(
        self, delta: float, accountant: AccountantName | str = "pld", steps: int | None = None
    ) -> float:
        """ε of ``steps`` steps at this δ."""
        in_unit_interval(delta=delta)
        name = AccountantName.parse(accountant)
        return epsilon(self.event(steps), delta, accountant=name, relation=self.relation)

    def guarantee(
        self, delta: float, accountant: AccountantName | str = "pld", steps: int | None = None
    ) -> Guarantee:
        """The privacy statement for ``steps`` steps of this plan, carried out as it stands."""
        taken = self.steps if steps is None else steps
        return Guarantee(
            epsilon=self.epsilon(delta, accountant, taken),
            delta=delta,
            relation=self.relation,
            unit=self.unit,
            accountant=AccountantName.parse(accountant),
            sampling=self.sampler.describe(),
            noise_source=self.bits("noise").description,
            steps=taken,
            noise_multiplier=self._noise_multiplier(),
            bands=self.bands,
            also_released=COUNT if self.clipping.is_adaptive else "",
            public=(self._size_in_words(), *(self.public or ())),
            tuned=self.tuned,
            not_covered=(LARGE_DELTA,) if delta * self.examples >= 1 else (),
            undeclared=self._undeclared(),
        )

    def _size_in_words(self) -> str:
        if self.secret_size:
            return f"that there are about {self.examples} training examples"
        return f"the number of training examples ({self.examples})"

    def _undeclared(self) -> tuple[str, ...]:
        """What only the holder of the data knows, and did not say."""
        missing = {
            "what one example stands for": self.unit == "example",
            "other public facts": self.public is None,
            "where the initial weights come from": self.initial_weights is None,
        }
        return tuple(fact for fact, absent in missing.items() if absent)

    def calibrate(
        self,
        epsilon: float,
        delta: float,
        accountant: AccountantName | str = "pld",
        *,
        beside: Sequence[DpEvent] = (),
    ) -> "PrivacyPlan":
        """The same plan with the smallest noise that keeps it within (ε, δ).

        Edge cases: ε = ∞ gives ordinary training.

        Args:
            epsilon: the budget.
            delta: δ of the budget.
            accountant: who adds up.
            beside: what else is done to the data, and is to be within (ε, δ) too.
        """
        in_unit_interval(delta=delta)
        if epsilon == math.inf:
            unbounded = Clipping(
                ClippingMode.NONE, self.clipping.clip_norm, self.clipping.stability
            )
            return replace(self, noise_multiplier=0.0, clipping=unbounded)
        positive(epsilon=epsilon)

        def event(z: float) -> DpEvent:
            own = self.sampler.event(z, self.steps)
            return ComposedDpEvent([*beside, own]) if beside else own

        multiplier = noise_multiplier_for(
            epsilon,
            delta,
            event,
            accountant=AccountantName.parse(accountant),
            relation=self.relation,
        )
        return replace(self, noise_multiplier=multiplier)

    def affordable_steps(
        self, epsilon: float, delta: float, accountant: AccountantName | str = "pld"
    ) -> int:
        """How many steps at this plan's noise stay within (ε, δ)."""
        positive(epsilon=epsilon)
        in_unit_interval(delta=delta)
        return steps_for(
            epsilon,
            delta,
            self.event,
            accountant=AccountantName.parse(accountant),
            relation=self.relation,
        )

    def _noise_multiplier(self) -> float:
        if self.noise_multiplier is None:
            raise DpvdError(
                "the plan has no noise yet: call .calibrate(epsilon, delta), or give"
                " noise_multiplier"
            )
        return self.noise_multiplier

    # How it is written down.

    @cached_property
    def fingerprint(self) -> str:
        """The plan's name in ledgers, checkpoints and batches: a hash of all its fields."""
        return fingerprint(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Plain data; declarations that nobody made are left out."""
        plain = asdict(self) | {
            "clipping": self.clipping.to_dict(),
            "sampling": str(self.sampling),
            "relation": str(self.relation),
            "noise": str(self.noise),
            "tuned": None if self.tuned is None else list(self.tuned),
            "public": None if self.public is None else list(self.public),
        }
        unsaid = {name for name in ("public", "initial_weights") if plain[name] is None}
        if not self.secret_size:
            unsaid.add("secret_size")
        if self.bands == 1:
            unsaid.add("bands")
        return {name: value for name, value in plain.items() if name not in unsaid}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "PrivacyPlan":
        optional = ("public", "initial_weights", "secret_size", "bands")
        plain = exact_fields(values, cls, "a privacy plan", optional=optional)
        return cls(**plain | {"clipping": Clipping.from_dict(plain["clipping"])})
