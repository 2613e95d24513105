"""Steps that take turns on the clock: ratios that survive a machine whose speed changes."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from benchmarks.workloads import Step

__all__ = ["Clock", "Spread", "Turn", "interleaved", "ratios", "spread", "turns"]

Turn = Callable[[int], float]
"""Takes so many steps and returns the milliseconds that one of them took."""

WARM_UP = 3  # steps: the first chooses engines and allocates, the next fill caches
FEWEST_ROUNDS = 3
SHORT_TURN_MS = 20.0
LONG_TURN_MS = 500.0
LEAST_MS = 1e-3


class Clock(StrEnum):
    """What is measured."""

    WALL = "wall"
    """Elapsed time: what users wait. Needs a machine with nothing else to do."""
    CPU = "cpu"
    """Processor time of all threads: for a busy machine, with one thread."""

    @property
    def read(self) -> Callable[[], float]:
        if self is Clock.WALL:
            return time.perf_counter
        return time.process_time


@dataclass(frozen=True)
class Spread:
    """A median and the quartiles around it."""

    median: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles of at least one value.

    >>> spread([4.0, 1.0, 2.0, 3.0, 5.0])
    Spread(median=3.0, low=2.0, high=4.0)
    """
    if len(values) == 1:
        (only,) = values
        return Spread(only, only, only)
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


def ratios(times: Mapping[str, Sequence[float]], baseline: str) -> dict[str, Spread]:
    """Median and quartiles of every system's time over the baseline's *in the same round*."""
    found = {}
    for name, values in times.items():
        in_rounds = []
        for own, base in zip(values, times[baseline], strict=True):
            in_rounds.append(own / base)
        found[name] = spread(in_rounds)
    return found


def turns(step: Step, clock: Clock = Clock.WALL) -> Turn:
    """Take this step, after some that warm it up, in turns on the clock."""
    for _ in range(WARM_UP):
        step()

    def take(repeats: int) -> float:
        started = clock.read()
        for _ in range(repeats):
            step()
        return 1000 * (clock.read() - started) / repeats

    return take


def interleaved(
    systems: Mapping[str, Turn], *, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Milliseconds per step of each system, one value for each round.

    In a round every system has one turn, beginning with another one in every round. A turn is one
    step, or several where steps are short, so that caches are as warm as in training: the number
    with which the fastest system fills 20 ms, the same for all but those that would need more than
    half a second for it.

    Args:
        systems: how each takes its turn.
        rounds: how many rounds at most.
        seconds: no round begins after this much time, but three are made in any case.
    """
    names = list(systems)
    repeats = _repeats({name: turn(1) for name, turn in systems.items()})
    times: dict[str, list[float]] = {name: [] for name in names}
    end = time.monotonic() + seconds
    for place in range(max(rounds, FEWEST_ROUNDS)):
        if place >= FEWEST_ROUNDS and time.monotonic() > end:
            break
        first = place % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(systems[name](repeats[name]))
    return times


def _repeats(alone: Mapping[str, float]) -> dict[str, int]:
    """How many steps each system takes in a turn, from the milliseconds of one of them."""
    fastest = max(min(alone.values()), LEAST_MS)
    common = math.ceil(SHORT_TURN_MS / fastest)
    repeats = {}
    for name, ms in alone.items():
        most = int(LONG_TURN_MS / max(ms, LEAST_MS))
        repeats[name] = max(1, min(common, most))
    return repeats
