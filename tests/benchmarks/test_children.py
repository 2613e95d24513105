"""Measurements in processes of their own, and the reasons of those that fail."""

import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.child import measure
from benchmarks.children import NoResult, Taking, child
from benchmarks.environments import PEERS, Peer, interpreter
from benchmarks.growth import Growth
from benchmarks.timing import Clock

from benchmarks import children, environments, run

TINY = "16-8-10@4"
BRIEFLY = run.Settings(rounds=6, seconds=0.2, peaks=1, profiled=2, runs=2, clock=Clock.CPU)


class TakingHere:
    """Takes turns without a process of its own."""

    def __init__(self, *arguments: object, python: Path | None = None) -> None:
        assert python in (None, Path(sys.executable))
        self.take = measure(["turns", *map(str, arguments)])

    def wait_until_ready(self) -> None: ...

    def __call__(self, repeats: int) -> float:
        return self.take(repeats)

    def end(self) -> None: ...


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure here instead of in a process for each figure: loading torch takes longer than the
    rest.
    """

    def here(*arguments: object, python: Path | None = None) -> Any:
        assert python in (None, Path(sys.executable))
        return measure([str(argument) for argument in arguments])

    monkeypatch.setattr(run, "child", here)
    monkeypatch.setattr(run, "Taking", TakingHere)


@pytest.mark.usefixtures("in_this_process")
def test_a_run_of_a_workload_has_all_figures() -> None:
    found = run.ours(TINY, BRIEFLY)
    assert found["batch"] == 4
    assert found["parameters"] == 17 * 8 + 9 * 10
    assert found["variational"] == "converted to AdditiveLinear: 0, 2; left as they are: none"
    assert set(found["systems"]) == {
        "plain",
        "by-hand",
        "dpsgd",
        "dpvd",
        "sparse",
        "sparse-private",
    }
    assert found["rounds"] >= 2 * 3  # of two runs
    assert found["systems"]["plain"]["ratio"] == 1
    assert found["systems"]["sparse"]["ratio_to"] == {"sparse": 1}
    for entry in found["systems"].values():
        assert entry["ms"] > 0
        assert entry["ratio_quartiles"][0] <= entry["ratio"] <= entry["ratio_quartiles"][1]
        assert 0 <= entry["peak_mb"] < 100
    assert set(found["shares"]) == {"dpsgd", "dpvd", "sparse-private"}


@pytest.mark.usefixtures("in_this_process")
def test_a_library_in_our_own_environment_is_measured_like_any_other() -> None:
    (library,) = (peer for peer in PEERS if peer.name == "torch-func")
    found = run.peers(TINY, BRIEFLY, (library,))
    assert set(found) == {"torch-func"}
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
    assert "does not install" in run.peers(TINY, BRIEFLY, (nowhere,))["nowhere"]["failed"]


def test_a_child_that_fails_says_why() -> None:
    with pytest.raises(NoResult, match="ValueError: no workload 'nonsense'"):
        child("peak", "nonsense", "plain")


def test_systems_take_turns_in_processes_of_their_own() -> None:
    times = run._times(replace(BRIEFLY, runs=1), TINY, "plain", "dpsgd")
    assert [len(ms) >= 3 and min(ms) > 0 for ms in times.values()] == [True, True]


def test_a_system_that_cannot_take_turns_says_why_and_leaves_nothing_behind(tmp_path: Path) -> None:
    printing = tmp_path / "printing"
    printing.write_text(
        "#!/bin/sh\necho hello\necho answer: ready\nread line\necho ValueError: tired >&2\nexit 1\n"
    )
    printing.chmod(0o755)
    taking = Taking(python=printing)
    taking.wait_until_ready()
    with pytest.raises(NoResult, match="ValueError: tired"):
        taking(1)
    taking.end()
    with pytest.raises(NoResult, match="KeyError: 'nobody'"):
        run._times(BRIEFLY, TINY, "plain", "nobody")
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_a_child_that_is_killed_or_too_slow_says_so(tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    killed.write_text("#!/bin/sh\nkill -9 $$\n")
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 5\n")
    for script in (killed, slow):
        script.chmod(0o755)
    with pytest.raises(NoResult, match="ended by SIGKILL"):
        child(python=killed)
    with pytest.raises(NoResult, match=r"longer than 0\.2 s"):
        child(python=slow, timeout=0.2)


def test_long_reasons_are_cut() -> None:
    reason = children._reason(
        1, "Traceback:\n  File ...\nRuntimeError: " + "x" * 500 + "\nsome warning\n"
    )
    assert reason.startswith("RuntimeError: xxx")
    assert len(reason) == children.LONGEST_REASON


def test_our_own_interpreter_serves_libraries_without_requirements() -> None:
    assert interpreter(Peer("torch-func", ())) == Path(sys.executable)
