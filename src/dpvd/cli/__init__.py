"""The command line: ``dpvd train | budget | predict | show``."""

import sys
from typing import Annotated

import typer

from dpvd import __version__
from dpvd.cli.budget import budget
from dpvd.cli.console import say
from dpvd.cli.predict import predict
from dpvd.cli.show import show
from dpvd.cli.train import train
from dpvd.errors import DpvdError

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
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
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """Options of all commands."""


def main() -> None:
    """Run a command. Bad input ends with one line on stderr and exit code 2."""
    try:
        app()
    except DpvdError as error:
        if "--debug" in sys.argv:
            raise
        say.print(f"[red]error:[/] {str(error).replace('[', chr(92) + '[')}", highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        say.print("interrupted: nothing is lost that was charged; --resume goes on", highlight=False)
        sys.exit(130)
