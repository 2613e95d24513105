"""``dpvd verify``: whether the folder of a run is what it says."""

from pathlib import Path
from typing import Annotated

import typer

from dpvd.cli.console import print_json, print_line
from dpvd.cli.options import AsJson
from dpvd.runs import Verification, verify_run
from dpvd.settings import Group

__all__ = ["EXAMPLES", "verify"]

EXAMPLES = (
    "dpvd verify runs/first",
    "dpvd verify runs/first --key officer.pub",
)

DOES_NOT_HOLD = 1  # exit code


def verify(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    other: Annotated[
        Path | None,
        typer.Argument(
            help="Another folder: was one run copied, and resumed in both?", show_default=False
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            help="Public key that must have signed the run. Default: no signature is asked for.",
            rich_help_panel=Group.DATA,
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that a run's files, ledgers, statement and model belong together; ε anew."""
    found = verify_run(run, key, other)
    if as_json:
        print_json(_as_dict(found))
    else:
        for check in found.checks:
            mark = "ok      " if check.holds else "NOT OK  "
            print_line(f"{mark}{check.name}: {check.detail}")
        print_line(found.verdict)
    if not found.holds:
        raise typer.Exit(DOES_NOT_HOLD)


def _as_dict(found: Verification) -> dict[str, object]:
    return {
        "verified": found.holds,
        "problems": found.problems,
        "epsilon": found.epsilons,
        "checks": [
            {"name": check.name, "holds": check.holds, "detail": check.detail}
            for check in found.checks
        ],
    }
