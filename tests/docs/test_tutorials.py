"""The tutorials run as written: every block in order, in one folder, as a reader would run them.

The tutorial on a million rows runs with fewer here; ``DPVD_TUTORIAL_ROWS`` gives another number.
"""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, blocks
from tests.docs.test_code import run

HOSPITAL = ROOT / "docs" / "tutorial-hospital.md"
MILLION = ROOT / "docs" / "tutorial-million-rows.md"
ROWS = int(os.environ.get("DPVD_TUTORIAL_ROWS", "20000"))
FEW_ROWS_LIMIT = "0.9"  # GB, of which torch alone takes about a third
WHOLE = 1_000_000


def shell(command: str, folder: Path) -> str:
    """Run a command line of a tutorial and return what it prints."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=os.environ | {"PATH": programs},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def follow(page: Path, folder: Path, changes: dict[str, str]) -> dict[str, str]:
    """Run all blocks of a page in order; what each command printed, by its beginning."""
    printed = {}
    code = blocks(page, "python")
    for block in sorted([*code, *blocks(page, "console")], key=lambda block: block.line):
        if block in code:
            run(block, {})
            continue
        for line in block.text.splitlines():
            assert line.startswith("$ "), f"{page.name}: {line!r} is no command"
            command = line[2:]
            for written, taken in changes.items():
                command = command.replace(written, taken)
            printed[line[2:]] = shell(command, folder)
    return printed


def only(printed: dict[str, str], words: str) -> str:
    """What the one command with these words in it printed."""
    (found,) = [output for command, output in printed.items() if words in command]
    return found


def test_from_a_csv_to_a_statement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = follow(HOSPITAL, tmp_path, {})
    sentence = only(printed, "dpvd train").splitlines()[0]
    assert "adding or removing one row" in sentence
    assert "Tuned on the data: nothing." in sentence
    assert "Not covered" not in sentence
    record = json.loads((tmp_path / "runs/hospital/record.json").read_text())
    assert 0.9 < record["guarantee"]["epsilon"] <= 1
    assert record["dataset"]["train"] + record["dataset"]["test"] == 569
    assert record["test"]["accuracy"] > 0.85
    page = (tmp_path / "statement.html").read_text()
    assert "Ward 7" in page
    assert "second reading of biopsies" in page
    assert "patients.csv" not in page
    assert 'data_curator_name: "Ward 7"' in only(printed, "--registry")
    with (tmp_path / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    assert {row["class"] for row in rows} <= {"benign", "malignant"}
    assert sum(row["abstain"] == "1" for row in rows) == 1
    assert (tmp_path / "model.pt2").stat().st_size > 0
    assert (tmp_path / "plan.html").stat().st_size > 0


def test_a_draft_that_nobody_went_through_is_not_covered(tmp_path: Path) -> None:
    """The tutorial says so of a schema whose source was left at data."""
    (block,) = blocks(HOSPITAL, "python")
    shell(f"{sys.executable} -c '{block.text}'", tmp_path)
    shell("dpvd schema patients.csv --target diagnosis --out draft.toml", tmp_path)
    said = shell(
        "dpvd train patients.csv --schema draft.toml --epsilon 1 --delta 1e-5 --out run", tmp_path
    )
    outside = said.split("Not covered: ")[1].split(". Public: ")[0]
    assert "bounds of mean_radius" in outside
    assert "classes of diagnosis" in outside
    assert len(outside.split("; ")) == 31


@pytest.mark.skipif(sys.platform == "win32", reason="memory is measured on POSIX systems")
def test_many_rows_of_many_patients(tmp_path: Path) -> None:
    changes = {"examples/": f"{ROOT / 'examples'}{os.sep}", str(WHOLE): str(ROWS)}
    if ROWS < WHOLE:
        changes["--limit 1.5"] = f"--limit {FEW_ROWS_LIMIT}"
    printed = follow(MILLION, tmp_path, changes)
    trained = only(printed, "dpvd train")
    print(trained)
    assert "adding or removing one patient" in trained
    assert "peak memory" in trained
    record = json.loads((tmp_path / "runs/visits/record.json").read_text())
    assert record["table"]["rows_per_unit"] == 5
    assert record["dataset"]["train"] < record["dataset"]["rows"] < 0.95 * ROWS
    assert record["plan"]["examples"] == record["dataset"]["train"]
    assert record["test"]["auc"] > 0.75
    with (tmp_path / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == ROWS
    assert rows[0]["patient_id"] == "P0000000"


def test_too_much_memory_is_noticed(tmp_path: Path) -> None:
    wrapper = f"{sys.executable} {ROOT / 'examples' / 'peak_memory.py'} --limit 0.001"
    with pytest.raises(AssertionError, match=r"of at most 0\.001 GB"):
        shell(f"{wrapper} {sys.executable} -c pass", tmp_path)
