"""``dpvd predict``: class probabilities, with their spread, from a finished run."""

import csv
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
import typer
from torch import Tensor

from dpvd.cli.console import print_json
from dpvd.cli.options import AsJson
from dpvd.errors import DpvdError, positive_int
from dpvd.runs import TrainedRun
from dpvd.settings import Group

__all__ = ["EXAMPLES", "predict"]

EXAMPLES = (
    "dpvd predict runs/first new.csv",
    "dpvd predict runs/first new.npy --samples 100 --out predictions.csv",
)


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    inputs: Annotated[
        Path,
        typer.Argument(help="Examples: .csv (one row each, no labels; a header is fine) or .npy"),
    ],
    samples: Annotated[
        int,
        typer.Option(help="Weight samples to average over.", rich_help_panel="Prediction"),
    ] = 32,
    out_file: Annotated[
        Path | None,
        typer.Option(
            "--out", help="CSV file to write. Default: stdout.", rich_help_panel=Group.OUTPUT
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
    trained = TrainedRun(run)
    x = _read(inputs)
    probabilities, spread = trained.predict_dist(x, samples)
    rows = _rows(probabilities, spread)
    if as_json:
        print_json(rows)
    elif out_file is None:
        _write_csv(rows, sys.stdout)
    else:
        try:
            with out_file.open("x", newline="", encoding="utf-8") as file:
                _write_csv(rows, file)
        except OSError as error:
            raise DpvdError(
                f"cannot write {out_file} ({error.strerror}): choose another --out"
            ) from error


def _rows(probabilities: Tensor, spread: Tensor) -> list[dict[str, Any]]:
    """The most likely class of each example, with its probability and the spread of that.

    Args:
        probabilities, spread: [examples, classes].
    """
    rows = []
    for index, label in enumerate(probabilities.argmax(1).tolist()):
        rows.append(
            {
                "row": index,
                "class": label,
                "probability": round(float(probabilities[index, label]), 6),
                "spread": round(float(spread[index, label]), 6),
            }
        )
    return rows


def _read(path: Path) -> Tensor:
    if not path.is_file():
        raise DpvdError(f"there is no file {path}")
    try:
        values = _read_npy(path) if path.suffix == ".npy" else _read_csv(path)
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


def _read_npy(path: Path) -> npt.NDArray[Any]:
    with path.open("rb") as file:
        return np.lib.format.read_array(file, allow_pickle=False)


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


def _write_csv(rows: list[dict[str, Any]], file: Any) -> None:
    writer = csv.DictWriter(file, ["row", "class", "probability", "spread"])
    writer.writeheader()
    writer.writerows(rows)
