"""Changes the code on which guarantees rest, one small thing at a time, and sees whether a test
notices.

    python -m tools.mutants --minutes 20

Each change is made in a copy of the package, and those tests of the module that come by its line
are run against it, in a process forked from one that has torch loaded. A change that they pass has
survived: either it changes nothing that matters, or a test is missing. Survivors that have been
looked at stand in docs/mutants.md, each with the reason; others make this program fail.

What was killed is remembered in a file, for as long as the module does not change; survivors are
tried again every time.
"""

import argparse
import compileall
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from coverage import CoverageData
from tests.faults.runner import AVAILABLE, PASSED, ROOT, run_tests
from tools.mutations import Mutation, mutations_of

PACKAGE = ROOT / "src" / "dpvd"
PAGE = ROOT / "docs" / "mutants.md"
RESULTS = ROOT / ".mutants.jsonl"
TIME_LIMIT = 120.0  # seconds for the tests of one change; beyond, it counts as noticed
BASE_TIME_LIMIT = 1200.0  # seconds for all tests without a change

# Tests that start processes or many examples take longer than all the others together.
WITHOUT_SLOW = (
    "--deselect=tests/grads/test_sensitivity.py::test_removing_or_replacing_one_example",
    "--deselect=tests/training/test_provenance.py::test_of_two_processes_on_one_ledger_one_is_refused",
    "--deselect=tests/training/test_provenance.py::test_a_process_group_of_two_ranks_is_refused",
    "--deselect=tests/privacy/test_ledger.py::test_a_killed_process_never_under_counts",
)

GRADS = (
    "tests/grads/test_sensitivity.py",
    "tests/grads/test_edges.py",
    "tests/grads/test_extremes.py",
    "tests/grads/test_micro_batches.py",
)
PROVENANCE = "tests/training/test_provenance.py"

# For each module the quick tests that ought to notice, likely ones first.
TESTS: dict[str, tuple[str, ...]] = {
    "grads/clipping.py": GRADS,
    "grads/per_example.py": GRADS,
    "mechanisms/sampling.py": ("tests/mechanisms/test_sampling.py", "tests/test_plan.py"),
    "mechanisms/noise.py": ("tests/mechanisms/test_noise.py",),
    "mechanisms/drawn.py": (PROVENANCE,),
    "training/step.py": (PROVENANCE, "tests/training/test_step.py"),
    "training/checks.py": (PROVENANCE, "tests/training/test_step.py"),
    "training/update.py": ("tests/training/test_update.py", "tests/training/test_step.py"),
    "training/account.py": (PROVENANCE,),
    "training/account_store.py": (PROVENANCE,),
    "plan.py": ("tests/test_plan.py", PROVENANCE),
    "privacy/events.py": ("tests/privacy/test_events.py",),
    "privacy/ledger.py": ("tests/privacy/test_ledger.py", PROVENANCE),
    "privacy/guarantee.py": ("tests/privacy/test_guarantee.py", f"{PROVENANCE}::TestWords"),
}


def main() -> int:
    options = _options()
    changes = [(file, change) for file in options.module for change in _changes_of(file)]
    random.Random(0).shuffle(changes)  # where time runs out, every module has had its share
    killed = _remembered(options.results)
    survived = []
    with tempfile.TemporaryDirectory() as folder, options.results.open("a") as results:
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # none of a change may be left for the next one
        os.environ["COVERAGE_FILE"] = str(Path(folder, "coverage"))
        copy = _copy(Path(folder))
        visits = _visits(copy, options.module)
        deadline = time.monotonic() + 60 * options.minutes
        for file, change in changes:
            if time.monotonic() > deadline:
                break
            key = _key(file, change)
            if key in killed:
                continue
            tests = _tests_by(visits, file, change)
            if _is_noticed(copy, file, change, tests):
                killed.add(key)
                results.write(json.dumps(key) + "\n")
                results.flush()
            else:
                survived.append((file, change))
                print(f"survived: {file} {change.in_words()}", flush=True)
    return _report(changes, killed, survived)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0, help="stop after so many minutes")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where kills are remembered")
    parser.add_argument("module", nargs="*", default=list(TESTS), help="modules, such as plan.py")
    options = parser.parse_args()
    unknown = set(options.module) - TESTS.keys()
    if unknown:
        parser.error(f"no tests are named for {sorted(unknown)}; known are {', '.join(TESTS)}")
    if not AVAILABLE:
        parser.error("processes cannot be forked here")
    return options


def _changes_of(file: str) -> list[Mutation]:
    return mutations_of((PACKAGE / file).read_text())


def _copy(folder: Path) -> Path:
    """A folder with a compiled copy of the package."""
    shutil.copytree(PACKAGE, folder / "dpvd", ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(folder / "dpvd", quiet=1)
    for file in TESTS:
        (bytecode,) = _bytecode_of(folder / "dpvd" / file)
        bytecode.unlink()  # these modules are always read anew
    return folder


def _bytecode_of(path: Path) -> Iterator[Path]:
    return (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc")


Visits = dict[str, dict[int, list[str]]]
"""By file and line, the tests that come by it."""


def _visits(copy: Path, files: list[str]) -> Visits:
    """Run all tests without a change; they must pass, or every change would seem to be noticed."""
    tests = dict.fromkeys(test for file in files for test in TESTS[file])
    watching = ("-p", "pytest_cov", "--cov", "--cov-context=test", "--cov-report=")
    outcome = run_tests(copy, *tests, *WITHOUT_SLOW, *watching, time_limit=BASE_TIME_LIMIT)
    if outcome.code != PASSED:
        sys.exit(f"the tests do not pass without any change:\n{outcome.output}")
    data = CoverageData(os.environ["COVERAGE_FILE"])
    data.read()
    visits: Visits = {}
    for file in files:
        lines = data.contexts_by_lineno(str(copy / "dpvd" / file))
        visits[file] = {number: _node_ids(contexts) for number, contexts in lines.items()}
    return visits


def _node_ids(contexts: list[str]) -> list[str]:
    """pytest-cov writes "test|run" and the like; "" is what ran outside of tests."""
    return [context.rpartition("|")[0] for context in contexts if context]


def _tests_by(visits: Visits, file: str, change: Mutation) -> list[str]:
    """The module's tests that come by a change; all of them if none was seen to: it may run at
    import.
    """
    seen = {test for number in change.numbers for test in visits[file].get(number, [])}
    own = sorted(test for test in seen if test.startswith(TESTS[file]))
    return own or list(TESTS[file])


def _is_noticed(copy: Path, file: str, change: Mutation, tests: list[str]) -> bool:
    path = copy / "dpvd" / file
    source = path.read_text()
    path.write_text(change.put_into(source))
    try:
        return run_tests(copy, *tests, *WITHOUT_SLOW, time_limit=TIME_LIMIT).code != PASSED
    finally:
        path.write_text(source)


def _key(file: str, change: Mutation) -> str:
    """What a change is remembered by: another text of the module makes it another change."""
    source = (PACKAGE / file).read_bytes()
    digest = sha256(source).hexdigest()[:16]
    return f"{file} {digest} {change.begin} {change.end} {change.after}"


def _remembered(results: Path) -> set[str]:
    if not results.exists():
        return set()
    return {json.loads(line) for line in results.read_text().splitlines()}


def _report(
    changes: list[tuple[str, Mutation]],
    killed: set[str],
    survived: list[tuple[str, Mutation]],
) -> int:
    """Print a table of counts, and the survivors that nobody has looked at; 1 if there are any."""
    total = Counter(file for file, _ in changes)
    dead = Counter(file for file, change in changes if _key(file, change) in killed)
    alive = Counter(file for file, _ in survived)
    print("\n| module | changes | killed | survived | not run |\n|---|---|---|---|---|")
    for file, count in total.items():
        rest = count - dead[file] - alive[file]
        print(f"| `{file}` | {count} | {dead[file]} | {alive[file]} | {rest} |")
    page = PAGE.read_text() if PAGE.exists() else ""
    new = [(file, change) for file, change in survived if change.in_words() not in page]
    for file, change in new:
        print(f"not in {PAGE.name}: {file} {change.in_words()}")
    return int(bool(new))


if __name__ == "__main__":
    sys.exit(main())
