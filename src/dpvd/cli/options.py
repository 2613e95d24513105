"""Options that several commands share."""

from typing import Annotated

import typer

from dpvd.cli.console import warn
from dpvd.errors import DpvdError
from dpvd.privacy import AccountantName

__all__ = ["AsJson", "Delta", "parse_accountant", "warn_of_large_delta"]

Delta = Annotated[float, typer.Option(help="δ of the guarantee; below 1/N to mean anything.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout, and nothing else there.")]


def parse_accountant(name: str) -> AccountantName:
    """For typer: 'moments' is another name of rdp."""
    try:
        return AccountantName.parse(name)
    except DpvdError as error:
        raise typer.BadParameter(str(error)) from None


def warn_of_large_delta(delta: float, examples: int) -> None:
    """A δ of 1/N or more is legal and protects next to nothing."""
    if delta >= 1 / examples:
        warn(f"delta {delta:g} is not below 1/N = {1 / examples:.3g}: it allows whole examples to be published")
