"""The command line: ``dpvd train | budget | predict | show | reproduce | doctor``.

A command is loaded when it is asked for: help and version need nothing, a question about a budget no torch.
"""

import sys
import traceback
from typing import Annotated, cast

import typer

from dpvd import __version__
from dpvd.cli.console import fail, say
from dpvd.cli.lazy import lazy_group
from dpvd.errors import DpvdError

__all__ = ["app", "main"]

INTERRUPTED = 130  # what shells report for a program that Ctrl-C ended

INTERRUPTED_WORDS = (
    "interrupted: a run can be taken up again with the same command and --resume, a reproduction with the same command"
)

# The class of all wrong uses. Typer exports only this descendant of it, and keeps its parent in different places.
UsageError = cast(type[typer.BadParameter], typer.BadParameter.__base__)

# Each is a function in a module of the same name; its first line of help is repeated here to be shown without it.
COMMANDS = {
    "train": "Train a model on a data set and write it, its record and its report page into a folder.",
    "budget": "Show the noise that every accountant asks for at a budget, or the ε it grants to a noise.",
    "predict": "Predict the class of each example, its probability, and how sure the model is of that probability.",
    "show": "Show a run's statement, result and settings; of an unfinished run, what it has been charged.",
    "reproduce": "Run the paper's experiments that have no record yet, and write tables, figures and verdicts.",
    "doctor": "Show versions, threads and what draws the noise, and test the key stream and the noise.",
}

app = typer.Typer(
    cls=lazy_group("dpvd.cli", COMMANDS),
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train neural networks on sensitive data with a differential-privacy guarantee that is true.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"dpvd {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show it.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; allowed anywhere on the line.")
    ] = False,
) -> None:
    """Options of all commands."""


def main() -> None:
    """Run a command. Bad input ends with one line on stderr and exit code 2; with ``--debug``, its traceback too."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"] or ["--help"]
    try:
        code = app(arguments, prog_name="dpvd", standalone_mode=False)
    except DpvdError as error:
        if debug:
            traceback.print_exc()
        fail(str(error))
        code = 2
    except UsageError as error:
        words = error.format_message().rstrip(".").replace("Value error, ", "")  # the parser's own prefix for choices
        fail(f"{words} (see {_command(error)} --help)")
        code = 2
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    if code == INTERRUPTED:
        say.print(INTERRUPTED_WORDS, highlight=False)
    sys.exit(code)


def _command(error: typer.BadParameter) -> str:
    return "dpvd" if error.ctx is None else error.ctx.command_path
