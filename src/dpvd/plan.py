"""The one place where sampling, clipping, noise, steps and relation are bound together.

The engine executes the plan and the accountant reads the same plan, so they cannot disagree.
"""

import math
from collections.abc import Generator, Iterator, Mapping
from dataclasses import InitVar, asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

import torch
from dp_accounting import DpEvent
from torch import Tensor

from dpvd.errors import DpvdError, choice, in_unit_interval, non_negative, positive, positive_int
from dpvd.grads import Clipping, ClippingMode
from dpvd.mechanisms import BitSource, FixedSizeSampler, PoissonSampler, SeededBits, SystemBits
from dpvd.mechanisms.ahead import ahead
from dpvd.privacy import (
    AccountantName,
    Guarantee,
    Relation,
    SamplingKind,
    epsilon,
    noise_multiplier_for,
    sampling_rate,
    steps_for,
    steps_in,
)

__all__ = ["NoiseKind", "PrivacyPlan"]


class NoiseKind(StrEnum):
    """Where the privacy noise and the sampling come from."""

    SYSTEM = "system"
    """A cipher stream keyed by the operating system: secret, never repeated."""
    SEEDED = "seeded"
    """A stream that follows from a seed: reproducible, not private against whoever knows the seed."""


@dataclass(frozen=True)
class PrivacyPlan:
    """What a private training run does to the data, in full, before it starts.

    Guarantees:
        ``event()``, from which every ε is computed, and the sampler and noise level that training uses are
        functions of the same fields.

    Args:
        examples: number of training examples. It is treated as public.
        batch_size: the expected batch size (Poisson) or the exact one (fixed size). Gradients are divided by
            this number, never by the size of the batch that was drawn.
        steps: number of noisy steps; or give ``epochs``.
        noise_multiplier: noise standard deviation divided by the sensitivity; 0 is ordinary training; None until
            ``calibrate`` has chosen it.
        clipping: the bound on one example's gradient.
        sampling: how batches are drawn.
        relation: which data sets count as neighbours.
        noise: where randomness comes from; ``seeded`` needs ``seed``.
        seed: of the seeded streams.
        unit: what one example is, in words, for the guarantee ("example", "patient").
        tuned: what was chosen by looking at the data, in words, for the guarantee.
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
    sampling: SamplingKind = SamplingKind.POISSON
    relation: Relation = Relation.ADD_OR_REMOVE
    noise: NoiseKind = NoiseKind.SYSTEM
    seed: int | None = None
    unit: str = "example"
    tuned: tuple[str, ...] = ()
    epochs: InitVar[float | None] = None

    def __post_init__(self, epochs: float | None) -> None:
        sampling_rate(self.batch_size, self.examples)  # refuses sizes that make no sense
        if epochs is not None:
            if self.steps:
                raise DpvdError("give steps or epochs, not both")
            self._set(steps=steps_in(epochs, batch_size=self.batch_size, examples=self.examples))
        positive_int(steps=self.steps)
        if self.noise_multiplier is not None:
            non_negative(noise_multiplier=self.noise_multiplier)
        self._set(
            sampling=choice(self.sampling, SamplingKind, "sampling"),
            relation=choice(self.relation, Relation, "relation"),
            noise=choice(self.noise, NoiseKind, "noise"),
            tuned=tuple(self.tuned),
        )
        if (self.noise is NoiseKind.SEEDED) != (self.seed is not None):
            raise DpvdError("seeded noise needs a seed, and a seed needs noise='seeded': it must be asked for by name")
        if self.noise_multiplier and self.clipping.mode is ClippingMode.NONE:
            raise DpvdError("noise without clipping bounds nothing: choose a clipping mode, or noise_multiplier=0")

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    # What the engine executes.

    @property
    def sampling_prob(self) -> float:
        """The probability with which an example takes part in a step."""
        return sampling_rate(self.batch_size, self.examples)

    @property
    def sampler(self) -> PoissonSampler | FixedSizeSampler:
        if self.sampling is SamplingKind.POISSON:
            return PoissonSampler(self.sampling_prob)
        return FixedSizeSampler(self.batch_size, self.examples)

    @property
    def private(self) -> bool:
        """Whether noise is added at all."""
        return self._noise_multiplier() > 0

    def noise_std(self, sensitivity: float) -> float:
        """Standard deviation of the noise on the clipped sum, z · Δ."""
        return self._noise_multiplier() * sensitivity if self.private else 0.0

    def bits(self, purpose: str) -> BitSource:
        """A fresh stream of random bits for this purpose ("noise", "sampling")."""
        if self.noise is NoiseKind.SEEDED:
            assert self.seed is not None  # checked at construction
            return SeededBits(self.seed, purpose)
        return SystemBits()

    def batches(
        self,
        data: tuple[Tensor, ...],
        *,
        bits: BitSource | None = None,
        start: int = 0,
        device: torch.device | str | None = None,
        prefetch: bool = False,
    ) -> Iterator[tuple[Tensor, ...]]:
        """The batches of the plan's steps, drawn by the sampler that the account assumes.

        Only the rows that were drawn are read, and they keep their type: data may lie in memory-mapped files, and
        images travel as the bytes they are.

        Args:
            data: tensors with the examples along the first dimension.
            bits: where the draw comes from; the plan's own stream if not given.
            start: how many steps have been taken already.
            device: where batches are wanted; where the data is, if not given.
            prefetch: read each batch in the background while the one before it is used. It pays where reading takes
                time: files that do not fit into memory, another device. A seeded stream is read in step all the same:
                its position, from which a resumed run goes on, is that of the steps taken.
        """
        stream, sampler = self.bits("sampling") if bits is None else bits, self.sampler

        def read() -> Generator[tuple[Tensor, ...], None, None]:
            for _ in range(start, self.steps):
                rows = sampler.draw(len(data[0]), stream)
                yield tuple(_gather(tensor, rows, device) for tensor in data)

        return ahead(read()) if prefetch and not isinstance(stream, SeededBits) else read()

    # What the accountant reads.

    def event(self, steps: int | None = None) -> DpEvent:
        """What ``steps`` steps (all of them, if not given) release, in dp-accounting's vocabulary."""
        return self.sampler.event(self._noise_multiplier(), self.steps if steps is None else steps)

    def epsilon(self, delta: float, accountant: AccountantName | str = "pld", steps: int | None = None) -> float:
        """ε of ``steps`` steps at this δ."""
        in_unit_interval(delta=delta)
        name = AccountantName.parse(accountant)
        return epsilon(self.event(steps), delta, accountant=name, relation=self.relation)

    def guarantee(self, delta: float, accountant: AccountantName | str = "pld", steps: int | None = None) -> Guarantee:
        """The privacy statement for ``steps`` steps of this plan."""
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
            public=(f"the number of {self.unit}s ({self.examples})",),
            tuned=self.tuned,
        )

    def calibrate(self, epsilon: float, delta: float, accountant: AccountantName | str = "pld") -> "PrivacyPlan":
        """The same plan with the smallest noise that keeps it within (ε, δ); ε = ∞ gives ordinary training."""
        in_unit_interval(delta=delta)
        if epsilon == math.inf:
            return replace(self, noise_multiplier=0.0, clipping=replace(self.clipping, mode=ClippingMode.NONE))
        positive(epsilon=epsilon)
        multiplier = noise_multiplier_for(
            epsilon,
            delta,
            lambda z: self.sampler.event(z, self.steps),
            accountant=AccountantName.parse(accountant),
            relation=self.relation,
        )
        return replace(self, noise_multiplier=multiplier)

    def affordable_steps(self, epsilon: float, delta: float, accountant: AccountantName | str = "pld") -> int:
        """How many steps at this plan's noise stay within (ε, δ)."""
        positive(epsilon=epsilon)
        in_unit_interval(delta=delta)
        return steps_for(
            epsilon, delta, self.event, accountant=AccountantName.parse(accountant), relation=self.relation
        )

    def _noise_multiplier(self) -> float:
        if self.noise_multiplier is None:
            raise DpvdError("the plan has no noise yet: call .calibrate(epsilon, delta), or give noise_multiplier")
        return self.noise_multiplier

    # How it is written down.

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {
            "clipping": self.clipping.to_dict(),
            "sampling": str(self.sampling),
            "relation": str(self.relation),
            "noise": str(self.noise),
            "tuned": list(self.tuned),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "PrivacyPlan":
        known = {f.name for f in fields(cls)}
        if set(values) != known:
            raise DpvdError(f"not a privacy plan: fields {sorted(set(values) ^ known)} are missing or unknown")
        return cls(**{**values, "clipping": Clipping.from_dict(values["clipping"])})


def _gather(tensor: Tensor, rows: Tensor, device: torch.device | str | None) -> Tensor:
    # Several times as fast as tensor[rows].
    return tensor.index_select(0, rows.to(tensor.device)).to(device)
