"""Shell completion: typer's own, with commands that are loaded when asked for."""

import os
import subprocess
import sys

import pytest

from dpvd.cli import COMMANDS

PROGRAM = (sys.executable, "-c", "from dpvd.cli import main; main()")


def run(*arguments: str, **environment: str) -> str:
    """What the program prints in a process of its own."""
    done = subprocess.run(
        [*PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | environment,
    )
    return done.stdout


def complete(typed: str) -> set[str]:
    """What bash offers for the last word of what was typed."""
    answer = run(
        _DPVD_COMPLETE="complete_bash",
        COMP_WORDS=typed,
        COMP_CWORD=str(len(typed.split(" ")) - 1),
    )
    return set(answer.split())


def test_commands_are_completed():
    assert complete("dpvd ") == set(COMMANDS)
    assert complete("dpvd re") == {"reproduce"}


def test_options_of_a_command_are_completed():
    assert complete("dpvd budget --ep") == {"--epsilon", "--epochs"}


def test_values_of_an_option_are_completed():
    assert complete("dpvd budget --sampling ") == {"poisson", "fixed-size"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_where_the_shell_looks_for_it(shell, tmp_path):
    # Typer asks which shell the program was started from; this is its switch for tests.
    switch = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    answer = run("--install-completion", shell, HOME=str(tmp_path), **switch)
    assert f"{shell} completion installed" in answer
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert any("_DPVD_COMPLETE" in text for text in written)
