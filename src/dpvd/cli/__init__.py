"""The command line: ``dpvd schema | train | predict | export | show | compare | ...``.

A command is loaded when it is asked for: help and version need nothing, a question about a budget
no torch.
"""

import sys
import traceback
from typing import Annotated, cast

import typer

from dpvd import __version__
from dpvd.cli.console import fail, say
from dpvd.cli.lazy import epilog, lazy_group
from dpvd.errors import DpvdError

__all__ = ["app", "main"]

INTERRUPTED = 130  # what shells report for a program that Ctrl-C ended

INTERRUPTED_WORDS = (
    "Interrupted. To continue, rerun the command with --resume (reproduce: without)."
)

# The class of all wrong uses. Typer exports only this descendant of it, and keeps its parent in
# different places.
UsageError = cast(type[typer.BadParameter], typer.BadParameter.__base__)

# Each is a function in a module of the same name; its first line of help is repeated here to be
# shown without loading it.
COMMANDS = {
    "schema": "Draft the schema of a table from its rows, for somebody to go through.",
    "train": "Train a model on a data set; write model, record and report page into a folder.",
    "budget": "Show the noise each accountant requires for (ε, δ), or the ε of a given noise.",
    "plan": "Show what each ε buys for a table of this shape: noise, limits on attacks, accuracy.",
    "predict": "Predict each example's class, its probability, and the spread of the probability.",
    "export": "Write the mean network of a run as ONNX, torch.export or plain tensors; check it by"
    " use.",
    "show": "Show a run's statement, result and settings, or what an unfinished run was charged.",
    "verify": "Check that a run's files, ledgers, statement and model belong together; ε anew.",
    "audit": "Measure ε from below, by canaries; exit code 1 if more is spent than claimed.",
    "sign": "Sign a finished run, or make the key to sign with.",
    "account": "Show who drew what from a data set's account, or make one with a limit (ε, δ).",
    "compare": "Compare finished runs: result, calibration and privacy, with means over seeds.",
    "reproduce": "Run the paper's experiments without a record; write tables, figures, verdicts.",
    "doctor": "Show versions, threads and what draws the noise; test the key stream and the noise.",
}

EXAMPLES = (
    "dpvd train digits --epsilon 1 --delta 1e-5",
    "dpvd train --help",
)

app = typer.Typer(
    cls=lazy_group("dpvd.cli", COMMANDS),
    pretty_exceptions_enable=False,
    help="Train neural networks on sensitive data with a differential-privacy guarantee that holds "
    "for the code that ran.",
    epilog=epilog(EXAMPLES),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"dpvd {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show the traceback of an error; anywhere on the line."),
    ] = False,
) -> None:
    """Options of all commands."""


def main() -> None:
    """Run a command.

    Bad input ends with one line on stderr and exit code 2; with ``--debug``, its traceback too.
    """
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"] or ["--help"]
    try:
        code = app(arguments, prog_name="dpvd", standalone_mode=False)
    except DpvdError as error:
        if debug:
            traceback.print_exc()
        fail(str(error))
        code = 2
    except OSError as error:  # a system that has run out of something, anywhere
        if debug:
            traceback.print_exc()
        place = "" if error.filename is None else f"{error.filename}: "
        fail(f"{place}{error.strerror or error}")
        code = 2
    except UsageError as error:
        # "Value error" is the parser's own prefix for choices.
        words = error.format_message().rstrip(".").replace("Value error, ", "")
        fail(f"{words} (see {_command(error)} --help)")
        code = 2
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    if code == INTERRUPTED:
        say.print(INTERRUPTED_WORDS, highlight=False)
    sys.exit(code)


def _command(error: typer.BadParameter) -> str:
    return "dpvd" if error.ctx is None else error.ctx.command_path
