"""``dpvd train``: a private model from one command."""

import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from dpvd.cli.console import print_json, print_line, print_text, say, warn
from dpvd.cli.options import AsJson, DataDir, takes_options, warn_of_large_delta
from dpvd.cli.processes import (
    go_on_alone,
    launch,
    name_of_launch,
    rank_of_launcher,
    restarts,
    together,
)
from dpvd.cli.progress import show_features, show_progress
from dpvd.cli.table_flags import DelimiterFlag, EncodingFlag, delimiter_mark
from dpvd.data import ARRAY_ENDINGS, Dataset, holds_images, load
from dpvd.errors import DpvdError, positive_int
from dpvd.ranks import ALONE, Ranks, processes_around
from dpvd.report import write_report
from dpvd.runs import (
    CHECKSUM_KEY,
    OPTIONS,
    REPORT,
    Method,
    PreparedRun,
    RunOptions,
    RunRecord,
    TableChoice,
    execute,
    execute_table,
    load_images,
    prepare_run,
    prepare_table,
    read_key,
    resume_table,
)
from dpvd.runs.sweep import SweepRun, TrainOne, plan_sweep, sweep, total_in_words
from dpvd.settings import Group

__all__ = ["EXAMPLES", "train"]

EXAMPLES = (
    "dpvd train digits --epsilon 1 --delta 1e-5 --out runs/first",
    "dpvd train patients.csv --schema schema.toml --epsilon 1 --delta 1e-6 --test-fraction 0.2",
)

BUILT_IN = ("digits", "mnist")
KEY_BYTES = 32


def _data_flag(help: str, metavar: str) -> Any:
    return typer.Option(help=help, metavar=metavar, rich_help_panel=Group.DATA)


@dataclass(frozen=True)
class _Place:
    """Where a run is written, whether it is there already, and the secret of its split.

    Attributes:
        key: that of the other runs of a sweep; None has one drawn.
        ranks: the processes that train; the first of them writes.
    """

    folder: Path
    resume: bool
    key: bytes | None = None
    ranks: Ranks = ALONE


@takes_options(RunOptions, several=("method", "epsilon"))
def train(
    dataset: Annotated[
        str,
        typer.Argument(
            help="A table (CSV, Parquet, Arrow, .npz, .npy), images (.npz), or digits or mnist."
        ),
    ],
    given: Mapping[str, Any],
    target: Annotated[
        str | None, _data_flag("Column to predict. Default: that of the schema.", "COLUMN")
    ] = None,
    schema: Annotated[
        Path | None,
        _data_flag(
            "What is known of the table's columns; dpvd schema drafts it. Required unless"
            " --private-bounds is given.",
            "FILE",
        ),
    ] = None,
    id: Annotated[
        str | None,
        _data_flag(
            "Column that says to whom a row belongs: the guarantee is for all their rows."
            " Default: that of the schema, or every row stands for itself.",
            "COLUMN",
        ),
    ] = None,
    rows_per_unit: Annotated[
        int | None,
        _data_flag(
            "At most so many rows of one value of --id take part. Default: the schema's.", "ROWS"
        ),
    ] = None,
    test: Annotated[
        Path | None, _data_flag("Table to test on. Default: nothing is measured.", "FILE")
    ] = None,
    test_fraction: Annotated[
        float | None,
        _data_flag(
            "Part of the table or images to keep for the test. Default: nothing is kept.", "SHARE"
        ),
    ] = None,
    delimiter: DelimiterFlag = None,
    encoding: EncodingFlag = None,
    data_dir: DataDir = None,
    out_dir: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder of the run. Default: a new one in runs/.",
            rich_help_panel=Group.OUTPUT,
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            help="Runs with so many seeds, from --seed on. More than one, or several values of"
            " --method or --epsilon, make a sweep: one folder in --out for each run.",
            rich_help_panel=Group.TRAINING,
        ),
    ] = 1,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue the interrupted run in --out.",
            rich_help_panel=Group.OUTPUT,
        ),
    ] = False,
    processes: Annotated[
        int,
        typer.Option(
            help="Train a network on images with so many processes, which torchrun starts.",
            rich_help_panel=Group.TRAINING,
        ),
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Train a model on a data set; write model, record and report page into a folder."""
    if resume and out_dir is None:
        raise DpvdError("--resume needs --out: name the folder of the run to go on with")
    of_tables = {
        "--target": target,
        "--schema": schema,
        "--id": id,
        "--rows-per-unit": rows_per_unit,
        "--test": test,
        "--delimiter": delimiter,
        "--encoding": encoding,
    }
    if dataset not in BUILT_IN and not Path(dataset).suffix:
        raise DpvdError(
            f"data set must be one of digits, mnist, or a file such as patients.csv; got"
            f" {dataset!r}"
        )
    if dataset in BUILT_IN:
        _refuse_flags(of_tables | {"--test-fraction": test_fraction}, "a table of your own")
    elif _are_images(dataset):
        _refuse_flags(of_tables, "a table")

    is_sweep = seeds != 1 or any(isinstance(value, tuple) for value in given.values())
    is_table = dataset not in BUILT_IN and not _are_images(dataset)
    _check_processes(processes, is_sweep=is_sweep, is_table=is_table)
    asked: set[str] = set()  # identifiers that were asked about: once, however many runs there are

    def train_one(
        options: RunOptions, folder: Path, resume: bool, ranks: Ranks = ALONE
    ) -> RunRecord:
        place = _Place(folder, resume, _key_beside(folder) if is_sweep else None, ranks)
        if dataset in BUILT_IN:
            record = _train_network(options, load(dataset, data_dir), place)
        elif not is_table:
            record = _train_images(options, Path(dataset), test_fraction, place)
        else:
            choice = TableChoice(
                Path(dataset),
                target,
                schema,
                id,
                rows_per_unit,
                test,
                test_fraction,
                delimiter_mark(delimiter),
                encoding,
            )
            record = _train_table(options, choice, place, asked)
        if ranks.is_first and not (folder / REPORT).exists():
            with say.status("writing the report"):
                write_report(record, folder)
        return record

    if is_sweep:
        told_apart = of_tables | {"dataset": dataset, "--test-fraction": test_fraction}
        named = {name: None if value is None else str(value) for name, value in told_apart.items()}
        _sweep(given, seeds, out_dir, train_one, data=named, as_json=as_json)
        return
    options = RunOptions.from_given(given)
    if processes > 1 and processes_around() == 1:
        launch(processes)
        return
    if is_table:
        if rank_of_launcher() > 0:
            return
        go_on_alone()
        folder = out_dir or _new_folder(Path(dataset).stem, options.method)
        record = train_one(options, folder, resume or _goes_on(folder, ALONE))
    else:
        with together() as ranks:
            with ranks.together():
                folder = out_dir or _new_folder(Path(dataset).stem, options.method)
            folder = Path(os.fsdecode(ranks.bytes_of_first(os.fsencode(folder))))
            record = train_one(options, folder, resume or _goes_on(folder, ranks), ranks)
        if not ranks.is_first:
            return
    if as_json:
        print_json(summary(record, folder))
    else:
        _show(record, folder / REPORT)


def _check_processes(processes: int, *, is_sweep: bool, is_table: bool) -> None:
    """Raise for what several processes cannot share, and warn of those that have nothing to do."""
    positive_int(processes=processes)
    count = processes_around()
    if count > 1 and processes not in (1, count):
        raise DpvdError(
            f"--processes {processes} under a launcher that started {count}: leave out --processes,"
            " or the launcher"
        )
    several = max(processes, count)
    if several == 1:
        return
    if is_sweep:
        raise DpvdError(
            f"{several} processes train one run together: leave out --processes for a sweep, or"
            " give one seed, one --method and one --epsilon"
        )
    if is_table and processes > 1:
        raise DpvdError("a table is learnt by one process: leave out --processes")
    if is_table and rank_of_launcher() == 0:
        warn(f"a table is learnt by one process; the others of these {several} have nothing to do")


def _key_beside(folder: Path) -> bytes | None:
    """The key of the runs beside this one: all runs of a sweep are tested on the same rows."""
    for path in sorted(folder.parent.glob(f"*/{CHECKSUM_KEY}")):
        return read_key(path.parent)
    return None


def _are_images(dataset: str) -> bool:
    """Whether the arrays in a file are images; rows of numbers are a table."""
    return Path(dataset).suffix.lower() in ARRAY_ENDINGS and holds_images(dataset)


def _sweep(
    given: Mapping[str, Any],
    seeds: int,
    out_dir: Path | None,
    train_one: TrainOne,
    *,
    data: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Train all runs of a sweep that are not finished, and say what they cost together."""
    if out_dir is None:
        raise DpvdError("a sweep needs --out: name the folder that its runs go into")
    lists = {
        name: value if isinstance(value, tuple) else (value,)
        for name, value in given.items()
        if name in ("method", "epsilon") and value is not None
    }
    single = {name: value for name, value in given.items() if name not in lists}
    runs = plan_sweep(
        single,
        methods=[str(method) for method in lists.get("method", ())],
        epsilons=lists.get("epsilon", ()),
        seeds=seeds,
    )

    def announce(run: SweepRun, number: int, is_finished: bool) -> None:
        state = "is finished" if is_finished else "starts"
        say.print(f"run {number + 1} of {len(runs)}, {run.name}, {state}")

    result = sweep(runs, out_dir, train_one, data=data, on_run=announce)
    if as_json:
        print_json([summary(record, out_dir / name) for name, record in result.records.items()])
        return
    for name, record in result.records.items():
        print_line(f"{name}: {_result(record.test)}")
    print_text(total_in_words(result.total), "bold")


def _refuse_flags(flags: Mapping[str, object], what: str) -> None:
    for flag, value in flags.items():
        if value is not None:
            raise DpvdError(f"{flag} can be given for {what} only")


def _train_network(
    options: RunOptions,
    data: Dataset,
    place: _Place,
    *,
    not_covered: tuple[str, ...] = (),
    key: bytes | None = None,
    class_names: tuple[str, ...] = (),
    source: Path | None = None,
) -> RunRecord:
    if options.method is not Method.NONE:
        warn_of_large_delta(options.delta, len(data.train_x))
    with say.status("calibrating the noise"):
        run: PreparedRun = prepare_run(
            options,
            data,
            not_covered=not_covered,
            checksum_key=key,
            class_names=class_names,
            source=source,
        )
    all_epochs = run.plan.steps * run.plan.batch_size / run.plan.examples
    with (
        show_features() as on_features,
        show_progress(all_epochs, options.epsilon) as on_step,
    ):
        return execute(
            run,
            place.folder,
            resume=place.resume,
            on_step=on_step,
            on_features=on_features,
            group=place.ranks.group,
        )


def _train_images(
    options: RunOptions, path: Path, test_fraction: float | None, place: _Place
) -> RunRecord:
    if path.suffix.lower() == ".npy":
        raise DpvdError(
            f"{path} holds no rows of numbers: save images x and labels y into one .npz file with"
            " np.savez"
        )
    key = place.key or secrets.token_bytes(KEY_BYTES)
    if place.resume:
        key = read_key(place.folder)
    key = place.ranks.bytes_of_first(key)
    images = load_images(path, test_fraction=test_fraction, key=key)
    return _train_network(
        options,
        images.dataset,
        place,
        not_covered=images.not_covered,
        key=key,
        class_names=images.classes,
        source=path,
    )


def _train_table(
    options: RunOptions, choice: TableChoice, place: _Place, asked: set[str]
) -> RunRecord:
    if place.resume:
        return resume_table(options, choice, place.folder)
    with say.status("reading the table"):
        run = prepare_table(options, choice, place.key)
    if options.method is not Method.NONE:
        warn_of_large_delta(options.delta, run.base.examples)
    _ask_about_identifiers([name for name in run.identifiers if name not in asked])
    asked.update(run.identifiers)
    with say.status("learning"):
        return execute_table(run, place.folder)


def _ask_about_identifiers(identifiers: Sequence[str]) -> None:
    """A guarantee for one row may be less than what people expect: say so before it is spent."""
    for name in identifiers:
        warn(
            f'column "{name}" looks like an identifier with repeats: if one person has several'
            f" rows, give --id {name}; otherwise the guarantee is for one row, not for a person"
        )
    can_ask = sys.stdin.isatty() and say.is_terminal
    question = "Go on with a guarantee for one row?"
    if identifiers and can_ask and not typer.confirm(question, err=True):
        raise DpvdError("stopped, as you asked: nothing was charged or written")


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
        "auc": record.test.get("auc"),
        "rmse": record.test.get("rmse"),
        "statement": record.guarantee["sentence"],
        "seconds": record.seconds,
        "report": str(folder / REPORT),
    }


def _show(record: RunRecord, page: Path) -> None:
    print_text(record.guarantee["sentence"], "bold")
    print_text(_result(record.test))
    print_line(f"trained in {record.seconds:.1f} s, report {page}")


def _result(test: dict[str, Any]) -> str:
    if test["accuracy"] is not None:
        low, high = test["interval"]
        area = f", AUC {test['auc']:.3f}" if test.get("auc") is not None else ""
        return (
            f"test accuracy {test['accuracy']:.3f} (95 % interval {low:.3f} to {high:.3f}){area}, "
            f"calibration error {test['calibration_error']:.3f}"
        )
    if "rmse" in test:
        return (
            f"test error (RMSE) {test['rmse']:.4g}, mean absolute error {test['mae']:.4g}, "
            f"{100 * test['coverage']:.0f} % of the 90 % intervals hold the truth"
        )
    return "not measured: there was nothing to test on (--test or --test-fraction)"


def _new_folder(dataset: str, method: Method) -> Path:
    """Named by the time, or, under a launcher, so that a restart finds it again."""
    now = datetime.now(UTC)
    start = name_of_launch() or f"{now:%Y%m%d-%H%M%S}"
    return Path("runs") / f"{dataset}-{method}-{start}"


def _goes_on(folder: Path, ranks: Ranks) -> bool:
    """Whether a launcher's restart finds what its first start began; it goes on with that."""
    is_restart = ranks.largest(restarts()) > 0  # launchers of other machines count for themselves
    has_begun = ranks.largest(int((folder / OPTIONS).exists()))  # the first process has made it
    return is_restart and bool(has_begun)
