"""Samplers: which examples take part in a step, and the event that the accountant reads.

Amplification by subsampling needs the choice of examples to be secret, so samplers draw from the
same kind of cryptographic source as the noise.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from dp_accounting import DpEvent
from torch import Tensor

from dpvd.errors import DpvdError, positive_int
from dpvd.mechanisms.bits import BitSource, SeededBits, random_words
from dpvd.privacy import (
    cyclic_event,
    cyclic_in_words,
    fixed_size_event,
    fixed_size_in_words,
    poisson_event,
    poisson_in_words,
)

__all__ = ["CyclicSampler", "FixedSizeSampler", "Partition", "PoissonSampler", "Sampler"]

_MOST_PARTS = 256  # a part is one byte

WORD_BYTES = 8  # of a random word


@dataclass(frozen=True)
class PoissonSampler:
    """Every example takes part independently with the same probability.

    Guarantees:
        An index is drawn when a 64-bit word is below ⌊q·2^64⌋: the probability is q to within
        2^-64, never above it, and every example has a word of its own.

    Edge cases:
        An empty draw is legal and must be noised and charged like any other. Probability 1 takes
        all.

    Args:
        sampling_prob: probability q of each example in each step, above 0 and at most 1.

    Raises:
        DpvdError: if the probability is outside this range.

    >>> from dpvd.mechanisms import SystemBits
    >>> PoissonSampler(1.0).draw(4, SystemBits())
    tensor([0, 1, 2, 3])
    """

    sampling_prob: float

    def __post_init__(self) -> None:
        prob = self.sampling_prob
        if isinstance(prob, bool) or not isinstance(prob, int | float) or not 0 < prob <= 1:
            raise DpvdError(f"sampling_prob must be above 0 and at most 1, got {prob!r}")

    def draw(self, examples: int, bits: BitSource) -> Tensor:
        """Return the sorted indices of one step's examples, int64, each below ``examples``."""
        positive_int(examples=examples)
        return self.draw_part(examples, range(examples), bits)

    def draw_part(self, examples: int, part: range, bits: BitSource) -> Tensor:
        """Return those indices of one step's examples that lie in ``part``, sorted.

        Every example is drawn by itself, so parts that are drawn by several processes, each with
        bits of its own, are together one draw of all examples. Of a seeded stream each example has
        its place, so that the draw is the same whoever makes it.
        """
        positive_int(examples=examples)
        if self.sampling_prob == 1:
            return torch.arange(part.start, part.stop, device="cpu")
        # Exact: a power of two scales without rounding.
        threshold = np.uint64(int(self.sampling_prob * 2.0**64))
        words = _words_of_part(examples, part, bits)
        drawn = np.flatnonzero(words < threshold) + part.start
        return torch.from_numpy(drawn)

    def bytes_per_draw(self, examples: int) -> int:
        """Return how many random bytes a draw takes."""
        return 0 if self.sampling_prob == 1 else WORD_BYTES * examples

    def event(self, noise_multiplier: float, steps: int) -> DpEvent:
        """Return what the accountant has to account for after this many steps."""
        return poisson_event(noise_multiplier, self.sampling_prob, steps)

    def describe(self) -> str:
        """Say in a few words how examples are chosen.

        >>> PoissonSampler(1.0).describe()
        'all examples in every step'
        """
        return poisson_in_words(self.sampling_prob)

    def expected_batch(self, examples: int) -> float:
        """Return the mean number of examples in a step: what a noisy sum is divided by."""
        return self.sampling_prob * examples


@dataclass(frozen=True)
class FixedSizeSampler:
    """Every step takes a uniformly random subset of fixed size, without replacement.

    Guarantees:
        All subsets are equally likely to within ``examples`` · 2^-64 in total variation: the subset
        is where the smallest 64-bit keys are, and only a tie at its edge could prefer one subset to
        another.

    Args:
        batch_size: examples in each step.
        examples: examples in the data set; public under the replace-one relation.

    Raises:
        DpvdError: if a size is not a positive whole number, or the batch is larger than the data
            set.

    >>> from dpvd.mechanisms import SystemBits
    >>> FixedSizeSampler(3, 10).draw(10, SystemBits()).numel()
    3
    """

    batch_size: int
    examples: int

    def __post_init__(self) -> None:
        positive_int(batch_size=self.batch_size, examples=self.examples)
        if self.batch_size > self.examples:
            raise DpvdError(
                f"batch_size must be at most the number of examples ({self.examples}), got"
                f" {self.batch_size}"
            )

    def draw(self, examples: int, bits: BitSource) -> Tensor:
        """Return the sorted indices of one step's examples, int64.

        Raises:
            DpvdError: if ``examples`` is not the size this sampler, and with it the account, was
                made for.
        """
        if examples != self.examples:
            raise DpvdError(
                f"this sampler is accounted for {self.examples} examples, but the data has"
                f" {examples}: make a FixedSizeSampler with examples={examples}"
            )
        keys = random_words(examples, bits)
        smallest = np.argpartition(keys, self.batch_size - 1)[: self.batch_size]
        return torch.from_numpy(np.sort(smallest))

    def draw_part(self, examples: int, part: range, bits: BitSource) -> Tensor:
        """Return those indices of one step's examples that lie in ``part``, sorted.

        Whether one example is drawn depends on the others, so parts that are drawn by several
        processes are one draw only if all of these have the same bits.
        """
        drawn = self.draw(examples, bits)
        return drawn[(drawn >= part.start) & (drawn < part.stop)]

    def bytes_per_draw(self, examples: int) -> int:
        """Return how many random bytes a draw takes."""
        return 8 * examples

    def event(self, noise_multiplier: float, steps: int) -> DpEvent:
        """Return what the accountant has to account for after this many steps."""
        return fixed_size_event(noise_multiplier, self.batch_size, self.examples, steps)

    def describe(self) -> str:
        """Say in a few words how examples are chosen.

        >>> FixedSizeSampler(64, 1437).describe()
        'fixed-size sampling of 64 of 1437 without replacement'
        """
        return fixed_size_in_words(self.batch_size, self.examples)

    def expected_batch(self, examples: int) -> float:
        """Return the number of examples in a step: what a noisy sum is divided by."""
        if examples != self.examples:
            raise DpvdError(f"this sampler is for {self.examples} examples, got {examples}")
        return float(self.batch_size)


def _words_of_part(examples: int, part: range, bits: BitSource) -> npt.NDArray[np.uint64]:
    """One random word for each example of a part; a seeded stream then stands after all of them."""
    if not isinstance(bits, SeededBits):
        return random_words(len(part), bits)
    begin = bits.position
    bits.position = begin + WORD_BYTES * part.start
    words = random_words(len(part), bits)
    bits.position = begin + WORD_BYTES * examples
    return words


@dataclass(frozen=True, eq=False)
class Partition:
    """Which part of the data each example belongs to: a secret, as every draw is.

    Guarantees:
        Each example is put into a part by bits of its own, so that adding or removing one moves no
        other. All parts are equally likely to within ``bands`` · 2^-64. Parts are of random size.

    Attributes:
        bands: number of parts.
        parts: for each example the number of its part, from 0; uint8.
    """

    bands: int
    parts: npt.NDArray[np.uint8] = field(repr=False)

    @classmethod
    def drawn(cls, examples: int, bands: int, bits: BitSource) -> "Partition":
        """Put each example into a random part.

        Raises:
            DpvdError: if a number is not positive, or there are too many parts.
        """
        positive_int(examples=examples, bands=bands)
        if bands > _MOST_PARTS:
            raise DpvdError(f"bands must be at most {_MOST_PARTS}, got {bands}")
        words = random_words(examples, bits)
        return cls(bands, (words % np.uint64(bands)).astype(np.uint8))


@dataclass(frozen=True)
class CyclicSampler:
    """Step t takes a Poisson sample of part t mod b of the data, which were divided at random.

    An example that takes part in a step is in none of the b - 1 steps after it: what noise that is
    correlated over b steps needs.

    Guarantees:
        Within its part every example is drawn independently with the same probability, as by
        `PoissonSampler`.

    Args:
        sampling_prob: probability of each example of the part, above 0 and at most 1.
        bands: number b of parts.

    Raises:
        DpvdError: if a number is out of range.

    >>> from dpvd.mechanisms import SystemBits
    >>> parts = Partition(2, np.array([0, 1, 1, 0], np.uint8))
    >>> CyclicSampler(1.0, 2).draw(parts, step=5, bits=SystemBits())
    tensor([1, 2])
    """

    sampling_prob: float
    bands: int

    def __post_init__(self) -> None:
        PoissonSampler(self.sampling_prob)  # refuses what is no probability
        positive_int(bands=self.bands)

    def draw(self, partition: Partition, step: int, bits: BitSource) -> Tensor:
        """Return the sorted indices of one step's examples, int64.

        Raises:
            DpvdError: if the partition has another number of parts.
        """
        if partition.bands != self.bands:
            raise DpvdError(
                f"this sampler is accounted for {self.bands} parts of the data, got"
                f" {partition.bands}"
            )
        drawn = PoissonSampler(self.sampling_prob).draw(len(partition.parts), bits)
        in_turn = torch.from_numpy(partition.parts)[drawn] == step % self.bands
        return drawn[in_turn]

    def bytes_per_draw(self, examples: int) -> int:
        """Return how many random bytes a draw takes."""
        return PoissonSampler(self.sampling_prob).bytes_per_draw(examples)

    def event(self, noise_multiplier: float, steps: int) -> DpEvent:
        """Return what the accountant has to account for after this many steps."""
        return cyclic_event(noise_multiplier, self.sampling_prob, self.bands, steps)

    def describe(self) -> str:
        """Say in a few words how examples are chosen."""
        return cyclic_in_words(self.sampling_prob, self.bands)

    def expected_batch(self, examples: int) -> float:
        """Return the mean number of examples in a step: what a noisy sum is divided by."""
        return self.sampling_prob * examples / self.bands


Sampler = PoissonSampler | FixedSizeSampler
"""The samplers with a proven bound. Another one needs the theorem first.

`CyclicSampler`, whose draws depend on the step, has one for noise that is correlated, and not
without.
"""
