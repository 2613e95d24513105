"""Bounds and categories that a schema leaves out, estimated from the data under the account."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path

import torch
from torch import Tensor

from dpvd.data import Column, Kind, Schema, Source, TrainingCells, Unseen
from dpvd.errors import DpvdError
from dpvd.plan import PrivacyPlan
from dpvd.privacy import AccountantName, Ledger
from dpvd.statistics import (
    Part,
    failure_delta,
    noise_shares,
    release_bounds,
    release_categories,
    release_plan,
)

__all__ = ["Estimates", "estimate_schema", "failures_for", "provisional", "release_plans"]

_FAILING_PART = 0.01  # of δ, for categories that one person alone has
_MOST_CATEGORIES = 4096
_EPOCH = date(1970, 1, 1)
_ANY_NUMBER = (-1.0, 1.0)
_ANY_DATE = (date(1900, 1, 1), date(2100, 1, 1))


@dataclass(frozen=True)
class Estimates:
    """What was estimated.

    Attributes:
        schema: complete.
        left_out: columns for which there was too little data; their kind is ignore.
    """

    schema: Schema
    left_out: tuple[str, ...]


def provisional(schema: Schema, names: Sequence[str]) -> Schema:
    """The schema with something in place of what is to be estimated: reads a table to check it."""
    columns = []
    for column in schema.columns:
        if column.name in names:
            column = _filled(column)
        columns.append(column)
    return replace(schema, columns=tuple(columns))


def _filled(column: Column) -> Column:
    if column.kind is Kind.CATEGORICAL:
        return replace(column, categories=("any",), unseen=Unseen.OTHER)
    return replace(column, bounds=_ANY_DATE if column.kind is Kind.DATE else _ANY_NUMBER)


def failures_for(schema: Schema, names: Sequence[str], epsilon: float, delta: float) -> list[float]:
    """For each column of categories, the chance that one person's own category appears.

    All of them together take a hundredth of δ: see `failure_delta`.
    """
    columns = [c for c in schema.used if c.name in names and c.kind is Kind.CATEGORICAL]
    if not columns:
        return []
    each = _FAILING_PART * delta / failure_delta(epsilon, [0.5]) * 0.5 / len(columns)
    if each <= 0.0 or not math.isfinite(each):
        raise DpvdError(
            f"epsilon {epsilon:g} is too large to estimate categories under it: write them into"
            " the schema"
        )
    return [each] * len(columns)


def release_plans(
    base: PrivacyPlan,
    schema: Schema,
    names: Sequence[str],
    *,
    epsilon: float,
    delta: float,
    accountant: AccountantName,
) -> dict[str, PrivacyPlan]:
    """The plans of all estimates, by name; together they cost at most (ε, δ).

    Two releases for bounds, a coarse one and a fine one; one for categories.
    """
    kinds = {column.name: column.kind for column in schema.used}
    wanted: list[str] = []
    for name in names:
        if kinds.get(name) is Kind.CATEGORICAL:
            wanted.append(f"categories of {name}")
        else:
            wanted += [f"rough bounds of {name}", f"bounds of {name}"]
    share = Part(1 / len(wanted))
    multipliers = noise_shares(
        epsilon,
        delta,
        dict.fromkeys(wanted, share),
        accountant=accountant,
        relation=base.relation,
    )
    return {
        name: release_plan(base, name=f"the {name}", noise_multiplier=multiplier, reach=1.0)
        for name, multiplier in multipliers.items()
    }


@dataclass
class _Releases:
    """Makes the releases, each charged to a ledger of its own."""

    cells: TrainingCells
    plans: dict[str, PrivacyPlan]
    folder: Path

    @property
    def unit_index(self) -> Tensor | None:
        return None if self.cells.unit is None else torch.from_numpy(self.cells.unit)

    def charge(self, plan: PrivacyPlan) -> None:
        place = list(self.plans.values()).index(plan)
        ledger = Ledger.create(self.folder / f"ledger-estimate-{place + 1}.jsonl", plan.to_dict())
        ledger.charge(1)
        ledger.close()

    def bounds(self, name: str) -> tuple[float, float] | None:
        """Bounds of a column, None if too few people have a value."""
        coarse = self.plans[f"rough bounds of {name}"]
        fine = self.plans[f"bounds of {name}"]
        paid: list[PrivacyPlan] = []

        def charge(plan: PrivacyPlan) -> None:
            self.charge(plan)
            paid.append(plan)

        try:
            found = release_bounds(
                torch.from_numpy(self.cells.numbers[name]),
                coarse,
                fine,
                unit_index=self.unit_index,
                purpose=f"bounds of {name}",
                charge=charge,
            )
        except DpvdError:
            if not paid:
                raise
            return None
        return found.low, found.high

    def categories(self, name: str, failure: float, rows_per_unit: int) -> tuple[str, ...]:
        found = release_categories(
            self.cells.texts[name],
            self.plans[f"categories of {name}"],
            failure=failure,
            rows_per_person=rows_per_unit,
            most_categories=_MOST_CATEGORIES,
            unit_index=self.unit_index,
            purpose=f"categories of {name}",
            charge=self.charge,
        )
        return found.names


def estimate_schema(
    schema: Schema,
    names: Sequence[str],
    cells: TrainingCells,
    plans: dict[str, PrivacyPlan],
    failures: Sequence[float],
    folder: Path,
) -> Estimates:
    """Make the releases of the plans and put what they say into the schema.

    Guarantees:
        Each release is charged to a ledger in the folder before its result is used. Everything
        else is made of noisy counts, and so is the decision to leave a column out.

    Raises:
        DpvdError: if the target has too few values, or all columns are left out. What was charged
            by then stays in the folder.
    """
    releases = _Releases(cells, plans, folder)
    _refuse_free_texts(cells)
    chances = iter(failures)
    left_out = []
    columns = []
    for column in schema.columns:
        if column.name in names:
            found = _estimated(column, releases, chances, schema.rows_per_unit or 1)
            if found is None:
                left_out.append(column.name)
                found = Column(column.name, Kind.IGNORE)
            column = found
        columns.append(column)
    target = schema.target
    if target.name in names:
        bounds = releases.bounds(target.name)
        if bounds is None:
            raise DpvdError(
                f"too few people for bounds of the target {target.name!r}; the estimates stay"
                " charged: declare bounds that you know in a schema"
            )
        target = replace(target, bounds=bounds)
    if all(column.kind is Kind.IGNORE for column in columns):
        raise DpvdError(
            "there are too few people for bounds and categories of any column; the estimates stay"
            " charged: declare what you know in a schema"
        )
    return Estimates(replace(schema, columns=tuple(columns), target=target), tuple(left_out))


def _refuse_free_texts(cells: TrainingCells) -> None:
    """Before anything is charged: a column of free text has no categories."""
    for name, texts in cells.texts.items():
        if len(set(texts)) > _MOST_CATEGORIES:
            raise DpvdError(
                f"column {name!r} has more than {_MOST_CATEGORIES} different texts: set"
                ' kind = "ignore" in the schema'
            )


def _estimated(
    column: Column, releases: _Releases, chances: Iterator[float], rows_per_unit: int
) -> Column | None:
    if column.kind is Kind.CATEGORICAL:
        categories = releases.categories(column.name, next(chances), rows_per_unit)
        # Whoever has a category that few have is not refused: that would tell.
        if not categories:
            return None
        return replace(column, categories=categories, unseen=Unseen.OTHER, source=Source.PRIVATE)
    bounds = releases.bounds(column.name)
    if bounds is None:
        return None
    if column.kind is Kind.DATE:
        return replace(column, bounds=_as_dates(bounds))
    return replace(column, bounds=bounds)


def _as_dates(days: tuple[float, float]) -> tuple[date, date]:
    """Whole days around the bounds, within what a calendar holds."""
    least = (date.min - _EPOCH).days
    most = (date.max - _EPOCH).days
    first = min(max(math.floor(days[0]), least), most - 1)
    last = min(max(math.ceil(days[1]), first + 1), most)
    return _EPOCH + timedelta(days=first), _EPOCH + timedelta(days=last)
