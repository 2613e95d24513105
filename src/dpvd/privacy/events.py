"""What happened to the data, in the vocabulary of dp-accounting, and its normal form.

An event is a tree (compositions of sampled mechanisms). Accountants need less: which kinds of step
were taken, and how often. :func:`leaves` is the one place where the tree is walked, and where
counts are multiplied.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import dp_accounting
from dp_accounting import DpEvent

from dpvd.errors import DpvdError, non_negative, positive_int
from dpvd.privacy.enums import SamplingKind

__all__ = [
    "CyclicSampledDpEvent",
    "Step",
    "count_steps",
    "cyclic_event",
    "fixed_size_event",
    "is_cyclic",
    "leaves",
    "poisson_event",
    "step_of",
]


@dataclass(frozen=True)
class Step:
    """One use of the Gaussian mechanism on a sample of the data.

    ``noise_multiplier`` is the standard deviation of the noise divided by the L2 sensitivity under
    the relation in force; zero stands for a release without noise. ``sampling`` is None where every
    example takes part in every step.
    """

    noise_multiplier: float
    sampling: SamplingKind | None = None
    sampling_prob: float = 1.0


class CyclicSampledDpEvent(dp_accounting.PoissonSampledDpEvent):  # type: ignore[misc]
    """A cycle of steps with correlated noise, which costs one example what a Poisson sample costs.

    It is that for one example only: two of them are in different steps of a cycle.
    """


def poisson_event(noise_multiplier: float, sampling_prob: float, steps: int) -> DpEvent:
    """Describe ``steps`` Gaussian releases, each on a fresh Poisson sample.

    Edge cases: ``sampling_prob`` 1 is the plain Gaussian mechanism; 0 steps is no event at all;
    noise multiplier 0 is legal and costs an infinite epsilon.

    Args:
        noise_multiplier: noise standard deviation over L2 sensitivity, at least 0.
        sampling_prob: chance of each example to be in a batch, in (0, 1].
        steps: how many releases, at least 0.

    Raises:
        DpvdError: if an argument is out of range.

    >>> poisson_event(2.0, 1.0, 3)
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=3)
    """
    non_negative(noise_multiplier=noise_multiplier)
    if not 0 < sampling_prob <= 1:
        raise DpvdError(f"sampling_prob must be above 0 and at most 1, got {sampling_prob!r}")
    step: DpEvent = dp_accounting.GaussianDpEvent(float(noise_multiplier))
    if sampling_prob < 1:
        step = dp_accounting.PoissonSampledDpEvent(float(sampling_prob), step)
    return _repeat(step, steps)


def fixed_size_event(
    noise_multiplier: float, batch_size: int, examples: int, steps: int
) -> DpEvent:
    """Describe ``steps`` Gaussian releases, each on a fresh subset of ``batch_size`` examples.

    Edge cases: 0 steps is no event at all; a batch of all examples is kept as a sample, because
    under add-or-remove it would not be the same mechanism on the neighbouring data set.

    Args:
        noise_multiplier: noise standard deviation over L2 sensitivity, at least 0.
        batch_size: examples per subset.
        examples: size of the data set, public.
        steps: how many releases, at least 0.

    Raises:
        DpvdError: if an argument is out of range.

    >>> fixed_size_event(2.0, 1, 10, 3).event.sample_size
    1
    """
    non_negative(noise_multiplier=noise_multiplier)
    positive_int(batch_size=batch_size, examples=examples)
    if batch_size > examples:
        raise DpvdError(
            f"batch_size must be at most the number of examples ({examples}), got {batch_size}"
        )
    gaussian = dp_accounting.GaussianDpEvent(float(noise_multiplier))
    step = dp_accounting.SampledWithoutReplacementDpEvent(examples, batch_size, gaussian)
    return _repeat(step, steps)


def cyclic_event(noise_multiplier: float, sampling_prob: float, bands: int, steps: int) -> DpEvent:
    """Describe steps on one of ``bands`` parts of the data after the other, with banded noise.

    Each example belongs to one part, drawn at random. A step releases the sum over a Poisson sample
    of its part, with noise C⁻¹ Z; C has ``bands`` bands and columns of norm at most 1, Z is
    independent noise. What ``steps`` of them release of one example is what ⌈steps / bands⌉ steps
    with independent noise release, each on a Poisson sample of all the data.

    Edge cases: a part of a cycle counts as a whole one; ``sampling_prob`` 1 takes the whole part.

    Args:
        noise_multiplier: standard deviation of Z over L2 sensitivity, at least 0.
        sampling_prob: chance of each example of the part to be in a batch, in (0, 1].
        bands: how many parts and bands, at least 1.
        steps: how many releases, at least 0.

    Raises:
        DpvdError: if an argument is out of range.

    References: Choquette-Choo et al. (2023), arXiv 2306.08153, on amplification for banded
    matrices; docs/correlated-noise.md has the argument for parts drawn at random.

    >>> cyclic_event(2.0, 0.5, bands=4, steps=9).count
    3
    """
    positive_int(bands=bands)
    poisson_event(noise_multiplier, sampling_prob, steps)  # refuses what is out of range
    gaussian = dp_accounting.GaussianDpEvent(float(noise_multiplier))
    cycle = CyclicSampledDpEvent(float(sampling_prob), gaussian)
    return _repeat(cycle, -(-steps // bands))


def is_cyclic(event: DpEvent) -> bool:
    """Return whether some of the steps had correlated noise."""
    if isinstance(event, dp_accounting.ComposedDpEvent):
        return any(is_cyclic(part) for part in event.events)
    if isinstance(event, dp_accounting.SelfComposedDpEvent):
        return is_cyclic(event.event)
    return isinstance(event, CyclicSampledDpEvent)


def _repeat(step: DpEvent, steps: int) -> DpEvent:
    is_integer = isinstance(steps, int) and not isinstance(steps, bool)
    if not is_integer or steps < 0:
        raise DpvdError(f"steps must be a whole number of at least 0, got {steps!r}")
    if steps == 0:
        return dp_accounting.NoOpDpEvent()
    return dp_accounting.SelfComposedDpEvent(step, steps)


def count_steps(event: DpEvent, times: int = 1) -> Counter[Step]:
    """Return how often each kind of step occurs in ``event``.

    Guarantees: the multiplicity of a step is the product of the counts on the path to it, summed
    over paths. Events that are not (sampled) Gaussian mechanisms or compositions of them raise.

    Args:
        event: any tree of dp-accounting events.
        times: how often the whole event happens.

    Raises:
        DpvdError: naming the part that has no account here.

    >>> count_steps(poisson_event(2.0, 1.0, 5), times=2)
    Counter({Step(noise_multiplier=2.0, sampling=None, sampling_prob=1.0): 10})
    """
    total: Counter[Step] = Counter()
    for leaf, count in leaves(event, times):
        total[step_of(leaf)] += count
    return +total


def leaves(event: DpEvent, times: int = 1) -> Iterator[tuple[DpEvent, int]]:
    """Yield the parts of an event that are no compositions, and how often each happens."""
    if isinstance(event, dp_accounting.ComposedDpEvent):
        for part in event.events:
            yield from leaves(part, times)
    elif isinstance(event, dp_accounting.SelfComposedDpEvent):
        yield from leaves(event.event, times * event.count)
    elif not isinstance(event, dp_accounting.NoOpDpEvent):
        yield event, times


def step_of(event: DpEvent) -> Step:
    """Return the step that a leaf event describes.

    Raises:
        DpvdError: if no accountant here knows it.
    """
    if isinstance(event, dp_accounting.NonPrivateDpEvent):
        return Step(0.0)
    if isinstance(event, dp_accounting.GaussianDpEvent):
        return Step(event.noise_multiplier)
    inner = getattr(event, "event", None)
    if isinstance(inner, dp_accounting.GaussianDpEvent):
        if isinstance(event, dp_accounting.PoissonSampledDpEvent):
            sampling = SamplingKind.POISSON if event.sampling_probability < 1 else None
            return Step(inner.noise_multiplier, sampling, event.sampling_probability)
        if isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent):
            share = event.sample_size / event.source_dataset_size
            return Step(inner.noise_multiplier, SamplingKind.FIXED_SIZE, share)
    raise DpvdError(
        f"no accountant here knows the event {event!r}; allowed are the Gaussian mechanism, alone"
        " or on a Poisson or fixed-size sample, and compositions of these"
    )
