"""The limits hold what they should, and what falls short is found."""

from pathlib import Path

import pytest
from benchmarks.results import load, save

from benchmarks import check
from tests.benchmarks.made_up import good_results


def test_the_table_of_limits_is_complete() -> None:
    """Two systems on five workloads against the plain step, and private sparse VD on five; time and
    memory.
    """
    verdicts = check.judge(good_results())
    assert len(verdicts) == 2 * (2 * 5 + 5)
    assert all(verdict.kept for verdict in verdicts)


@pytest.mark.parametrize(
    ("workload", "system", "limit"),
    [
        ("mnist-mlp", "dpsgd", 1.10),
        ("wide-mlp", "dpvd", 1.10),
        ("digits-mlp", "dpvd", 1.3),
        ("cnn", "dpsgd", 1.15),
        ("lstm", "dpvd", 1.2),
    ],
)
def test_a_step_above_its_limit_falls_short_and_one_at_it_does_not(
    workload: str, system: str, limit: float
) -> None:
    results = good_results()
    results["workloads"][workload]["systems"][system]["ratio"] = limit
    assert all(verdict.kept for verdict in check.judge(results))
    results["workloads"][workload]["systems"][system]["ratio"] = limit + 0.001
    (short,) = [verdict for verdict in check.judge(results) if not verdict.kept]
    assert (short.workload, short.system, short.quantity, short.limit) == (
        workload,
        system,
        "time",
        limit,
    )


def test_sparse_private_is_held_against_sparse_in_time_and_memory() -> None:
    results = good_results()
    systems = results["workloads"]["cnn"]["systems"]
    systems["sparse-private"] |= {"ratio": 9.0, "ratio_to": {"sparse": 1.2}, "peak_mb": 24.1}
    systems["sparse"]["peak_mb"] = 20.0
    short = [verdict for verdict in check.judge(results) if not verdict.kept]
    assert [(v.quantity, v.baseline) for v in short] == [("time", "sparse"), ("memory", "sparse")]


def test_what_was_not_measured_falls_short() -> None:
    results = good_results()
    del results["workloads"]["lstm"]
    results["workloads"]["cnn"]["systems"]["dpvd"] = {"failed": "no reason"}
    short = [verdict for verdict in check.judge(results) if not verdict.kept]
    assert {verdict.workload for verdict in short} == {"lstm", "cnn"}
    assert all(verdict.found is None for verdict in short)


def test_memory_counts_only_where_any_was_measured() -> None:
    results = good_results()
    for work in results["workloads"].values():
        for system in work["systems"].values():
            system.pop("peak_mb", None)
    assert {verdict.quantity for verdict in check.judge(results)} == {"time"}


def test_the_command_prints_what_falls_short_and_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = good_results()
    save(tmp_path / "good.json", results)
    assert check.main([str(tmp_path / "good.json")]) == 0
    assert "30 of 30 limits are kept" in capsys.readouterr().out
    results["workloads"]["mnist-mlp"]["systems"]["dpsgd"]["peak_mb"] = 12.5
    save(tmp_path / "bad.json", results)
    assert check.main([str(tmp_path / "bad.json")]) == 1
    printed = capsys.readouterr().out
    (line,) = [line for line in printed.splitlines() if "FALLS SHORT" in line]
    assert line.split()[:2] == ["mnist-mlp", "dpsgd"]
    assert "1.250" in line
    assert "cnn: dpsgd takes 1.00 times the plain step in channels_last" in printed


def test_figures_are_rounded_on_disk_and_whole_numbers_are_not(tmp_path: Path) -> None:
    save(tmp_path / "some.json", {"a": [1.23456789], "b": {"n": 123456789}})
    assert load(tmp_path / "some.json") == {"a": [1.235], "b": {"n": 123456789}}
