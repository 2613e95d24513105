"""Four public tables with bounds that whoever knows the domain would write down, and splits."""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["TABLES", "Column", "Table", "encode", "is_hat", "load", "splits"]

Array = npt.NDArray[np.float64]
TABLES = ("adult", "german", "pima", "breast")
_LOG_RATIO = 100.0  # numbers whose bounds span more are taken on a logarithmic scale

_ADULT = {
    "age": (17, 90),
    "fnlwgt": (10_000, 1_500_000),
    "education_num": (1, 16),
    "capital_gain": (0, 100_000),
    "capital_loss": (0, 5_000),
    "hours_per_week": (1, 99),
}
_GERMAN = {
    "duration": (3, 72),
    "amount": (250, 20_000),
    "installment_rate": (1, 4),
    "residence_since": (1, 4),
    "age": (18, 80),
    "existing_credits": (1, 4),
    "liable_people": (1, 2),
}
_PIMA = {
    "pregnancies": (0, 20),
    "glucose": (40, 200),
    "blood_pressure": (20, 130),
    "skin_thickness": (5, 100),
    "insulin": (10, 900),
    "bmi": (15, 70),
    "pedigree": (0, 2.5),
    "age": (21, 90),
}
_ZERO_IS_MISSING = {"glucose", "blood_pressure", "skin_thickness", "insulin", "bmi"}
# Ranges as in the description that comes with the data set, rounded outwards.
_BREAST = [
    (6.5, 29), (9.5, 40), (43, 190), (140, 2600), (0.05, 0.17), (0.015, 0.35), (0, 0.43),
    (0, 0.21), (0.1, 0.31), (0.045, 0.1), (0.1, 2.9), (0.35, 4.9), (0.7, 22), (6.5, 545),
    (0.0015, 0.032), (0.002, 0.14), (0, 0.4), (0, 0.055), (0.0075, 0.08), (0.0005, 0.03),
    (7.5, 37), (12, 50), (50, 255), (180, 4300), (0.07, 0.225), (0.025, 1.06), (0, 1.26),
    (0, 0.3), (0.15, 0.67), (0.05, 0.21),
]  # fmt: skip


@dataclass(frozen=True)
class Column:
    """A column: numbers with bounds, some of which may be missing (NaN), or the places of
    categories in a list.
    """

    values: Array
    low: float = 0.0
    high: float = 0.0
    may_be_missing: bool = False
    categories: int = 0


@dataclass(frozen=True)
class Table:
    """Columns, classes 0 and 1, and how many of the first rows are the standard training part."""

    name: str
    columns: list[Column]
    y: npt.NDArray[np.int64]
    training: int | None = None


def load(name: str, folder: Path) -> Table:
    """One of the four tables; the files of three of them lie in ``folder``."""
    if name == "breast":
        from sklearn.datasets import load_breast_cancer

        data = load_breast_cancer()
        columns = [
            Column(values, *bounds) for values, bounds in zip(data.data.T, _BREAST, strict=True)
        ]
        return Table(name, columns, data.target.astype(np.int64))
    if name == "adult":
        head, first = _read(folder / "adult-train.csv")
        _, second = _read(folder / "adult-test.csv")
        rows = first + second
        y = np.array([row[-1].startswith(">50K") for row in rows], dtype=np.int64)
        return Table(name, _columns(head, rows, _ADULT), y, len(first))
    file, positive, bounds = {
        "german": ("german-credit.csv", "2", _GERMAN),
        "pima": ("pima.csv", "1", _PIMA),
    }[name]
    head, rows = _read(folder / file)
    y = np.array([row[-1] == positive for row in rows], dtype=np.int64)
    return Table(name, _columns(head, rows, bounds), y)


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    with open(path, newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    stripped = []
    for row in rows:
        if row:
            stripped.append([cell.strip() for cell in row])
    return head, stripped


def _columns(
    head: list[str], rows: list[list[str]], bounds: dict[str, tuple[float, float]]
) -> list[Column]:
    columns = []
    for place, name in enumerate(head[:-1]):
        cells = [row[place] for row in rows]
        if name in bounds:
            values = np.array(cells, dtype=float)
            if name in _ZERO_IS_MISSING:
                values[values == 0] = np.nan
            columns.append(Column(values, *bounds[name], name in _ZERO_IS_MISSING))
        else:
            known = sorted(set(cells))  # the code book of a public table
            codes = np.array([known.index(cell) for cell in cells], dtype=float)
            columns.append(Column(codes, categories=len(known)))
    return columns


def encode(table: Table, knots: int) -> tuple[Array, npt.NDArray[np.int64]]:
    """Features, and the column that each comes from.

    Categories are one-hot, less one over their number. A number is its place between the bounds,
    within [-1, 1], whether it is missing, and hat functions at so many knots.
    """
    parts: list[Array] = []
    groups: list[int] = []
    for place, column in enumerate(table.columns):
        if column.categories:
            codes = column.values.astype(int)
            one_hot = np.eye(column.categories)[codes]
            part = one_hot - 1 / column.categories
        else:
            part = _encode_number(column, knots)
        parts.append(part)
        groups += [place] * part.shape[1]
    return np.hstack(parts), np.array(groups)


def is_hat(table: Table, knots: int) -> npt.NDArray[np.bool_]:
    """Which of the features of `encode` are hat functions: the last ones of every number."""
    marks: list[bool] = []
    for column in table.columns:
        if column.categories:
            marks += [False] * column.categories
        else:
            marks += [False] * (2 if column.may_be_missing else 1) + [True] * knots
    return np.array(marks)


def _encode_number(column: Column, knots: int) -> Array:
    low = column.low
    high = column.high
    absent = np.isnan(column.values)
    known = np.where(absent, low, column.values)
    inside = np.clip(known, low, high)
    if low >= 0 and high / max(low, 1.0) >= _LOG_RATIO:
        inside = np.log1p(inside)
        low = math.log1p(low)
        high = math.log1p(high)
    share = (inside - low) / (high - low)
    place = np.where(absent, 0.0, 2 * share - 1)
    parts = [place[:, None]]
    if column.may_be_missing:
        missing = absent.astype(float)
        parts.append(missing[:, None])
    if knots:
        in_knots = share[:, None] * (knots - 1)  # [rows, 1]
        distance = np.abs(in_knots - np.arange(knots)[None])
        hats = np.maximum(0.0, 1 - distance) - 1 / knots
        parts.append(np.where(absent[:, None], 0.0, hats))
    return np.hstack(parts)


def splits(table: Table, repeats: int) -> Iterator[tuple[npt.NDArray[np.int64], ...]]:
    """Training and test rows: the standard ones each time, or four fifths and one fifth."""
    rows = len(table.y)
    for repeat in range(repeats):
        if table.training is not None:
            yield np.arange(table.training), np.arange(table.training, rows)
        else:
            order = np.random.default_rng(1000 + repeat).permutation(rows)
            yield order[: int(0.8 * rows)], order[int(0.8 * rows) :]
