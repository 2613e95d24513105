"""Bounds and categories that a schema leaves out, estimated from the data under the account."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path

import torch
from torch import Tensor

from dpvd.data import Column, Kind, Schema, Source, TrainingCells, Unseen
from dpvd.errors import DpvdError
from dpvd.plan import PrivacyPlan
from dpvd.privacy import AccountantName
from dpvd.statistics import (
    Charge,
    KeptReleases,
    NumericBounds,
    Part,
    failure_delta,
    noise_shares,
    people_for_bounds,
    people_for_categories,
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
    """Makes the releases, each charged to a ledger of its own if there is a folder."""

    cells: TrainingCells
    plans: dict[str, PrivacyPlan]
    folder: Path | None
    resume: bool

    def __post_init__(self) -> None:
        self.charge: Charge = self._note
        if self.folder is not None:
            self.charge = KeptReleases(self.folder, self._ledger_name, self.resume, self._note)

    @property
    def unit_index(self) -> Tensor | None:
        return None if self.cells.unit is None else torch.from_numpy(self.cells.unit)

    def _ledger_name(self, plan: PrivacyPlan) -> str:
        place = list(self.plans.values()).index(plan)
        return f"estimate-{place + 1}"

    def _note(self, plan: PrivacyPlan, name: str = "") -> None:
        """The model, which is not made yet, is charged with all of the plans."""

    def bounds(self, name: str) -> NumericBounds:
        return release_bounds(
            torch.from_numpy(self.cells.column(name)),
            self.plans[f"rough bounds of {name}"],
            self.plans[f"bounds of {name}"],
            unit_index=self.unit_index,
            purpose=f"bounds of {name}",
            charge=self.charge,
        )

    def categories(self, name: str, failure: float, rows_per_unit: int) -> tuple[str, ...]:
        found = release_categories(
            self.cells.column(name).tolist(),
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
    folder: Path | None = None,
    *,
    resume: bool = False,
) -> Estimates:
    """Make the releases of the plans and put what they say into the schema.

    Guarantees:
        Each release is charged to a ledger in the folder, if there is one, before its result is
        used. Everything else is made of noisy counts, and so is the decision to leave a column out:
        one without categories, or with bounds that noise hides. If no other column is left, the
        likeliest bounds are taken. All of the plans are to be charged to the model.

    Args:
        schema: with columns that are not complete.
        names: of these, the target perhaps among them.
        cells: of the training rows.
        plans: from `release_plans`.
        failures: from `failures_for`.
        folder: where ledgers are kept; nothing is written if None.
        resume: take what an interrupted process released from the folder.

    Raises:
        DpvdError: if there are too few people for this noise, or more texts than categories;
            nothing is charged then. If no category of any column is found, and nothing else is
            left: the estimates stay charged then.
    """
    _refuse_few_people(plans, failures, schema.rows_per_unit or 1)
    _refuse_free_texts(cells, schema, names)
    releases = _Releases(cells, plans, folder, resume)
    chances = iter(failures)
    found: dict[str, Column] = {}
    rough: dict[str, Column] = {}
    for column in schema.columns:
        if column.name not in names:
            continue
        if column.kind is Kind.CATEGORICAL:
            categories = releases.categories(column.name, next(chances), schema.rows_per_unit or 1)
            if categories:
                found[column.name] = _with_categories(column, categories)
            continue
        bounds = releases.bounds(column.name)
        (rough if bounds.are_rough else found)[column.name] = _with_bounds(column, bounds)
    target = schema.target
    if target.name in names:
        bounds = releases.bounds(target.name)
        target = replace(target, bounds=(bounds.low, bounds.high))
    others = [column for column in schema.used if column.name not in names]
    if not found and not others:
        found = rough
    columns = tuple(_completed(column, names, found) for column in schema.columns)
    if all(column.kind is Kind.IGNORE for column in columns):
        raise DpvdError(
            "no category of any column has enough people; the estimates stay charged: declare what"
            " you know in a schema"
        )
    left_out = tuple(c.name for c in schema.columns if c.name in names and c.name not in found)
    return Estimates(replace(schema, columns=columns, target=target), left_out)


def _completed(column: Column, names: Sequence[str], found: Mapping[str, Column]) -> Column:
    if column.name not in names:
        return column
    return found.get(column.name, Column(column.name, Kind.IGNORE))


def _with_categories(column: Column, categories: tuple[str, ...]) -> Column:
    # Whoever has a category that few have is not refused: that would tell.
    return replace(column, categories=categories, unseen=Unseen.OTHER, source=Source.PRIVATE)


def _with_bounds(column: Column, bounds: NumericBounds) -> Column:
    pair = (bounds.low, bounds.high)
    return replace(column, bounds=_as_dates(pair) if column.kind is Kind.DATE else pair)


def _refuse_few_people(
    plans: Mapping[str, PrivacyPlan], failures: Sequence[float], rows_per_unit: int
) -> None:
    """Before anything is charged: whether noise hides everybody follows from public numbers."""
    needed = [people_for_bounds(plan) for name, plan in plans.items() if name.startswith("rough")]
    categories = [plan for name, plan in plans.items() if name.startswith("categories")]
    for plan, failure in zip(categories, failures, strict=True):
        needed.append(people_for_categories(plan, failure, rows_per_unit))
    people = next(iter(plans.values())).examples
    if people < max(needed):
        columns = "1 column" if len(needed) == 1 else f"{len(needed)} columns"
        raise DpvdError(
            f"{people} examples are too few for private bounds and categories of {columns}: under"
            f" the noise of their part of epsilon {max(needed)} are needed. Declare"
            " what is known without the data in a schema, or spend a larger part; nothing was"
            " charged"
        )


def _refuse_free_texts(cells: TrainingCells, schema: Schema, names: Sequence[str]) -> None:
    """Before anything is charged: a column of free text has no categories."""
    for column in schema.used:
        if column.name not in names or column.kind is not Kind.CATEGORICAL:
            continue
        if cells.has_more_values(column.name, _MOST_CATEGORIES):
            raise DpvdError(
                f"column {column.name!r} has more than {_MOST_CATEGORIES} different texts: set"
                ' kind = "ignore" in the schema'
            )


def _as_dates(days: tuple[float, float]) -> tuple[date, date]:
    """Whole days around the bounds, within what a calendar holds."""
    least = (date.min - _EPOCH).days
    most = (date.max - _EPOCH).days
    first = min(max(math.floor(days[0]), least), most - 1)
    last = min(max(math.ceil(days[1]), first + 1), most)
    return _EPOCH + timedelta(days=first), _EPOCH + timedelta(days=last)
