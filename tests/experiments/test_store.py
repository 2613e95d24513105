"""Results are kept: through crashes, in parallel, and as earlier versions left them."""

import json
import multiprocessing
import os
from pathlib import Path

import pytest

from dpvd.errors import DpvdError
from dpvd.experiments import ExperimentResult, ResultStore
from dpvd.experiments import store as store_module
from tests.experiments.small import made_up, spec


def filled(folder: Path, *accuracies: float) -> ResultStore:
    """A store with a pending result for each accuracy, under seeds from 0."""
    store = ResultStore(folder)
    for seed, accuracy in enumerate(accuracies):
        store.write(made_up(spec(seed=seed), accuracy))
    return store


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "tiny.jsonl").read_text().splitlines()]


def test_folding_moves_every_result_into_one_sorted_file(tmp_path: Path) -> None:
    store = filled(tmp_path, 0.5, 0.6)
    store.write(made_up(spec(method="Abadi et al.", seed=9), 0.7))
    before = store.read_all()
    assert store.fold() == 3
    assert [path.name for path in tmp_path.glob("*.jsonl")] == ["tiny.jsonl"]
    assert not list((tmp_path / "pending").glob("*.json"))
    assert [line["accuracy"] for line in lines(tmp_path)] == [0.7, 0.5, 0.6]
    assert store.read_all() == before
    assert store.missing([spec(seed=1), spec(seed=2)]) == [spec(seed=2)]


def test_folding_again_changes_nothing(tmp_path: Path) -> None:
    store = filled(tmp_path, 0.5)
    store.fold()
    before = (tmp_path / "tiny.jsonl").stat().st_mtime_ns
    assert store.fold() == 0
    assert (tmp_path / "tiny.jsonl").stat().st_mtime_ns == before


def test_results_are_added_to_those_that_are_there(tmp_path: Path) -> None:
    store = filled(tmp_path, 0.5)
    store.fold()
    store.write(made_up(spec(seed=3), 0.8))
    store.write(made_up(spec(protocol="other"), 0.9))
    store.fold()
    assert [line["accuracy"] for line in lines(tmp_path)] == [0.5, 0.8]
    assert len(store.read_all()) == 3


def test_a_crash_between_writing_and_removing_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path, 0.5, 0.6)

    unlink = Path.unlink

    def crash(self: Path, missing_ok: bool = False) -> None:
        if self.parent.name == "pending":
            raise KeyboardInterrupt
        unlink(self, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", crash)
        with pytest.raises(KeyboardInterrupt):
            store.fold()
    assert len(list((tmp_path / "pending").glob("*.json"))) == 2  # twice on disk, once for readers
    assert [result.accuracy for result in store.read_all()] == [0.5, 0.6]
    store.fold()
    assert [line["accuracy"] for line in lines(tmp_path)] == [0.5, 0.6]


def test_pending_results_stay_until_the_file_that_takes_them_in_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path, 0.5)

    def full(path: Path, content: bytes) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(store_module, "write_atomically", full)
    with pytest.raises(OSError, match="no space"):
        store.fold()
    assert [result.accuracy for result in store.read_all()] == [0.5]


def test_of_two_results_of_one_spec_the_folded_one_stays(tmp_path: Path) -> None:
    store = filled(tmp_path, 0.5)
    store.fold()
    store.write(made_up(spec(seed=0), 0.9))
    assert store.read(spec(seed=0)).accuracy == 0.5
    store.fold()
    assert [line["accuracy"] for line in lines(tmp_path)] == [0.5]


def test_files_of_earlier_versions_are_taken_over(tmp_path: Path) -> None:
    """They lay directly in the folder, keys sorted, curves with all their digits."""
    values = made_up(spec(), 0.5).to_dict() | {"accuracy": 1 / 3, "curve": [[0.1234567, 1 / 3]]}
    (tmp_path / f"{spec().hash}.json").write_text(json.dumps(values, sort_keys=True))
    store = ResultStore(tmp_path)
    assert store.missing([spec()]) == []
    store.fold()
    assert not list(tmp_path.glob("*.json"))
    (line,) = lines(tmp_path)
    assert (line["accuracy"], line["curve"]) == (0.333333, [[0.123, 0.333333]])


def test_a_damaged_line_is_refused_by_its_number(tmp_path: Path) -> None:
    store = filled(tmp_path, 0.5, 0.6)
    store.fold()
    path = tmp_path / "tiny.jsonl"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(DpvdError, match=r"line 2 of .*tiny\.jsonl"):
        store.read_all()


def test_without_a_result_the_way_to_one_is_told(tmp_path: Path) -> None:
    with pytest.raises(DpvdError, match="run its spec first"):
        ResultStore(tmp_path).read(spec())


def _write_and_fold(folder: Path, seeds: range) -> None:
    store = ResultStore(folder)
    for seed in seeds:
        store.write(made_up(spec(seed=seed), 0.5))
        store.fold()


@pytest.mark.skipif(os.name == "nt", reason="files are not locked on Windows")
def test_processes_that_fold_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    parts = [range(40), range(40, 80)]
    workers = [context.Process(target=_write_and_fold, args=(tmp_path, part)) for part in parts]
    for worker in workers:
        worker.start()
    seen = 0
    while any(worker.is_alive() for worker in workers):
        now = len(ResultStore(tmp_path).read_all())
        assert now >= seen, "a result was gone for a moment"
        seen = now
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert len(lines(tmp_path)) == 80


def test_a_line_holds_the_whole_result() -> None:
    result = made_up(spec(), 0.5)
    assert ExperimentResult.from_line(result.to_line()) == result
