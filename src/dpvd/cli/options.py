"""Options that several commands share."""

from typing import Annotated

import typer

from dpvd.privacy import AccountantName

__all__ = ["AsJson", "Delta", "parse_accountant"]

Delta = Annotated[float, typer.Option(help="δ of the guarantee; below 1/N to mean anything.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout, and nothing else there.")]


def parse_accountant(name: str) -> AccountantName:
    """For typer: 'moments' is another name of rdp."""
    return AccountantName.parse(name)
