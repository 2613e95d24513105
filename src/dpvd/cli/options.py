"""Options that several commands share, and the groups that help shows options in."""

from pathlib import Path
from typing import Annotated

import typer

from dpvd.cli.console import warn
from dpvd.errors import DpvdError
from dpvd.privacy import AccountantName, Relation, SamplingKind

__all__ = [
    "DATA",
    "OUTPUT",
    "PRIVACY",
    "TRAINING",
    "AsJson",
    "DataDir",
    "Delta",
    "RelationChoice",
    "SamplingChoice",
    "parse_accountant",
    "warn_of_large_delta",
]

# Headings in the help. Data and output are two groups: what is read, what is written.
PRIVACY = "Privacy"
TRAINING = "Training"
DATA = "Data"
OUTPUT = "Output"

Delta = Annotated[
    float,
    typer.Option(
        help="δ of the guarantee; should be well below 1/N.",
        show_default=False,
        rich_help_panel=PRIVACY,
    ),
]
RelationChoice = Annotated[
    Relation,
    typer.Option(
        help="Which data sets are neighbours: one example added or removed, or one replaced.",
        rich_help_panel=PRIVACY,
    ),
]
SamplingChoice = Annotated[
    SamplingKind,
    typer.Option(
        help="How batches are drawn: each example by itself, or a fixed number of them.",
        rich_help_panel=PRIVACY,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Folder with MNIST's files. Default: $DPVD_DATA_DIR, then the download cache.",
        rich_help_panel=DATA,
    ),
]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print the result as JSON on stdout, and nothing else there.",
        rich_help_panel=OUTPUT,
    ),
]


def parse_accountant(name: str) -> AccountantName:
    """For typer: 'moments' is another name of rdp."""
    try:
        return AccountantName.parse(name)
    except DpvdError as error:
        raise typer.BadParameter(str(error)) from None


def warn_of_large_delta(delta: float, examples: int) -> None:
    """A δ of 1/N or more is legal and protects next to nothing."""
    if delta >= 1 / examples:
        warn(
            f"--delta {delta:g} is not below 1/N = {1 / examples:.3g}: "
            "at this δ, publishing entire examples would be allowed"
        )
