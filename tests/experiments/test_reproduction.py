"""Running what is missing, and nothing twice."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dpvd.errors import DpvdError
from dpvd.experiments import (
    PROTOCOLS,
    Experiment,
    ExperimentResult,
    Folder,
    ResultStore,
    Status,
    reproduce,
    run_spec,
)
from dpvd.experiments.reproduction import _seed_by_seed
from dpvd.experiments.workers import run_all
from tests.experiments.small import TINY, digits, spec

KILLED = -9
BEGIN = (
    "from pathlib import Path; from dpvd.experiments import PROTOCOLS, Experiment, Folder,"
    " reproduce; from tests.experiments.small import TINY; PROTOCOLS['tiny'] = TINY;"
    " reproduce(Experiment.FIG2, [TINY], Folder(Path({folder!r})))"
)


@pytest.fixture(autouse=True)
def _tiny_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROTOCOLS, TINY.name, TINY)


def state(folder: Path) -> dict[Path, tuple[bytes, int]]:
    """Every finished file, with its contents and when it was written."""
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*.json*")
        if path.suffix != ".partial"
    }


def results(folder: Folder) -> dict[str, ExperimentResult]:
    """All that ran, with the seconds it took: a run that is repeated would take others."""
    return {
        result.hash: result
        for store in (folder.trials, folder.records)
        for result in store.read_all()
    }


def test_a_second_start_runs_nothing(tmp_path) -> None:
    seen: list[Status] = []
    folder = Folder(tmp_path)
    run = reproduce(Experiment.FIG4, [TINY], folder, on_progress=seen.append)
    assert (
        run == 3 * 2 + 3 * 2 * 2
    )  # trials of three cells; two variants and two seeds of three methods
    assert (seen[0].runs, seen[-1].runs, seen[-1].of) == (0, run, run)
    assert seen[-1].done == pytest.approx(seen[-1].total)
    before = state(tmp_path)
    assert reproduce(Experiment.FIG4, [TINY], folder) == 0
    assert state(tmp_path) == before
    tuned = {t.cell: (t.learning_rate, t.gamma) for t in folder.tuning.read_all()}
    assert len(tuned) == 3
    assert len(folder.records_of([TINY])) == 12


def test_a_search_that_goes_on_is_counted(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From one point the search has to try its neighbours at least."""
    searching = replace(TINY, rates=(0.1,), gammas=(0.5,), search_on=True, seeds=1)
    monkeypatch.setitem(PROTOCOLS, TINY.name, searching)
    seen: list[Status] = []
    folder = Folder(tmp_path)
    run = reproduce(Experiment.FIG4, [searching], folder, on_progress=seen.append)
    tried = [len(tuning.trials) for tuning in folder.tuning.read_all()]
    assert min(tried) >= 5
    assert run == sum(tried) + 3 * 2  # two variants of three methods
    assert (seen[-1].runs, seen[-1].of) == (run, run)
    assert seen[-1].done == pytest.approx(seen[-1].total)


def test_killed_at_any_moment_it_goes_on_where_it_was(tmp_path) -> None:
    root = Path(__file__).parents[2]
    child = subprocess.Popen([sys.executable, "-c", BEGIN.format(folder=str(tmp_path))], cwd=root)
    deadline = time.monotonic() + 600
    while len(state(tmp_path)) < 5 and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    child.kill()
    assert child.wait() == KILLED
    folder = Folder(tmp_path)
    finished = results(folder)
    assert len(finished) >= 5
    assert reproduce(Experiment.FIG2, [TINY], folder) == 7 * 2 + 7 * 2 * 2 - len(finished)
    after = results(folder)
    assert {name: after[name] for name in finished} == finished


def test_the_first_seed_of_everything_comes_before_the_second(tmp_path) -> None:
    store = ResultStore(tmp_path)
    jobs = [(spec(hidden=hidden, seed=seed), store) for hidden in (4, 2) for seed in (1, 0)]
    ordered = [(each.seed, each.hidden) for each, _ in _seed_by_seed(jobs)]
    assert ordered == [(0, 4), (0, 2), (1, 4), (1, 2)]


def test_workers_write_the_records_that_one_process_would(tmp_path) -> None:
    specs = [spec(seed=seed) for seed in (0, 1)]
    store = ResultStore(tmp_path)
    assert {done.seed for done in run_all([(each, store) for each in specs], 2, None)} == {0, 1}
    for each in specs:
        assert store.read(each).curve == run_spec(each, digits()).curve


def test_an_error_in_a_worker_ends_the_others_soon(tmp_path) -> None:
    store = ResultStore(tmp_path)
    bad, long = spec(batch_size=5000), spec(epochs=100_000.0)
    started = time.monotonic()
    with pytest.raises(DpvdError, match="batch"):
        list(run_all([(bad, store), (long, store)], 2, None))
    assert time.monotonic() - started < 300
    assert not store.read_all()


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(DpvdError, match="choose another --out"):
        list(run_all([(spec(), ResultStore(blocked))], 1, None))
    assert os.listdir(tmp_path) == ["file"]
