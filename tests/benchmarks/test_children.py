"""Measurements in processes of their own, and the reasons of those that fail."""

import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.child import measure
from benchmarks.children import NoResult, StepServer, child
from benchmarks.environments import PEERS, Peer, interpreter
from benchmarks.growth import Growth
from benchmarks.timing import Clock

from benchmarks import environments, run

TINY = "16-8-10@4"
BRIEFLY = run.Settings(rounds=6, seconds=0.2, peaks=1, profiled=2, runs=2, clock=Clock.CPU)


class ServerHere:
    """Takes steps without a process of its own: loading torch takes longer than the rest."""

    def __init__(self, *arguments: object, python: Path | None = None) -> None:
        assert python in (None, Path(sys.executable))
        self.take = measure(["serve", *map(str, arguments)])

    def wait_until_ready(self) -> None: ...

    def __call__(self, repeats: int) -> float:
        return self.take(repeats)

    def end(self) -> None: ...


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def here(*arguments: object, python: Path | None = None) -> Any:
        assert python in (None, Path(sys.executable))
        return measure([str(argument) for argument in arguments])

    monkeypatch.setattr(run, "child", here)
    monkeypatch.setattr(run, "StepServer", ServerHere)


@pytest.mark.usefixtures("in_this_process")
def test_a_workload_is_measured_for_every_system() -> None:
    found = run.ours(TINY, BRIEFLY)
    assert (found["batch"], found["parameters"]) == (4, 17 * 8 + 9 * 10)
    assert found["rounds"] >= 2 * 3  # of two runs
    assert {"plain", "by-hand", "dpsgd", "dpvd", "sparse", "sparse-private"} == set(
        found["systems"]
    )
    for entry in found["systems"].values():
        assert entry["ms"] > 0
        assert entry["ratio_quartiles"][0] <= entry["ratio"] <= entry["ratio_quartiles"][1]
        assert entry["peak_mb"] < 100
    assert set(found["shares"]) == {"dpsgd", "dpvd", "sparse-private"}


@pytest.mark.usefixtures("in_this_process")
def test_a_library_in_our_own_environment_is_measured_like_any_other() -> None:
    (library,) = (peer for peer in PEERS if peer.name == "torch-func")
    found = run.peers(TINY, BRIEFLY, (library,))
    assert found["torch-func"]["ratio"] > 0


@pytest.mark.usefixtures("in_this_process")
def test_growth_has_a_ratio_for_every_size() -> None:
    found = run.growth(Growth("batch", "16-8-10", (2, 4), lambda n: f"16-8-10@{n}"), BRIEFLY)
    assert found["at"] == [2, 4]
    assert [len(ratios) for ratios in found["ratios"].values()] == [2, 2]


def test_a_library_that_does_not_install_is_reported_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "HOME", tmp_path)
    nowhere = Peer("nowhere", ("nowhere",), (f"nowhere @ file://{tmp_path}/nowhere.whl",))
    with pytest.raises(NoResult, match="nowhere does not install: ERROR"):
        interpreter(nowhere)


def test_a_child_that_fails_says_why() -> None:
    with pytest.raises(NoResult, match="ValueError: no workload 'nonsense'"):
        child("peak", "nonsense", "plain")


def test_systems_are_timed_in_processes_of_their_own_and_none_is_left() -> None:
    found = run.growth(Growth("batch", "", (4,), lambda n: TINY), replace(BRIEFLY, runs=1))
    assert found["ms"][0] > 0
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_a_child_that_is_killed_too_slow_or_tired_says_so(tmp_path: Path) -> None:
    def script(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    with pytest.raises(NoResult, match="ended by SIGKILL"):
        child(python=script("killed", "kill -9 $$"))
    with pytest.raises(NoResult, match=r"longer than 0\.2 s"):
        child(python=script("slow", "exec sleep 5"), timeout=0.2)
    answers = "echo hello\necho answer: ready\nread line\necho ValueError: tired >&2\nexit 1"
    server = StepServer(python=script("tired", answers))
    server.wait_until_ready()
    with pytest.raises(NoResult, match="ValueError: tired"):
        server(1)
    server.end()
