"""``dpvd reproduce``: the paper's experiments, and what becomes of its claims."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dpvd.cli.console import print_json, print_line, print_text, say
from dpvd.cli.options import AsJson, DataDir
from dpvd.cli.progress import PlainLines
from dpvd.errors import DpvdError, positive_int
from dpvd.experiments import (
    PROTOCOLS,
    Artefacts,
    Experiment,
    ExperimentProtocol,
    Folder,
    Status,
    write_artefacts,
)
from dpvd.experiments import reproduce as run_missing
from dpvd.settings import Group

__all__ = ["EXAMPLES", "reproduce"]

EXAMPLES = (
    "dpvd reproduce all --quick --jobs 2",
    "dpvd reproduce table1 --dataset digits --out reproduction",
)

# By data set; the shorter MNIST protocol is the default: the long one has twenty times as many
# steps.
USUAL = {"digits": "digits-100", "mnist": "mnist-10"}
FULL = {"digits": "digits-100", "mnist": "mnist-200"}
QUICK = {"digits": "digits-quick", "mnist": "mnist-quick"}
# Two, so that trial runs never get among the others.
FOLDER = "reproduction"
QUICK_FOLDER = "reproduction-quick"
HOUR = 3600.0
RUNS = "Runs"  # a heading in the help


def reproduce(
    experiment: Annotated[
        Experiment,
        typer.Argument(help="A table, a figure, or all of them."),
    ] = Experiment.ALL,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Small networks and few epochs.", rich_help_panel=RUNS),
    ] = False,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="MNIST for the paper's 200 epochs instead of 10.",
            rich_help_panel=RUNS,
        ),
    ] = False,
    jobs: Annotated[
        int,
        typer.Option(
            help="Processes, each with one thread; 1 uses all threads in one.",
            rich_help_panel=RUNS,
        ),
    ] = 1,
    draw_only: Annotated[
        bool,
        typer.Option(
            "--draw-only",
            help="Run nothing: tables and figures of the records there are.",
            rich_help_panel=RUNS,
        ),
    ] = False,
    dataset: Annotated[
        str | None,
        typer.Option(help="Only digits, or only mnist. Default: both.", rich_help_panel=Group.DATA),
    ] = None,
    data_dir: DataDir = None,
    out_dir: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help=f"Folder of the results. Default: {FOLDER} (--quick: {QUICK_FOLDER}).",
            rich_help_panel=Group.OUTPUT,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the paper's experiments without a record; write tables, figures, verdicts."""
    protocols = _protocols(quick, full, dataset)
    positive_int(jobs=jobs)
    folder = Folder(out_dir or Path(QUICK_FOLDER if quick else FOLDER))
    run = 0
    if not draw_only:
        with _show_progress() as on_progress:
            run = run_missing(
                experiment,
                protocols,
                folder,
                processes=jobs,
                data_dir=data_dir,
                on_progress=on_progress,
            )
    with say.status("drawing"):
        folder.fold()
        # All that the folder holds, whatever was asked for this time: what it shows depends on its
        # records alone.
        artefacts = Artefacts.of(folder, folder.protocols() or protocols)
        page = write_artefacts(folder, artefacts)
    if as_json:
        print_json(
            {
                "run": run,
                "records": artefacts.runs,
                "verdicts": artefacts.verdicts,
                "page": str(page),
            }
        )
        return
    print_text(
        ", ".join(f"{verdict}: {count}" for verdict, count in artefacts.verdicts.items()), "bold"
    )
    print_line(f"{run} specs run, {artefacts.runs} records in all, page {page}")


def _protocols(quick: bool, full: bool, dataset: str | None) -> list[ExperimentProtocol]:
    if quick and full:
        raise DpvdError("--quick and --full are two different lengths: give one of them")
    names = QUICK if quick else FULL if full else USUAL
    if dataset is not None and dataset not in names:
        raise DpvdError(f"--dataset must be one of {', '.join(names)}; got {dataset!r}")
    return [PROTOCOLS[name] for key, name in names.items() if dataset in (None, key)]


@contextmanager
def _show_progress() -> Iterator[Callable[[Status], None]]:
    """A bar in a terminal, otherwise a line for each tenth of the work."""
    if say.is_terminal:
        with _bar() as show:
            yield show
        return
    lines = PlainLines()

    def log(status: Status) -> None:
        lines.update(status.done, status.total or 1.0, lambda: _words(status))

    yield log


def _words(status: Status) -> str:
    return f"{status.runs} of {status.of} specs"


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
                description=_words(status),
            )

        yield show
