"""Limits are met or not, and what is over its limit is found."""

from pathlib import Path

import pytest
from benchmarks.results import load, save

from benchmarks import check
from tests.benchmarks.made_up import good_results


@pytest.mark.parametrize(
    ("workload", "system", "limit"),
    [("mnist-mlp", "dpsgd", 1.10), ("digits-mlp", "dpvd", 1.3), ("lstm", "dpvd", 1.2)],
)
def test_a_step_above_its_limit_is_found_and_one_at_it_is_not(
    workload: str, system: str, limit: float
) -> None:
    results = good_results()
    results["workloads"][workload]["systems"][system]["ratio"] = limit
    assert all(verdict.met for verdict in check.judge(results))
    results["workloads"][workload]["systems"][system]["ratio"] = limit + 0.001
    (over,) = [verdict for verdict in check.judge(results) if not verdict.met]
    assert (over.workload, over.system, over.quantity) == (workload, system, "time")
    assert over.limit == limit


def test_sparse_private_is_compared_with_sparse_in_time_and_memory() -> None:
    results = good_results()
    systems = results["workloads"]["cnn"]["systems"]
    systems["sparse-private"] |= {"ratio": 9.0, "ratio_to": {"sparse": 1.2}, "peak_mb": 24.1}
    systems["sparse"]["peak_mb"] = 20.0
    over = [verdict for verdict in check.judge(results) if not verdict.met]
    assert [(v.quantity, v.baseline) for v in over] == [("time", "sparse"), ("memory", "sparse")]


def test_what_was_not_measured_is_over_its_limit() -> None:
    results = good_results()
    del results["workloads"]["lstm"]
    results["workloads"]["cnn"]["systems"]["dpvd"] = {"failed": "no reason"}
    over = [verdict for verdict in check.judge(results) if not verdict.met]
    assert {verdict.workload for verdict in over} == {"lstm", "cnn"}


def test_a_quick_run_is_judged_by_its_times() -> None:
    results = good_results()
    for work in results["workloads"].values():
        for system in work["systems"].values():
            system.pop("peak_mb", None)
    assert {verdict.quantity for verdict in check.judge(results)} == {"time"}


def test_the_command_prints_what_is_over_its_limit_and_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = good_results()
    save(tmp_path / "good.json", results)
    assert check.main([str(tmp_path / "good.json")]) == 0
    assert "36 of 36 limits met" in capsys.readouterr().out
    results["workloads"]["mnist-mlp"]["systems"]["dpsgd"]["peak_mb"] = 12.5
    save(tmp_path / "bad.json", results)
    assert check.main([str(tmp_path / "bad.json")]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "OVER LIMIT" in line]
    assert line.split()[:2] == ["mnist-mlp", "dpsgd"]
    assert "1.250" in line


def test_measurements_are_rounded_on_disk_and_whole_numbers_are_not(tmp_path: Path) -> None:
    save(tmp_path / "some.json", {"a": [1.23456789], "b": {"n": 123456789}})
    assert load(tmp_path / "some.json") == {"a": [1.235], "b": {"n": 123456789}}
