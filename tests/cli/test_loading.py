"""What the program loads: help nothing, a question about a budget no torch, and each command all it
says it does.
"""

import subprocess
import sys

import pytest
import typer

from dpvd.cli import COMMANDS, app

HEAVY = ("torch", "matplotlib", "sklearn", "dp_accounting", "scipy", "numpy")
BUDGET = (
    "budget",
    "--epsilon",
    "1",
    "--delta",
    "1e-5",
    "--examples",
    "1000",
    "--batch-size",
    "100",
    "--epochs",
    "2",
)


def loaded_by(*arguments: str) -> set[str]:
    """Which heavy packages the program has imported when it ends."""
    program = (
        f"import atexit, sys\natexit.register(lambda: print('LOADED', *[name for name in {HEAVY!r}"
        f" if name in sys.modules]))\nsys.argv = ['dpvd', *{arguments!r}]\nfrom dpvd.cli import"
        " main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    last = done.stdout.splitlines()[-1].split()
    assert last[0] == "LOADED"
    return set(last[1:])


@pytest.mark.parametrize("arguments", [("--version",), ("--help",)])
def test_help_and_version_load_nothing_heavy(arguments):
    assert loaded_by(*arguments) == set()


def test_a_question_about_a_budget_loads_neither_torch_nor_matplotlib():
    assert loaded_by(*BUDGET) == {"dp_accounting", "scipy", "numpy"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_overview_shows_the_first_line_of_each_commands_own_help(name):
    command = typer.main.get_command(app).commands[name]
    assert command.help == COMMANDS[name] == command.load().help.split("\n\n")[0]
