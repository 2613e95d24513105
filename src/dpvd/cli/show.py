"""``dpvd show``: what a run was, what it promises and what it reached."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from dpvd.cli.console import out, print_json, print_line, print_text
from dpvd.cli.options import AsJson
from dpvd.errors import DpvdError
from dpvd.privacy import Ledger
from dpvd.runs import RunRecord

__all__ = ["EXAMPLES", "show"]

EXAMPLES = (
    "dpvd show runs/first",
    "dpvd show runs/first --json",
)


def show(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    as_json: AsJson = False,
) -> None:
    """Show a run's statement, result and settings, or what an unfinished run was charged."""
    if not run.is_dir():
        raise DpvdError(f"there is no run folder {run}")
    if not (run / "record.json").exists() and (run / "ledger.jsonl").exists():
        _show_unfinished(run, as_json)
        return
    record = RunRecord.read(run)
    if as_json:
        print_json(record.to_dict())
        return
    print_text(record.guarantee["sentence"], "bold")
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    low, high = record.test["interval"]
    rows = {
        "test accuracy": f"{record.test['accuracy']:.4f} (95 % interval {low:.4f} to {high:.4f})",
        "calibration error": f"{record.test['calibration_error']:.4f}",
        "data": (
            f"{record.dataset['name']}, {record.dataset['train']:,} to train,"
            f" {record.dataset['test']:,} to test"
        ),
        "network": ", ".join(record.model["layers"]),
        "method": f"{record.method}, seed {record.seed}",
        "plan": _phrase(record.plan),
        "recipe": _phrase(record.recipe),
        "training": f"{record.seconds:.1f} s, {record.created}, dpvd {record.version}",
    }
    if record.sparsity:
        total = record.sparsity["total"]
        rows["prunable"] = (
            f"{total['pruned']:,} of {total['weights']:,} weights (log α ≥"
            f" {record.sparsity['threshold']:g})"
        )
    for name, value in rows.items():
        table.add_row(name, Text(value))
    out.print(table, soft_wrap=False)
    print_line(f"report {run / 'report.html'}")


def _phrase(values: Mapping[str, Any]) -> str:
    """Settings in words: batch size 200, noise multiplier 2.453, clipping (mode automatic, clip
    norm 1).
    """
    return ", ".join(
        f"{name.replace('_', ' ')} {_short(value)}"
        for name, value in values.items()
        if _is_set(value)
    )


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return f"({_phrase(value)})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _is_set(value: object) -> bool:
    """Lists are in the statement already."""
    return value is not None and not isinstance(value, list)


def _show_unfinished(run: Path, as_json: bool) -> None:
    ledger = Ledger.open(run / "ledger.jsonl")
    steps = ledger.plan["steps"]
    if as_json:
        print_json(
            {"finished": False, "charged": ledger.charged, "steps": steps, "plan": ledger.plan}
        )
    else:
        print_text(f"unfinished: {ledger.charged} of {steps} steps are charged.")
        print_line(f"To continue, rerun the command that started it with --out {run} --resume")
