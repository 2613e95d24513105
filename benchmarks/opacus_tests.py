"""Opacus' own tests of per-example gradients, run against our engines.

    make opacus-tests           or: python -m benchmarks.opacus_tests

Its wheel brings its tests. The sixteen files on per-example gradients run in an environment of
their own, with a plugin (``benchmarks/peers/opacus_shim.py``) that answers with our gradients where
they ask for Opacus'. Written to benchmarks/results/opacus-tests.json.
"""

import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.children import ROOT
from benchmarks.environments import Peer, installed, interpreter
from benchmarks.results import save

__all__ = ["environment", "main", "outcomes", "table"]

OUTPUT = ROOT / "benchmarks" / "results" / "opacus-tests.json"
FILES = 16


def environment() -> Peer:
    """Opacus, what its tests need, and what we need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = tuple(project["dependencies"])
    return Peer("opacus-tests", (), ("opacus==1.6.0", "pytest", "hypothesis", *ours))


def outcomes(report: Path) -> dict[str, dict[str, int]]:
    """For each file, how many of its tests passed, failed and were skipped."""
    found: dict[str, dict[str, int]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        *_, name, _ = case.attrib["classname"].split(".")  # file and class come last
        counts = found.setdefault(name, {"passed": 0, "failed": 0, "skipped": 0})
        tags = {child.tag for child in case}
        if tags & {"failure", "error"}:
            counts["failed"] += 1
        elif "skipped" in tags:
            counts["skipped"] += 1
        else:
            counts["passed"] += 1
    return found


def table(files: dict[str, dict[str, int]]) -> str:
    """Markdown: one row for each file."""
    lines = ["| file | passed | failed | skipped |", "|---|---|---|---|"]
    for name, counts in sorted(files.items()):
        cells = " | ".join(str(count) for count in counts.values())
        lines.append(f"| `{name}.py` | {cells} |")
    return "\n".join(lines)


def main() -> int:
    python = interpreter(environment())
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        done = _run(python, report)
        files = outcomes(report)
    result: dict[str, Any] = {
        "versions": installed(python, ("opacus", "torch", "hypothesis")),
        "engines": _engines(done.stdout),
        "files": files,
    }
    save(OUTPUT, result)
    print(done.stdout)
    print(table(files))
    failed = sum(counts["failed"] for counts in files.values())
    return int(failed > 0 or len(files) != FILES or done.returncode != 0)


def _run(python: Path, report: Path) -> subprocess.CompletedProcess[str]:
    command = [python, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
    command += ["-p", "benchmarks.peers.opacus_shim", f"--junitxml={report}"]
    command += ["-o", "python_files=*_test.py", "--rootdir", report.parent]
    command += ["--pyargs", "opacus.tests.grad_samples"]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.run(
        command,
        cwd=report.parent,  # away from our own settings of pytest
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
    )


def _engines(printed: str) -> dict[str, int]:
    """How many batches each of our engines took."""
    (line,) = (line for line in printed.splitlines() if line.startswith("batches by engine: "))
    pairs = line.removeprefix("batches by engine: ").split(", ")
    return {name: int(count) for name, count in (pair.split() for pair in pairs)}


if __name__ == "__main__":
    sys.exit(main())
