"""``dpvd plan``: what each ε buys for a table of a given shape, before any data is touched."""

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from dpvd import __version__
from dpvd.cli.console import out, print_json, print_line, print_text, say
from dpvd.cli.options import AsJson, Delta, warn_of_large_delta
from dpvd.errors import DpvdError
from dpvd.files import HANDED_OUT, write_atomically
from dpvd.report.planner_page import PlannerRow, planner_rows, render_planner
from dpvd.runs.planner import DEFAULT_EPSILONS, Offer, offers
from dpvd.runs.rehearsal import Shape
from dpvd.settings import Group

__all__ = ["EXAMPLES", "plan"]

_TABLE = "--examples 30000 --features 100 --classes 2 --delta 1e-6"
EXAMPLES = (
    f"dpvd plan {_TABLE}",
    f"dpvd plan {_TABLE} --epsilon 0.5,1,2 --html plan.html",
)
MOST_EPSILONS = 20
_USUAL = ",".join(map("{:g}".format, DEFAULT_EPSILONS))


def plan(
    examples: Annotated[
        int,
        typer.Option(
            help="N, rows to train on.", show_default=False, rich_help_panel=Group.TRAINING
        ),
    ],
    features: Annotated[
        int,
        typer.Option(
            help="Features per row: numbers, and categories one by one.",
            show_default=False,
            rich_help_panel=Group.TRAINING,
        ),
    ],
    classes: Annotated[
        int,
        typer.Option(
            help="Classes to tell apart.", show_default=False, rich_help_panel=Group.TRAINING
        ),
    ],
    delta: Delta,
    epsilon: Annotated[
        str,
        typer.Option(help="ε to compare, separated by commas.", rich_help_panel=Group.PRIVACY),
    ] = _USUAL,
    unit_rows: Annotated[
        int,
        typer.Option(
            help="Rows that one person may have; the table says what they cost together.",
            rich_help_panel=Group.PRIVACY,
        ),
    ] = 10,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Expected batch size of a network on images, which is planned then. Default: the"
            " recipe for tables, in which all rows take part in every step.",
            rich_help_panel=Group.TRAINING,
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write a page with a slider there as well. Default: no page.",
            rich_help_panel=Group.OUTPUT,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what each ε buys for a table of this shape: noise, limits on attacks, accuracy."""
    epsilons = _parse(epsilon)
    if html is not None and html.exists():
        raise DpvdError(f"html must be a new file: {html} exists already")
    shape = Shape(examples, features, classes)
    with say.status("planning") as status:
        found = offers(
            shape,
            epsilons,
            delta,
            batch_size=batch_size,
            unit_rows=unit_rows,
            on_offer=lambda each: status.update(f"ε = {each:g}: accounting and rehearsing"),
        )
    warn_of_large_delta(delta, examples)
    relation = found[0].plan.relation
    values = [offer.to_dict() for offer in found]
    rows = planner_rows(values, [offer.interpretation for offer in found], relation)
    if html is not None:
        _write(html, rows, shape, found[0])
    if as_json:
        print_json(values)
        return
    _show(shape, found[0], rows)
    if html is not None:
        print_line(f"page {html}")


def _parse(text: str) -> list[float]:
    try:
        epsilons = [float(part) for part in text.split(",")]
    except ValueError:
        raise DpvdError(
            f"epsilon must be numbers separated by commas, such as 0.5,1,2; got {text!r}"
        ) from None
    if len(epsilons) > MOST_EPSILONS:
        raise DpvdError(f"epsilon must be at most {MOST_EPSILONS} numbers, got {len(epsilons)}")
    return epsilons


def _write(path: Path, rows: list[PlannerRow], shape: Shape, first: Offer) -> None:
    page = render_planner(
        rows,
        {
            "examples": shape.examples,
            "features": shape.features,
            "classes": shape.classes,
            "delta": first.delta,
            "unit_rows": first.unit_rows,
            "rehearsed_rows": first.rehearsal.rows,
            "rehearsed": _what(first),
            "version": __version__,
        },
    )
    try:
        write_atomically(path, page.encode("utf-8"), mode=HANDED_OUT)
    except OSError as error:
        raise DpvdError(f"html must be a file that can be written: {error}") from error


def _show(shape: Shape, first: Offer, rows: list[PlannerRow]) -> None:
    print_text(
        f"{shape.examples:,} rows, {shape.features:,} features, {shape.classes} classes,"
        f" δ = {first.delta:g}, adding or removing one row",
        "bold",
    )
    if first.recipe == "mlp":
        print_text(f"batches of {first.plan.batch_size:,}, {first.plan.steps:,} steps")
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    columns = {
        "recipe": "recipe",
        "noise z": "noise",
        "guess ≤": "guess",
        "found ≤": "found",
        "belief ≤": "belief",
        f"{first.unit_rows} rows": "group",
        "rehearsed": "accuracy",
    }
    for heading in ("ε", *columns):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.epsilon, *(row.values[name] for name in columns.values()))
    out.print(table)
    for line in _notes(shape, first):
        print_text(line, "dim")


def _notes(shape: Shape, first: Offer) -> list[str]:
    fewer = first.rehearsal.rows < shape.examples
    size = " (fewer than yours, with noise that matters as much: on the low side)" if fewer else ""
    return [
        _recipe_note(first),
        "guess: right answers on whether one row was used, at even odds.",
        "found: rows found by a test that wrongly reports 1 % of the others.",
        "belief: what a belief of 50 % can grow to, but for a probability of δ.",
        f"{first.unit_rows} rows: ε of so many rows together, such as one person's.",
        f"rehearsed: test accuracy of {_what(first)} on {first.rehearsal.rows:,} made-up"
        f" rows{size}, from a weak to a strong signal; no forecast for your table.",
    ]


def _what(first: Offer) -> str:
    """What is rehearsed."""
    return "a small private network" if first.recipe == "mlp" else "the recipe for tables"


def _recipe_note(first: Offer) -> str:
    if first.recipe == "mlp":
        return "recipe: the network for images; noise z: of each step, over the clip norm."
    return (
        "recipe: a linear model from noisy statistics, or by private steps, or a small network;"
        " noise z: of one sum over all rows that costs as much as the whole recipe."
    )
