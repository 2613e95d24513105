"""``dpvd train``: a private model from one command."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from dpvd.cli.console import print_json, print_line, print_text, say
from dpvd.cli.options import AsJson, DataDir, takes_options, warn_of_large_delta
from dpvd.cli.progress import show_progress
from dpvd.data import load
from dpvd.errors import DpvdError
from dpvd.report import write_report
from dpvd.runs import REPORT, Method, RunOptions, RunRecord, execute, prepare_run
from dpvd.settings import Group

__all__ = ["EXAMPLES", "train"]

EXAMPLES = (
    "dpvd train digits --epsilon 1 --delta 1e-5 --out runs/first",
    "dpvd train mnist --epsilon 3 --delta 1e-5 --network cnn --data-dir ~/data",
)


@takes_options(RunOptions)
def train(
    dataset: Annotated[str, typer.Argument(help="digits or mnist")],
    options: RunOptions,
    data_dir: DataDir = None,
    out_dir: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder of the run. Default: a new one in runs/.",
            rich_help_panel=Group.OUTPUT,
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue the interrupted run in --out.",
            rich_help_panel=Group.OUTPUT,
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model on a data set; write model, record and report page into a folder."""
    if resume and out_dir is None:
        raise DpvdError("--resume needs --out: name the folder of the run to go on with")
    data = load(dataset, data_dir)
    if options.method is not Method.NONE:
        warn_of_large_delta(options.delta, len(data.train_x))
    with say.status("calibrating the noise"):
        run = prepare_run(options, data)
    folder = _new_folder(dataset, options.method) if out_dir is None else out_dir
    all_epochs = run.plan.steps * run.plan.batch_size / run.plan.examples
    with show_progress(all_epochs, options.epsilon) as on_step:
        record = execute(run, folder, resume=resume, on_step=on_step)
    with say.status("writing the report"):
        page = write_report(record, folder)
    if as_json:
        print_json(summary(record, folder))
    else:
        _show(record, page)


def summary(record: RunRecord, folder: Path) -> dict[str, Any]:
    """What scripts rely on. Names are added over time, never changed."""
    return {
        "test_accuracy": record.test["accuracy"],
        "epsilon": record.epsilon,
        "delta": record.guarantee["delta"],
        "noise_multiplier": record.plan["noise_multiplier"],
        "steps": record.guarantee["steps"],
        "run": str(folder),
        "method": record.method,
        "seed": record.seed,
        "batch_size": record.plan["batch_size"],
        "calibration_error": record.test["calibration_error"],
        "statement": record.guarantee["sentence"],
        "seconds": record.seconds,
        "report": str(folder / REPORT),
    }


def _show(record: RunRecord, page: Path) -> None:
    low, high = record.test["interval"]
    accuracy = record.test["accuracy"]
    print_text(record.guarantee["sentence"], "bold")
    print_text(
        f"test accuracy {accuracy:.3f} (95 % interval {low:.3f} to {high:.3f}), "
        f"calibration error {record.test['calibration_error']:.3f}"
    )
    print_line(f"trained in {record.seconds:.1f} s, report {page}")


def _new_folder(dataset: str, method: Method) -> Path:
    now = datetime.now(UTC)
    return Path("runs") / f"{dataset}-{method}-{now:%Y%m%d-%H%M%S}"
