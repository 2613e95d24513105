"""Turns, medians and ratios."""

import time

import pytest
from benchmarks.timing import Clock, Spread, interleaved, ratios, turns


def test_systems_take_turns_and_another_one_begins_each_round() -> None:
    order: list[str] = []

    def step(name: str) -> None:
        order.append(name)
        time.sleep(0.03)

    systems = {name: turns(lambda name=name: step(name)) for name in ("a", "b")}
    times = interleaved(systems, rounds=3, seconds=60)
    assert [len(values) for values in times.values()] == [3, 3]
    assert order[-6:] == ["a", "b", "b", "a", "a", "b"]


def test_rounds_end_with_the_seconds_but_there_are_three() -> None:
    times = interleaved({"only": turns(lambda: time.sleep(0.02))}, rounds=1000, seconds=0.0)
    assert len(times["only"]) == 3


def test_ratios_are_taken_within_a_round() -> None:
    """A machine that halves its speed in the middle changes no ratio."""
    found = ratios({"plain": [1.0, 2.0, 4.0], "private": [1.5, 3.0, 6.0]}, "plain")
    assert found == {"plain": Spread(1.0, 1.0, 1.0), "private": Spread(1.5, 1.5, 1.5)}


@pytest.mark.parametrize(("clock", "counted"), [(Clock.WALL, True), (Clock.CPU, False)])
def test_processor_time_does_not_count_waiting(clock: Clock, counted: bool) -> None:
    assert (turns(lambda: time.sleep(0.03), clock)(2) > 25) is counted
