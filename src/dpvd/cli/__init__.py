"""The command line: ``dpvd train | budget | predict | show``."""

import sys
import traceback
from typing import Annotated, cast

import typer

from dpvd import __version__
from dpvd.cli.budget import budget
from dpvd.cli.console import fail, say
from dpvd.cli.predict import predict
from dpvd.cli.show import show
from dpvd.cli.train import train
from dpvd.errors import DpvdError

__all__ = ["app", "main"]

INTERRUPTED = 130  # what shells report for a program that Ctrl-C ended

# The class of all wrong uses. Typer exports only this descendant of it, and keeps its parent in different places.
UsageError = cast(type[typer.BadParameter], typer.BadParameter.__base__)

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train neural networks on sensitive data with a differential-privacy guarantee that is true.",
)
app.command()(train)
app.command()(budget)
app.command()(predict)
app.command()(show)


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
        fail(f"{error.format_message().rstrip('.')} (see {_command(error)} --help)")
        code = 2
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    if code == INTERRUPTED:
        say.print("interrupted: a run can be taken up again with the same command and --resume", highlight=False)
    sys.exit(code)


def _command(error: typer.BadParameter) -> str:
    return "dpvd" if error.ctx is None else error.ctx.command_path
