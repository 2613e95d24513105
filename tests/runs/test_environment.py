"""What a record says of the program and the machine."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import dpvd
from dpvd.runs.environment import environment, now


def test_a_checkout_names_its_commit_and_an_installed_package_none(tmp_path):
    copied = tmp_path / "somewhere" / "dpvd"
    shutil.copytree(Path(dpvd.__file__).parent, copied)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    program = "from dpvd.runs.environment import environment; print(environment()['commit'])"
    told = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(copied.parent), "PATH": "/usr/bin:/bin"},
    )
    assert told.stdout.strip() == "None"
    commit = environment()["commit"]
    assert commit is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", commit)


def test_times_are_in_utc_to_the_second():
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", now())
