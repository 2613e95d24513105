"""``dpvd show``: what a run was, what it promises and what it reached."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from dpvd.cli.console import out, print_json
from dpvd.cli.options import AsJson
from dpvd.errors import DpvdError
from dpvd.privacy import Ledger
from dpvd.runs import RunRecord

__all__ = ["show"]


def show(run: Annotated[Path, typer.Argument(help="Folder of a run.")], as_json: AsJson = False) -> None:
    """Show a run's statement, result and settings; of an unfinished run, what it has been charged."""
    if not run.is_dir():
        raise DpvdError(f"there is no run folder {run}")
    if not (run / "record.json").exists() and (run / "ledger.jsonl").exists():
        _show_unfinished(run, as_json)
        return
    record = RunRecord.read(run)
    if as_json:
        print_json(record.to_dict())
        return
    out.print(record.guarantee["sentence"], style="bold", highlight=False)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    low, high = record.test["interval"]
    rows = {
        "test accuracy": f"{record.test['accuracy']:.4f} (95 % interval {low:.4f} to {high:.4f})",
        "calibration error": f"{record.test['calibration_error']:.4f}",
        "data": f"{record.dataset['name']}, {record.dataset['train']:,} to train, {record.dataset['test']:,} to test",
        "network": ", ".join(record.model["layers"]),
        "method": f"{record.method}, seed {record.seed}",
        "plan": ", ".join(f"{key} {value}" for key, value in record.plan.items() if value not in (None, [])),
        "recipe": ", ".join(f"{key} {value}" for key, value in record.recipe.items()),
        "training": f"{record.seconds:.1f} s, {record.created}, dpvd {record.version}",
        "report": str(run / "report.html"),
    }
    if record.sparsity:
        total = record.sparsity["total"]
        rows["prunable"] = (
            f"{total['pruned']:,} of {total['weights']:,} weights (log α ≥ {record.sparsity['threshold']:g})"
        )
    for name, value in rows.items():
        table.add_row(name, value)
    out.print(table)


def _show_unfinished(run: Path, as_json: bool) -> None:
    ledger = Ledger.open(run / "ledger.jsonl")
    steps = ledger.plan["steps"]
    if as_json:
        print_json({"finished": False, "charged": ledger.charged, "steps": steps, "plan": ledger.plan})
    else:
        out.print(
            f"unfinished: {ledger.charged} of {steps} steps are charged. Go on with the command that started it, "
            f"and --out {run} --resume",
            highlight=False,
        )
