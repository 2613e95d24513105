"""``dpvd account``: the one budget of a data set."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from dpvd.cli.console import out, print_json, print_line
from dpvd.cli.options import AsJson
from dpvd.errors import DpvdError
from dpvd.privacy import DataAccount, Drawn, Relation, round_up
from dpvd.settings import Group

__all__ = ["EXAMPLES", "account"]

EXAMPLES = (
    "dpvd account patients.account --epsilon 3 --delta 1e-6",
    "dpvd account patients.account",
)


def account(
    file: Annotated[Path, typer.Argument(help="File of the account.")],
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Make the account: limit of ε for everything that is ever done to the data."
            " Default: show it.",
            rich_help_panel=Group.PRIVACY,
            show_default=False,
        ),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            help="δ of the limit, with --epsilon. Default: show the account.",
            rich_help_panel=Group.PRIVACY,
            show_default=False,
        ),
    ] = None,
    relation: Annotated[
        Relation | None,
        typer.Option(
            help="Which data sets are neighbours, for all runs. Default: add-or-remove.",
            rich_help_panel=Group.PRIVACY,
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show who drew what from a data set's account, or make one with a limit (ε, δ)."""
    if epsilon is None and delta is None and relation is None:
        found = DataAccount.open(file)
    elif epsilon is None or delta is None:
        raise DpvdError("an account is made with a limit: give both --epsilon and --delta")
    else:
        neighbours = Relation.ADD_OR_REMOVE if relation is None else relation
        found = DataAccount.create(file, epsilon=epsilon, delta=delta, relation=neighbours)
    if as_json:
        print_json(_as_dict(found))
    else:
        _show(found)


def _as_dict(found: DataAccount) -> dict[str, object]:
    spent = found.spent
    return {
        "account": str(found.path),
        "limit": {"epsilon": found.epsilon, "delta": found.delta},
        "relation": str(found.relation),
        "spent": spent,
        "remaining": max(0.0, found.epsilon - spent),
        "runs": [
            {
                "who": each.who,
                "at": each.at,
                "epsilon": found.cost_of([each.cost]),
                "settled": each.settled,
                "data": each.data,
            }
            for each in found.drawn
        ],
    }


def _show(found: DataAccount) -> None:
    spent = found.spent
    print_line(
        f"limit ({found.epsilon:g}, {found.delta:g}) under {found.relation}:"
        f" {round_up(spent)} is drawn"
    )
    if not found.drawn:
        print_line(f"nothing is drawn yet: dpvd train ... --account {found.path}")
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("when", "who", "ε alone", "state", "data"):
        table.add_column(name)
    for each in found.drawn:
        alone = round_up(found.cost_of([each.cost]))
        table.add_row(*map(Text, (each.at, each.who, alone, _state(each), _data(each))))
    out.print(table, soft_wrap=False)
    print_line(
        f"ε of all together, composed, is {round_up(spent)}; what each costs alone does not add up"
        " to it"
    )


def _state(drawn: Drawn) -> str:
    return "settled" if drawn.settled else "reserved: running or interrupted"


def _data(drawn: Drawn) -> str:
    return "not compared" if drawn.data is None else drawn.data[:8]
