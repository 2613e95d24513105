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
from dpvd.runs import LEDGER, RECORD, REPORT, RunRecord

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
    is_finished = (run / RECORD).exists()
    if not is_finished and (run / LEDGER).exists():
        _show_unfinished(run, as_json)
        return
    record = RunRecord.read(run)
    if as_json:
        print_json(record.to_dict())
        return
    print_text(record.guarantee["sentence"], "bold")
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in _rows(record).items():
        table.add_row(name, Text(value))
    out.print(table, soft_wrap=False)
    print_line(f"report {run / REPORT}")


def _rows(record: RunRecord) -> dict[str, str]:
    """What the table shows, by name."""
    test = record.test
    dataset = record.dataset
    rows = {
        **_results(test),
        "data": f"{dataset['name']}, {dataset['train']:,} to train, {dataset['test']:,} to test",
        "network": ", ".join(record.model["layers"]),
        "method": f"{record.method}, seed {record.seed}",
        "plan": _phrase(record.plan),
        "recipe": _phrase(record.recipe),
        "training": f"{record.seconds:.1f} s, {record.created}, dpvd {record.version}",
    }
    if record.sparsity:
        total = record.sparsity["total"]
        threshold = record.sparsity["threshold"]
        rows["prunable"] = (
            f"{total['pruned']:,} of {total['weights']:,} weights (log α ≥ {threshold:g})"
        )
    return rows


def _results(test: Mapping[str, Any]) -> dict[str, str]:
    """What was measured on the test data, if anything was."""
    if test["accuracy"] is None:
        errors = {name: f"{test[name]:.4g}" for name in ("rmse", "mae", "coverage") if name in test}
        return errors or {"test accuracy": "not measured"}
    low, high = test["interval"]
    return {
        "test accuracy": f"{test['accuracy']:.4f} (95 % interval {low:.4f} to {high:.4f})",
        "calibration error": f"{test['calibration_error']:.4f}",
    }


def _phrase(values: Mapping[str, Any]) -> str:
    """Settings in words: batch size 200, clipping (mode automatic, clip norm 1)."""
    phrases = []
    for name, value in values.items():
        is_in_statement = isinstance(value, list)
        if value is not None and not is_in_statement:
            words = name.replace("_", " ")
            phrases.append(f"{words} {_short(value)}")
    return ", ".join(phrases)


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return f"({_phrase(value)})"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _show_unfinished(run: Path, as_json: bool) -> None:
    ledger = Ledger.open(run / LEDGER)
    steps = ledger.plan["steps"]
    if as_json:
        print_json(
            {"finished": False, "charged": ledger.charged, "steps": steps, "plan": ledger.plan}
        )
        return
    print_text(f"unfinished: {ledger.charged} of {steps} steps are charged.")
    print_line(f"To continue, rerun the command that started it with --out {run} --resume")
