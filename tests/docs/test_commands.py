"""Command lines in the documentation parse, and the reference of the command line is complete and
true.
"""

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from dpvd.cli import app
from tests.docs.markdown import PAGES, ROOT, blocks, prose, table_names

REFERENCE = ROOT / "docs" / "command-line.md"
ROOT_COMMAND = typer.main.get_command(app)
ROOT_OPTIONS = {name for option in ROOT_COMMAND.params for name in option.opts} | {"--help"}
COMMANDS = {name: command.load() for name, command in ROOT_COMMAND.commands.items()}

LINES = [
    (page.name, block.line, line[2:])
    for page in PAGES
    for block in blocks(page, "console")
    for line in block.text.splitlines()
    if line.startswith("$ ")
]
QUOTED = [
    (f"{page}:{line}", words)
    for page, line, text in LINES
    if (words := shlex.split(text))[0] == "dpvd"
]
VERBS = sorted({words[1] for _, _, text in LINES if (words := shlex.split(text))[0] == "make"})


def parse(words: list[str]) -> str:
    """Parse a command line without running it, and return the command's name."""
    if words[1] in ROOT_OPTIONS:
        return words[1]
    name, arguments = words[1], words[2:]
    with ROOT_COMMAND.make_context("dpvd", [name], resilient_parsing=True) as parent:
        COMMANDS[name].make_context(name, list(arguments), parent=parent)
    return name


@pytest.mark.parametrize(("place", "words"), QUOTED, ids=[place for place, _ in QUOTED])
def test_quoted_commands_parse(place: str, words: list[str]) -> None:
    assert parse(words) in {*COMMANDS, *ROOT_OPTIONS}


def test_every_command_is_quoted_and_a_wrong_one_is_noticed() -> None:
    assert set(COMMANDS) <= {words[1] for _, words in QUOTED}
    for wrong in ("dpvd train digits", "dpvd budget --delta 1e-5 --no-such-option 3", "dpvd show"):
        with pytest.raises(typer.BadParameter.__base__):
            parse(shlex.split(wrong))


@pytest.mark.parametrize("verb", VERBS)
def test_quoted_make_verbs_exist(verb: str) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert verb in targets


def test_the_test_command_stands_under_its_heading() -> None:
    after = (ROOT / "README.md").read_text().split("\n## Tests\n")[1]
    assert after.lstrip().startswith("```console\n$ make test\n```")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_reference_has_exactly_the_options_there_are(name: str) -> None:
    there = {
        parameter.opts[0] if parameter.param_type_name == "option" else parameter.name
        for parameter in COMMANDS[name].params
    }
    assert table_names(REFERENCE, f"\n## {name}\n") == there - {"--help"}


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What every command prints with --json, from one small run."""
    folder = tmp_path_factory.mktemp("runs")
    examples = folder / "new.npy"
    np.save(examples, np.ones((3, 64), dtype=np.float32))
    table = folder / "patients.csv"
    table.write_text("patient,age,ill\n" + "a,30.5,yes\nb,?,no\n" * 20)
    run, size = str(folder / "run"), ["--examples", "1437", "--batch-size", "1437", "--epochs", "2"]
    return {
        "schema": output(f"schema {table} --target ill --id patient --json"),
        "train": output(
            f"train digits --epsilon 1 --delta 1e-5 --hidden 20 --epochs 2 --out {run} --json"
        ),
        "budget": output(" ".join(["budget --epsilon 1 --delta 1e-5 --json", *size])),
        "plan": output(
            "plan --examples 500 --features 3 --classes 2 --delta 1e-4 --epsilon 1 --json"
        ),
        "predict": output(f"predict {run} {examples} --json"),
        "export": output(f"export {run} --format torch --out {folder / 'model.pt2'} --json"),
        "show": output(f"show {run} --json"),
        "verify": output(f"verify {run} --json"),
        "audit": output("audit --engine --epsilon 8 --delta 1e-5 --trials 10000 --json"),
        "account": output(f"account {folder / 'account'} --epsilon 1 --delta 1e-5 --json"),
        "sign": output(f"sign --new-key {folder / 'officer.key'} --json"),
        "compare": output(f"compare {run} --json"),
        "reproduce": output(f"reproduce fig3 --quick --out {folder / 'reproduction'} --json"),
        "doctor": output("doctor --json"),
    }


def output(line: str) -> Any:
    done = CliRunner().invoke(app, shlex.split(line))
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_reference_has_exactly_the_json_fields_there_are(
    name: str, values: dict[str, Any]
) -> None:
    value = values[name]
    fields = set((value[0] if isinstance(value, list) else value).keys())
    assert table_names(REFERENCE, f"<!-- json: {name} -->") == fields


def test_files_of_a_run_are_those_in_the_quickstart(values: dict[str, Any]) -> None:
    names = table_names(ROOT / "docs" / "quickstart.md", "The folder `runs/first` then holds")
    there = {path.name + os.sep * path.is_dir() for path in Path(values["train"]["run"]).iterdir()}
    assert {name.replace("/", os.sep) for name in names} == there


def test_the_reference_speaks_of_every_command() -> None:
    assert set(re.findall(r"^## (\w+)$", prose(REFERENCE), re.MULTILINE)) == {
        *COMMANDS,
        "Environment",
    }
