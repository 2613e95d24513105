"""Set-up: a torch that is there is kept, and what a source distribution must hold is in it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Stands for .venv/bin/python: notes what it is asked, and knows whether torch is installed.
STUB = """#!/bin/sh
echo "$@" >> asked
case "$*" in *"pip show"*) exit $TORCH_MISSING ;; esac
"""

needs_make = pytest.mark.skipif(
    os.name == "nt" or shutil.which("make") is None,
    reason="needs make and a POSIX shell",
)


def asked_by_setup(folder: Path, *, torch_is_there: bool) -> list[str]:
    """What ``make setup`` asks of the Python in .venv."""
    for name in ("Makefile", "pyproject.toml", "setup.py", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(STUB)
    python.chmod(0o755)
    environment = os.environ | {"TORCH_MISSING": "0" if torch_is_there else "1"}
    subprocess.run(["make", "setup", "PYTHON=true"], cwd=folder, env=environment, check=True)
    return (folder / "asked").read_text().splitlines()


@needs_make
def test_a_torch_that_is_there_is_kept(tmp_path):
    asked = asked_by_setup(tmp_path, torch_is_there=True)
    assert not any("constraints.txt" in line for line in asked)
    assert "-e .[dev]" in asked[-1]


@needs_make
def test_where_there_is_none_the_pinned_torch_is_installed_first(tmp_path):
    asked = asked_by_setup(tmp_path, torch_is_there=False)
    assert asked[-2].endswith("-c constraints.txt torch")
    assert "-e .[dev]" in asked[-1]


def test_every_top_folder_is_in_the_source_distribution_or_the_package():
    """CI builds it; this says in time that a new folder was forgotten."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    folders = {line.split("/")[0] for line in listed if "/" in line}
    manifest = (ROOT / "MANIFEST.in").read_text().splitlines()
    grafted = {line.removeprefix("graft ") for line in manifest if line.startswith("graft ")}
    assert folders - {"src"} == grafted
