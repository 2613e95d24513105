"""``dpvd compare``: several runs side by side."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dpvd.cli.console import print_json, print_line, print_text, warn
from dpvd.cli.options import AsJson
from dpvd.errors import DpvdError
from dpvd.files import write_atomically
from dpvd.privacy import round_up
from dpvd.report import png_bytes, svg_bytes
from dpvd.report.comparison import Comparison, Group, comparison_figure, read_runs, to_csv
from dpvd.report.comparison import compare as compare_runs
from dpvd.settings import Group as Panel

__all__ = ["EXAMPLES", "compare"]

EXAMPLES = (
    "dpvd compare runs/first runs/second",
    "dpvd compare runs/* --out runs.csv --figure runs.svg",
)

_FORMATS = {".svg": svg_bytes, ".png": png_bytes}


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.")],
    out_file: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="New file for the numbers of each run, as CSV. Default: none.",
            rich_help_panel=Panel.OUTPUT,
            show_default=False,
        ),
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            help="New .svg or .png: result and calibration against ε. Default: none.",
            rich_help_panel=Panel.OUTPUT,
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare finished runs: result, calibration and privacy, with means over seeds."""
    _check(out_file, figure)
    found = compare_runs(read_runs(runs))
    drawn = None
    if figure is not None:
        drawn = _FORMATS[figure.suffix](comparison_figure(found))
    for words in found.warnings:
        warn(words)
    if out_file is not None:
        write_atomically(out_file, to_csv(found.rows).encode("utf-8"))
    if figure is not None and drawn is not None:
        write_atomically(figure, drawn)
    if as_json:
        print_json(found.rows)
        return
    _show(found)
    for name, path in (("numbers", out_file), ("figure", figure)):
        if path is not None:
            print_line(f"{name} {path}")


def _check(out_file: Path | None, figure: Path | None) -> None:
    """Raise before anything is read if a file cannot be meant."""
    if figure is not None and figure.suffix not in _FORMATS:
        raise DpvdError(f"--figure must end in .svg or .png, got {figure}")
    for name, path in (("--out", out_file), ("--figure", figure)):
        if path is not None and path.exists():
            raise DpvdError(f"{name} must be a new file: {path} exists already")


_HEADINGS = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "rmse": "RMSE",
    "calibration_error": "calibration",
    "nll": "NLL",
}


def _show(found: Comparison) -> None:
    """One table for each data set, relation and δ; a line for each setting."""
    measures = [
        name for name in _HEADINGS if any(group.mean(name) is not None for group in found.groups)
    ]
    parts: dict[str, list[Group]] = {}
    for group in found.groups:
        privacy = f"{group.relation}, δ = {group.delta:g}"
        heading = "without privacy" if group.epsilon is None else privacy
        parts.setdefault(f"{group.data}, {heading}", []).append(group)
    for heading, groups in parts.items():
        print_text(heading, "bold")
        headings = ["method", "ε", "runs", *(_HEADINGS[each] for each in measures), "steps", "s"]
        _print_table([headings, *(_cells(group, measures) for group in groups)])
    if any(len(group.rows) > 1 for group in found.groups):
        print_text("mean ± standard deviation over runs that differ in their seed alone", "dim")
    if any(_interval(group) for group in found.groups):
        print_text("in brackets: 95 % interval of a single run", "dim")


def _print_table(rows: list[list[str]]) -> None:
    """Print columns below each other; no number is cut off, however narrow the terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *others = (
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print_line("  ".join([first, *others]).rstrip())


def _cells(group: Group, measures: list[str]) -> list[str]:
    seconds = [row["seconds"] for row in group.rows if row["seconds"] is not None]
    return [
        group.method,
        "∞" if group.epsilon is None else round_up(group.epsilon),
        str(len(group.rows)),
        *(_measured(group, name) for name in measures),
        str(group.rows[0]["steps"]),
        f"{sum(seconds) / len(seconds):.1f}" if seconds else "",
    ]


def _measured(group: Group, name: str) -> str:
    mean = group.mean(name)
    if mean is None:
        return ""
    spread = group.spread(name)
    if spread is not None:
        return f"{_short(mean)} ±{_short(spread)}"
    interval = _interval(group) if name == "accuracy" else None
    if interval is None:
        return _short(mean)
    return f"{_short(mean)} [{_short(interval[0])}, {_short(interval[1])}]"


def _short(value: float) -> str:
    """Three decimals of a share, four digits of what may be large."""
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"


def _interval(group: Group) -> tuple[Any, Any] | None:
    """The interval of the accuracy, if it is of one run."""
    row = group.rows[0]
    ends = (row["accuracy_low"], row["accuracy_high"])
    return ends if len(group.rows) == 1 and None not in ends else None
