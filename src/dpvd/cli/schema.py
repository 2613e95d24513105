"""``dpvd schema``: the first draft of a table's schema."""

from pathlib import Path
from typing import Annotated

import typer

from dpvd.cli.console import print_json, warn
from dpvd.cli.options import AsJson
from dpvd.cli.table_flags import DelimiterFlag, EncodingFlag, delimiter_mark
from dpvd.data import draft_schema, open_table
from dpvd.errors import DpvdError
from dpvd.files import create_private
from dpvd.settings import Group

__all__ = ["EXAMPLES", "schema"]

EXAMPLES = (
    "dpvd schema patients.csv --target diagnosis",
    "dpvd schema visits.parquet --target days --id patient_id --out schema.toml",
)


def schema(
    table: Annotated[
        Path, typer.Argument(metavar="FILE", help="CSV, Parquet, Arrow or Feather file.")
    ],
    target: Annotated[
        str,
        typer.Option(
            help="Column to predict.",
            show_default=False,
            metavar="COLUMN",
            rich_help_panel=Group.DATA,
        ),
    ],
    id: Annotated[
        str | None,
        typer.Option(
            help="Column that says to whom a row belongs. Default: every row stands for itself.",
            metavar="COLUMN",
            rich_help_panel=Group.DATA,
        ),
    ] = None,
    delimiter: DelimiterFlag = None,
    encoding: EncodingFlag = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write; one that exists is refused. Default: print it.",
            metavar="FILE",
            rich_help_panel=Group.OUTPUT,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draft the schema of a table from its rows, for somebody to go through.

    What is read off the data is not private; the draft marks every such line.
    """
    if out is not None and as_json:
        raise DpvdError("--out writes TOML and --json prints JSON: give one of them")
    if out is not None and (out.exists() or out.is_symlink()):
        raise DpvdError(f"--out {out} exists: name a new file, or remove it first")
    source = open_table(table, delimiter=delimiter_mark(delimiter), encoding=encoding)
    draft = draft_schema(source, target, id=id)
    if as_json:
        print_json(draft.schema.to_dict())
    elif out is None:
        print(draft.text, end="")
    else:
        _write_new(out, draft.text)
    for warning in draft.warnings:
        warn(warning)


def _write_new(path: Path, text: str) -> None:
    try:
        create_private(path, text.encode("utf-8"))
    except OSError as error:
        raise DpvdError(f"--out {path} cannot be written ({error.strerror})") from error
