"""``dpvd sign``: a signature over a finished run."""

from pathlib import Path
from typing import Annotated

import typer

from dpvd.cli.console import print_json, print_line
from dpvd.cli.options import AsJson
from dpvd.errors import DpvdError
from dpvd.runs import create_key, sign_run, verify_run
from dpvd.settings import Group

__all__ = ["EXAMPLES", "sign"]

EXAMPLES = (
    "dpvd sign --new-key officer.key",
    "dpvd sign runs/first --key officer.key",
)


def sign(
    run: Annotated[
        Path | None, typer.Argument(help="Folder of a finished run.", show_default=False)
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            help="File of the private key to sign with. Required unless --new-key is given.",
            rich_help_panel=Group.DATA,
            show_default=False,
        ),
    ] = None,
    new_key: Annotated[
        Path | None,
        typer.Option(
            help="Make a key: private in this file, public in FILE.pub. Default: sign the run.",
            rich_help_panel=Group.OUTPUT,
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Sign a finished run, or make the key to sign with."""
    if new_key is not None:
        if run is not None or key is not None:
            raise DpvdError("--new-key makes a key and signs nothing: give it alone")
        public = create_key(new_key)
        if as_json:
            print_json({"signature": None, "public_key": str(public)})
            return
        print_line(f"private key {new_key}: keep it to yourself")
        print_line(f"public key {public}: for whoever runs dpvd verify RUN --key {public}")
        return
    if run is None or key is None:
        raise DpvdError("name the run and the key: dpvd sign RUN --key FILE")
    found = verify_run(run)
    if not found.holds:
        raise DpvdError(f"{run} is not signed, because it does not hold: {found.problems[0]}")
    signature = sign_run(run, key)
    if as_json:
        print_json({"signature": str(signature), "public_key": None})
    else:
        print_line(f"signature {signature}")
