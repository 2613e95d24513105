"""What commands leave behind: private files, and no value of the training table in any of them."""

import base64
import os
import random
import stat
from pathlib import Path

import pytest

from tests.cli.program import Outcome, call, train_line

SCHEMA = """id = "person"
rows_per_unit = 1
[target]
name = "outcome"
classes = ["ill", "well"]
source = "public"
[columns.dose]
kind = "numeric"
bounds = [0, 100]
source = "public"
[columns.ward]
kind = "categorical"
categories = ["n", "s"]
source = "public"
unseen = "other"
[columns.note]
kind = "ignore"
"""
BUDGET = ("--epsilon", 1, "--delta", 1e-5)
PLANTED = ["Zyzzyva-4815162342", "41.73102593", "quokka-ward", "Vrchlabi note", "ill"]
BAD_ROWS = {
    "number": ["Zyzzyva-4815162342", "Kilimanjaro-77", "n", "x", "ill"],
    "comma": ["Zyzzyva-4815162342", '"41,73102593"', "n", "x", "ill"],
    "class": ["Zyzzyva-4815162342", "41.73102593", "n", "x", "Xanadu-99"],
    "length": ["Zyzzyva-4815162342", "41.73102593", "quokka-ward"],
    "empty": ["Zyzzyva-4815162342", "", "quokka-ward", "Vrchlabi note", "ill"],
}
SECRETS = [*PLANTED[:4], "Kilimanjaro-77", "Xanadu-99", "41,73102593", "41.731"]


def rows(count: int, seed: int) -> list[list[str]]:
    draw = random.Random(seed)
    found = []
    for number in range(count):
        dose = 100 * draw.random()
        outcome = "ill" if dose > 50 else "well"
        found.append([f"person-{seed}-{number}", f"{dose:.3f}", draw.choice("ns"), "-", outcome])
    return found


def write(path: Path, table: list[list[str]]) -> Path:
    lines = ["person,dose,ward,note,outcome", *map(",".join, table)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("inputs")
    table = rows(400, seed=1)
    table[17] = PLANTED
    write(place / "train.csv", table)
    write(place / "new.csv", rows(20, seed=2))
    (place / "schema.toml").write_text(SCHEMA)
    for name, row in BAD_ROWS.items():
        write(place / f"{name}.csv", [*table[:33], row, *table[33:]])
    return place


def all_commands(inputs: Path, out: Path) -> list[Outcome]:
    """Train on the table, look at the run in every way, and export it."""
    schema = ("--schema", inputs / "schema.toml")
    run = out / "deep" / "run"
    account = out / "accounts" / "clinic.account"
    lines = [
        ("account", account, "--epsilon", 3, "--delta", 1e-4),
        ("train", inputs / "train.csv", *schema, *BUDGET, "--account", account, "--out", run),
        ("predict", run, inputs / "new.csv", "--out", out / "predictions.csv"),
        ("show", run),
        ("show", run, "--json"),
        ("show", run, "--statement", out / "statement.html"),
        ("verify", run),
        ("sign", "--new-key", out / "officer"),
        ("sign", run, "--key", out / "officer"),
        ("export", run, "--format", "state", "--out", out / "model.safetensors"),
        ("compare", run, "--out", out / "comparison.csv"),
        ("account", account),
    ]
    return [call("--debug", *line) for line in lines]


@pytest.fixture(scope="module")
def made(inputs, tmp_path_factory) -> tuple[Path, list[Outcome]]:
    """All that commands wrote, under a mask that takes nothing away from what they ask for."""
    out = tmp_path_factory.mktemp("outputs")
    before = os.umask(0)
    try:
        outcomes = all_commands(inputs, out)
        outcomes.append(call(*train_line(out / "digits")))
    finally:
        os.umask(before)
    assert [outcome.code for outcome in outcomes] == [0] * len(outcomes), outcomes
    return out, outcomes


HANDED_OUT = {"statement.html", "officer.pub", "model.safetensors"}


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_files_are_for_their_owner_unless_they_are_made_to_be_handed_out(made):
    out, _ = made
    handed_out = set()
    for path in out.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        if path.is_dir():
            assert mode == 0o700, path
        elif mode == 0o644:
            handed_out.add(str(path.relative_to(out)))
        else:
            assert mode == 0o600, path
    assert handed_out == HANDED_OUT


def test_no_value_of_the_training_table_is_in_any_output(made):
    out, outcomes = made
    texts = {str(number): told.out + told.err for number, told in enumerate(outcomes)}
    for path in out.rglob("*"):
        if path.is_file():
            texts[str(path)] = path.read_bytes().decode("latin-1")
    assert len(texts) > 20
    assert leaks(texts) == []


@pytest.mark.parametrize("name", BAD_ROWS)
def test_errors_name_the_cell_and_do_not_quote_it(inputs, tmp_path, name):
    schema = ("--schema", inputs / "schema.toml")
    line = ("train", inputs / f"{name}.csv", *schema, *BUDGET, "--out", tmp_path / "run")
    outcome = call("--debug", *line)
    assert outcome.code == 2
    assert "Traceback" in outcome.err
    assert "row 34" in outcome.err or "line 35" in outcome.err
    assert leaks({name: outcome.out + outcome.err}) == []


def leaks(texts: dict[str, str]) -> list[tuple[str, str]]:
    """Where a planted value occurs, as it is or in base 64."""
    found = []
    for place, text in texts.items():
        for secret in SECRETS:
            encoded = base64.b64encode(secret.encode()).decode().rstrip("=")[:-1]
            if secret in text or encoded in text:
                found.append((place, secret))
    return found
