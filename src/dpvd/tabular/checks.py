"""What a table and its target must be like, checked before anything is charged."""

import math

import torch
from torch import Tensor

from dpvd.errors import DpvdError, positive_int
from dpvd.statistics import check_people
from dpvd.tabular.codes import class_codes

__all__ = ["count_people", "scaled_targets"]


def count_people(
    x: Tensor, unit_index: Tensor | None, people: int | None, rows_per_person: int | None
) -> int:
    """How many people there are; raise unless the rows are theirs."""
    if x.dim() != 2 or not len(x) or not x.is_floating_point():
        raise DpvdError(
            f"x must be a matrix of numbers with at least one row, got {x.dtype} of shape "
            f"{list(x.shape)}"
        )
    if unit_index is None:
        if people is not None or rows_per_person is not None:
            raise DpvdError(
                "people and rows_per_person need unit_index, which says whose row is whose"
            )
        return len(x)
    if people is None or rows_per_person is None:
        raise DpvdError(
            "unit_index needs people and rows_per_person, which are public: how many there are and"
            " how many rows one may have"
        )
    positive_int(rows_per_person=rows_per_person)
    check_people(people, len(x), unit_index)
    most = int(torch.bincount(unit_index).max())
    if most > rows_per_person:
        raise DpvdError(
            f"rows_per_person is {rows_per_person}, but somebody has more rows: choose that many"
            " of theirs at random before"
        )
    return people


def scaled_targets(
    y: Tensor, rows: int, classes: int | None, target_range: tuple[float, float] | None
) -> Tensor:
    """[n, k]: the codes of classes, or numbers within [-1, 1]."""
    if y.shape != (rows,):
        raise DpvdError(f"y must have one entry for each of the {rows} rows, got {list(y.shape)}")
    if classes is not None:
        codes = class_codes(classes)
        if y.dtype != torch.int64 or not 0 <= int(y.min()) <= int(y.max()) < classes:
            raise DpvdError(f"classes must be int64 numbers from 0 to {classes - 1}")
        return codes[y]
    if target_range is None:
        raise DpvdError("regression needs target_range, public bounds of the target")
    low, high = target_range
    if not math.isfinite(low) or not math.isfinite(high) or low >= high:
        raise DpvdError(f"target_range goes from low to high, got {target_range!r}")
    scaled = 2 * (y.double() - low) / (high - low) - 1
    return scaled.nan_to_num(0.0).clamp(-1.0, 1.0)[:, None]
