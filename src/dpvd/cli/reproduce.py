"""``dpvd reproduce``: the paper's experiments, and what becomes of its claims."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dpvd.cli.console import print_json, print_line, print_text, say
from dpvd.cli.options import AsJson
from dpvd.errors import DpvdError, positive_int
from dpvd.experiments import (
    PROTOCOLS,
    Artefacts,
    Experiment,
    Folder,
    Protocol,
    Status,
    write_artefacts,
)
from dpvd.experiments import reproduce as run_missing

__all__ = ["reproduce"]

# By data set; the shorter MNIST protocol is the default: the long one has twenty times as many steps.
USUAL = {"digits": "digits-100", "mnist": "mnist-10"}
FULL = {"digits": "digits-100", "mnist": "mnist-200"}
QUICK = {"digits": "digits-quick", "mnist": "mnist-quick"}
FOLDER, QUICK_FOLDER = "reproduction", "reproduction-quick"  # two, so that trial runs never get among the others
HOUR = 3600.0


def reproduce(
    experiment: Annotated[Experiment, typer.Argument(help="A table, a figure, or all of them.")] = Experiment.ALL,
    quick: Annotated[bool, typer.Option("--quick", help="Small networks and few epochs.")] = False,
    full: Annotated[bool, typer.Option("--full", help="MNIST for the paper's 200 epochs instead of 10.")] = False,
    dataset: Annotated[str | None, typer.Option(help="Only digits, or only mnist. Default: both.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes, each with one thread; 1 uses all threads in one.")] = 1,
    draw_only: Annotated[
        bool, typer.Option("--draw-only", help="Run nothing: tables and figures of what is there.")
    ] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Where MNIST's files are.")] = None,
    out_dir: Annotated[
        Path | None,
        typer.Option("--out", help=f"Folder of records, tables and figures. Default: {FOLDER}, or {QUICK_FOLDER}."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the paper's experiments that have no record yet, and write tables, figures and verdicts."""
    protocols = _protocols(quick, full, dataset)
    positive_int(jobs=jobs)
    folder = Folder(out_dir or Path(QUICK_FOLDER if quick else FOLDER))
    run = 0
    if not draw_only:
        with _bar() as on_progress:
            run = run_missing(experiment, protocols, folder, processes=jobs, data_dir=data_dir, on_progress=on_progress)
    with say.status("drawing"):
        # All that the folder holds, whatever was asked for this time: what it shows depends on its records alone.
        artefacts = Artefacts.of(folder, folder.protocols() or protocols)
        page = write_artefacts(folder, artefacts)
    if as_json:
        print_json({"run": run, "records": artefacts.runs, "verdicts": artefacts.verdicts, "page": str(page)})
        return
    print_text(", ".join(f"{verdict}: {count}" for verdict, count in artefacts.verdicts.items()), "bold")
    print_line(f"{run} specs run, {artefacts.runs} records in all, page {page}")


def _protocols(quick: bool, full: bool, dataset: str | None) -> list[Protocol]:
    if quick and full:
        raise DpvdError("--quick and --full are two different lengths: give one of them")
    names = QUICK if quick else FULL if full else USUAL
    if dataset is not None and dataset not in names:
        raise DpvdError(f"data set must be one of {', '.join(names)}; got {dataset!r}")
    return [PROTOCOLS[name] for key, name in names.items() if dataset in (None, key)]


@contextmanager
def _bar() -> Iterator[Callable[[Status], None]]:
    """A bar over all that is missing; time left is judged by the pace of the last hour."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=False),
        TextColumn("left"),
    )
    with Progress(*columns, console=say, speed_estimate_period=HOUR) as progress:
        task = progress.add_task("0 specs", total=None)

        def show(status: Status) -> None:
            progress.update(
                task,
                completed=status.done,
                total=status.total or 1.0,
                description=f"{status.runs} of {status.of} specs",
            )

        yield show
