"""The schedule of a run: how likely an example is to be drawn, and how many steps there are."""

import math

from dp_accounting import DpEvent

from dpvd.errors import DpvdError, positive, positive_int
from dpvd.privacy.enums import SamplingKind
from dpvd.privacy.events import fixed_size_event, poisson_event

__all__ = [
    "MOST_STEPS",
    "cyclic_in_words",
    "fixed_size_in_words",
    "poisson_in_words",
    "sampled_event",
    "sampling_in_words",
    "sampling_rate",
    "steps_in",
]

MOST_STEPS = 10**8
"""More steps are refused: nobody takes them, and accounts are tested up to here."""


def sampled_event(
    sampling: SamplingKind, noise_multiplier: float, *, batch_size: int, examples: int, steps: int
) -> DpEvent:
    """Describe ``steps`` Gaussian releases on batches of this (expected) size.

    A plan's sampler makes the same event; this one serves questions that need no torch.

    Raises:
        DpvdError: if a number is out of range.

    >>> composed = sampled_event(SamplingKind.POISSON, 2.0, batch_size=1, examples=4, steps=3)
    >>> composed.event.sampling_probability
    0.25
    """
    rate = sampling_rate(batch_size, examples)
    if sampling is SamplingKind.POISSON:
        return poisson_event(noise_multiplier, rate, steps)
    return fixed_size_event(noise_multiplier, batch_size, examples, steps)


def sampling_in_words(sampling: SamplingKind, *, batch_size: int, examples: int) -> str:
    """Say how examples are chosen, in the words of a plan's sampler and its statement."""
    if sampling is SamplingKind.POISSON:
        return poisson_in_words(sampling_rate(batch_size, examples))
    return fixed_size_in_words(batch_size, examples)


def poisson_in_words(sampling_prob: float) -> str:
    """Say that each example is drawn with this probability.

    >>> poisson_in_words(0.25)
    'Poisson sampling with probability 0.25'
    """
    if sampling_prob == 1:
        return "all examples in every step"
    return f"Poisson sampling with probability {sampling_prob:.6g}"


def cyclic_in_words(sampling_prob: float, bands: int) -> str:
    """Say that batches come from one part of the data after the other.

    >>> cyclic_in_words(0.25, 4)
    'Poisson sampling with probability 0.25 from one of 4 random parts of the data after the other'
    """
    how = "all" if sampling_prob == 1 else poisson_in_words(sampling_prob)
    return f"{how} from one of {bands} random parts of the data after the other"


def fixed_size_in_words(batch_size: int, examples: int) -> str:
    """Say that a subset of this size is drawn.

    >>> fixed_size_in_words(64, 1437)
    'fixed-size sampling of 64 of 1437 without replacement'
    """
    return f"fixed-size sampling of {batch_size} of {examples} without replacement"


def sampling_rate(batch_size: int, examples: int) -> float:
    """Return the probability with which an example takes part in a step, batch_size / examples.

    Raises:
        DpvdError: if one is not a whole number above 0, or the batch is larger than the data.

    >>> sampling_rate(600, 60_000)
    0.01
    """
    positive_int(examples=examples, batch_size=batch_size)
    if batch_size > examples:
        raise DpvdError(
            f"batch_size must be at most the number of examples, {examples}; got {batch_size}"
        )
    return batch_size / examples


def steps_in(epochs: float, *, batch_size: int, examples: int) -> int:
    """Return how many batches make so many passes over the data, rounded up.

    Raises:
        DpvdError: if a number is out of range, or there would be more than ``MOST_STEPS``.

    >>> steps_in(200, batch_size=600, examples=60_000)
    20000
    """
    positive(epochs=epochs)
    rate = sampling_rate(batch_size, examples)
    if epochs > MOST_STEPS * rate:
        raise DpvdError(
            f"{epochs:g} epochs of {examples:,} examples in batches of {batch_size:,} make more"
            f" than {MOST_STEPS:,} steps: take fewer epochs or larger batches"
        )
    batches = epochs * examples / batch_size
    return max(1, math.ceil(batches - 1e-9))  # a whole number stays one despite rounding
