"""Turns, medians and ratios."""

import time
from collections.abc import Callable

import pytest
from benchmarks.timing import Clock, Spread, interleaved, ratios, spread, turns

from benchmarks import timing


def test_every_system_has_one_turn_in_each_round_and_another_one_begins() -> None:
    order: list[str] = []

    def step(name: str, seconds: float) -> Callable[[], None]:
        def take() -> None:
            order.append(name)
            time.sleep(seconds)

        return take

    times = interleaved(
        {name: turns(step(name, 0.03)) for name in ("a", "b")}, rounds=3, seconds=60
    )
    assert [len(values) for values in times.values()] == [3, 3]
    assert order[-6:] == ["a", "b", "b", "a", "a", "b"]


def test_short_steps_take_several_in_a_turn_and_long_ones_fewer() -> None:
    """Ten steps of 2 ms fill a turn; ten of 200 ms would take two seconds, so that system takes
    two.
    """
    assert timing._repeats({"short": 2.0, "near": 3.0, "long": 200.0}) == {
        "short": 10,
        "near": 10,
        "long": 2,
    }
    assert timing._repeats({"long": 700.0, "longer": 9000.0}) == {"long": 1, "longer": 1}


def test_rounds_end_with_the_seconds_but_there_are_three() -> None:
    times = interleaved({"only": turns(lambda: time.sleep(0.02))}, rounds=1000, seconds=0.0)
    assert len(times["only"]) == 3


def test_ratios_are_taken_within_a_round() -> None:
    """A machine that halves its speed in the middle changes no ratio."""
    found = ratios({"plain": [1.0, 2.0, 4.0], "private": [1.5, 3.0, 6.0]}, "plain")
    assert found == {"plain": Spread(1.0, 1.0, 1.0), "private": Spread(1.5, 1.5, 1.5)}


def test_the_spread_of_one_value_is_that_value() -> None:
    assert spread([2.5]) == Spread(2.5, 2.5, 2.5)


@pytest.mark.parametrize(("clock", "counted"), [(Clock.WALL, True), (Clock.CPU, False)])
def test_processor_time_does_not_count_waiting(clock: Clock, counted: bool) -> None:
    assert (turns(lambda: time.sleep(0.03), clock)(2) > 25) is counted
