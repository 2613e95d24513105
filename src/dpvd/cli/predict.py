"""``dpvd predict``: class probabilities, with their spread, from a finished run."""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor

from dpvd.cli.console import print_json
from dpvd.cli.options import AsJson
from dpvd.cli.table_flags import DelimiterFlag, EncodingFlag, delimiter_mark
from dpvd.cli.table_predictions import TablePredictions
from dpvd.data import open_table, read_array, read_file
from dpvd.errors import DpvdError, positive_int
from dpvd.files import replacing
from dpvd.runs import RunRecord, TrainedRun, TrainedTable
from dpvd.settings import Group

__all__ = ["EXAMPLES", "predict"]

EXAMPLES = (
    "dpvd predict runs/first new.csv",
    "dpvd predict runs/patients new.csv --coverage 0.9 --out predictions.csv",
)

COLUMNS = ["row", "class", "probability", "spread"]
_SEPARATOR = ";"  # between the classes of a set


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    inputs: Annotated[
        Path,
        typer.Argument(
            help="A table with the columns of the one trained on; or, for networks, numbers: .csv"
            " (one row each, no labels), .npy or .npz"
        ),
    ],
    samples: Annotated[
        int,
        typer.Option(help="Weight samples to average over.", rich_help_panel="Prediction"),
    ] = 32,
    coverage: Annotated[
        float | None,
        typer.Option(
            help="Of a network trained with --prediction-sets: a column set, whose classes hold the"
            " true one with this probability. Of a table: share of these rows to answer; the least"
            " certain others are marked in a column abstain. Default: no such column.",
            metavar="SHARE",
            rich_help_panel="Prediction",
        ),
    ] = None,
    delimiter: DelimiterFlag = None,
    encoding: EncodingFlag = None,
    out_file: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="CSV file to write. Default: stdout.", rich_help_panel=Group.OUTPUT
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict each example's class, its probability, and the spread of the probability."""
    positive_int(samples=samples)
    if out_file is not None and as_json:
        raise DpvdError("give --out or --json, not both")
    if out_file is not None and out_file.exists():
        raise DpvdError(f"{out_file} exists already: choose another --out")
    if RunRecord.read(run).table:
        source = open_table(inputs, delimiter=delimiter_mark(delimiter), encoding=encoding)
        predictions = TablePredictions(TrainedTable(run), source, samples, coverage)
        columns = predictions.columns
        rows = predictions.rows()
    else:
        of_tables = {"--delimiter": delimiter, "--encoding": encoding}
        for flag, value in of_tables.items():
            if value is not None:
                raise DpvdError(f"{flag} can be given for tables only")
        columns = COLUMNS if coverage is None else [*COLUMNS, "set"]
        rows = iter(_network_rows(TrainedRun(run), inputs, samples, coverage))
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    elif out_file is None:
        _write_csv(columns, map(_as_text, rows), sys.stdout)
    else:
        _write_file(columns, map(_as_text, rows), out_file)


def _as_text(row: list[Any]) -> list[Any]:
    """A row of a CSV file: the classes of a set stand in one cell."""
    return [_SEPARATOR.join(map(str, cell)) if isinstance(cell, list) else cell for cell in row]


def _network_rows(
    trained: TrainedRun, inputs: Path, samples: int, coverage: float | None
) -> list[list[Any]]:
    """The most likely class of each example, with its probability and the spread of that; and the
    classes of its prediction set, if these are asked for.
    """
    x = _read(inputs)
    sets = None if coverage is None else trained.predict_sets(x, coverage)  # [examples, classes]
    probabilities, spread = trained.predict_dist(x, samples)
    names = trained.record.dataset.get("class_names") or list(range(probabilities.shape[1]))
    rows = []
    for index, label in enumerate(probabilities.argmax(1).tolist()):
        probability = round(float(probabilities[index, label]), 6)
        deviation = round(float(spread[index, label]), 6)
        row = [index, names[label], probability, deviation]
        if sets is not None:
            row.append([names[place] for place in sets[index].nonzero().flatten().tolist()])
        rows.append(row)
    return rows


def _read(path: Path) -> Tensor:
    if not path.is_file():
        raise DpvdError(f"there is no file {path}")
    try:
        values = _values(path)
        # Too large for float32 becomes infinite, and is refused below.
        with np.errstate(over="ignore"):
            x = torch.from_numpy(np.asarray(values).astype(np.float32, casting="same_kind"))
    except (ValueError, TypeError, OSError, csv.Error) as error:
        raise DpvdError(
            f"{path} cannot be read as numbers, one example per row: {error}"
        ) from error
    if x.numel() == 0:
        raise DpvdError(f"{path} holds no examples")
    if x.dim() < 2:
        raise DpvdError(
            f"{path} must hold one example per row, got an array of shape {tuple(x.shape)}"
        )
    bad = (~torch.isfinite(x.flatten(1)).all(1)).nonzero().flatten()
    if len(bad):
        raise DpvdError(
            f"{len(bad)} of {len(x)} rows of {path} contain NaN or infinity, first row"
            f" {int(bad[0])} (from 0)"
        )
    return x


def _values(path: Path) -> Any:
    if path.suffix == ".npz":
        return read_array(path)
    return read_file(path) if path.suffix == ".npy" else _read_csv(path)


def _read_csv(path: Path) -> list[list[float]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file) if row]
    if rows and not any(map(_is_number, rows[0])):
        rows = rows[1:]  # a header
    if len({len(row) for row in rows}) > 1:
        raise ValueError("rows have different lengths")
    return [[float(value) for value in row] for row in rows]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _write_file(columns: list[str], rows: Iterator[list[Any]], path: Path) -> None:
    """Write the whole file or none: a row that cannot be read leaves nothing behind."""
    if not path.parent.is_dir():
        raise DpvdError(f"cannot write {path}, there is no such folder: choose another --out")
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        _write_csv(columns, rows, file)


def _write_csv(columns: list[str], rows: Iterator[list[Any]], file: Any) -> None:
    writer = csv.writer(file)
    first = next(rows, None)  # before the header: what is wrong with it is told by its line alone
    writer.writerow(columns)
    if first is not None:
        writer.writerow(first)
    writer.writerows(rows)
