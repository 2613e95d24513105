"""Runs chosen tests against a copy of the package, in a process of its own.

The processes are forked from a server that has imported torch and the like, but nothing of dpvd:
that takes seconds, and would otherwise have to be paid for every fault.
"""

import multiprocessing
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

__all__ = ["AVAILABLE", "CAUGHT", "PASSED", "Outcome", "run_tests"]

ROOT = Path(__file__).parents[2]
PRELOADED = [
    "torch._dynamo",
    "dp_accounting",
    "sklearn.datasets",
    "safetensors.torch",
    "pytest",
    "hypothesis",
]
TIME_LIMIT = 120.0  # seconds

PASSED = int(pytest.ExitCode.OK)
CAUGHT = int(pytest.ExitCode.TESTS_FAILED)
BROKEN = 70  # pytest uses 0 to 5: something that is neither passing nor failing

AVAILABLE = "forkserver" in multiprocessing.get_all_start_methods()


@dataclass(frozen=True)
class Outcome:
    """What a run of tests came to: ``PASSED``, ``CAUGHT`` or another exit code, and all that was
    printed.
    """

    code: int | None
    output: str


def run_tests(copy: Path, *tests: str, time_limit: float = TIME_LIMIT) -> Outcome:
    """Run tests, by their node ids, with ``dpvd`` imported from inside the folder ``copy``.

    A run that takes longer than ``time_limit`` seconds is ended, and its code is negative.

    Guarantees:
        The code is ``CAUGHT`` only if a test was run and failed by an assertion of its own. A
        package that cannot be imported, a test that does not exist or ends in another exception,
        and a package from elsewhere give other codes.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    log = copy / "output.txt"
    process = context.Process(target=_child, args=(copy, tests, log))
    process.start()
    process.join(time_limit)
    if process.is_alive():
        process.kill()
        process.join()
    return Outcome(
        process.exitcode, log.read_text() if log.exists() else "(the process did not start)"
    )


class _Witness:
    """Lets only failed assertions count as failures of tests."""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            pytest.exit(f"{report.nodeid} cannot be imported:\n{report.longreprtext}", BROKEN)

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> None:
        failures = (AssertionError, pytest.fail.Exception)
        if call.excinfo is not None and not (
            call.when == "call" and call.excinfo.errisinstance(failures)
        ):
            pytest.exit(
                f"{item.nodeid} broke off instead of failing:\n{call.excinfo.getrepr()}", BROKEN
            )


def _child(copy: Path, tests: tuple[str, ...], log: Path) -> None:
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(ROOT)
    os.environ |= {
        "PYTHONPATH": str(copy),  # for processes that the tests start
        "OMP_NUM_THREADS": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "",
    }
    sys.path[:0] = [str(copy), str(ROOT)]
    try:
        import dpvd

        if not Path(dpvd.__file__).is_relative_to(copy):
            raise ImportError(f"dpvd was imported from {dpvd.__file__}, not from the copy")
        options = ["-x", "-q", "--tb=short", "-p", "no:cacheprovider"]
        code = int(pytest.main([*options, *tests], plugins=[_Witness()]))
    except (
        BaseException
    ) as error:  # an uncaught exception would end in the exit code of a failed test
        print(f"the tests were not run: {error!r}", flush=True)
        code = BROKEN
    sys.exit(code)
