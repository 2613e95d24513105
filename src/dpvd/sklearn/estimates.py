"""Bounds that nobody declared, estimated under the budget of a fit."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from dpvd.data import (
    Column,
    Kind,
    Schema,
    TrainingCells,
    open_table,
    training_cells,
)
from dpvd.errors import DpvdError
from dpvd.plan import PrivacyPlan
from dpvd.privacy import AccountantName
from dpvd.sklearn.people import People
from dpvd.tabular import estimate_schema, release_plans

__all__ = ["Completed", "complete"]


@dataclass(frozen=True)
class Completed:
    """A schema with which rows can be encoded.

    Attributes:
        schema: complete.
        plans: by name, the releases that were made for it.
        estimated: names of the columns whose bounds were estimated, the target perhaps among them.
    """

    schema: Schema
    plans: dict[str, PrivacyPlan]
    estimated: tuple[str, ...]


def complete(
    schema: Schema,
    table: Any,
    y: Tensor | None,
    people: People | None,
    plan: PrivacyPlan,
    *,
    epsilon: float | None,
    delta: float,
    accountant: AccountantName | str,
) -> Completed:
    """Estimate the bounds that a schema leaves out.

    Args:
        schema: perhaps with columns that are to be estimated.
        table: a frame or a dictionary of columns.
        y: [n], numbers whose bounds are to be estimated, too; None for others.
        people: whose rows take part; None if every row does.
        plan: what all plans of the fit have in common.
        epsilon: the part of the budget for bounds; None if there is none.
        delta: δ of the budget.
        accountant: who adds up.

    Raises:
        DpvdError: if something is to be estimated without a budget, a budget has nothing to
            estimate, or there are too few people; nothing is charged then.
    """
    columns = schema.to_estimate()
    names = [column.name for column in columns]
    if y is not None:
        names.append(schema.target.name)
    if not names and epsilon is None:
        return Completed(schema, {}, ())
    _check(columns, names, epsilon)
    assert epsilon is not None  # checked
    plans = release_plans(
        plan,
        schema,
        names,
        epsilon=epsilon,
        delta=delta,
        accountant=AccountantName.parse(accountant),
    )
    cells = _cells(schema, columns, table, y, people)
    found = estimate_schema(schema, names, cells, plans, ())
    return Completed(found.schema, plans, tuple(names))


def _check(columns: tuple[Column, ...], names: list[str], epsilon: float | None) -> None:
    if not names:
        raise DpvdError(
            "there is nothing to estimate, all bounds are declared: leave out private_bounds"
        )
    if epsilon is None:
        raise DpvdError(
            f"the schema leaves bounds of {names[0]!r} to be estimated: give private_bounds, the"
            " part of epsilon to spend on that"
        )
    for column in columns:
        if column.kind is Kind.CATEGORICAL:
            raise DpvdError(
                f"the schema has no categories for {column.name!r}: declare them; private_bounds"
                " estimates bounds alone (dpvd train --private-bounds has categories, too)"
            )


def _cells(
    schema: Schema, columns: tuple[Column, ...], table: Any, y: Tensor | None, people: People | None
) -> TrainingCells:
    """The columns, and perhaps y, of the rows that take part."""
    everybody = replace(schema, id=None, rows_per_unit=None)
    of_table = training_cells(open_table(table), everybody, columns, seed=0)

    def parts(name: str) -> Iterator[np.ndarray]:
        if y is not None and name == schema.target.name:
            return iter([y.double().numpy()])
        return of_table.parts(name)

    if people is None:
        return TrainingCells(parts, None, None)
    return TrainingCells(parts, people.rows.numpy(), people.unit_index.numpy())
