"""A run on a table, from its preparation to a folder: estimate, learn, measure, record."""

import math
import os
import platform
import secrets
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpvd import __version__
from dpvd.data import EncodedTable, Encoder, training_cells
from dpvd.errors import DpvdError
from dpvd.plan import PrivacyPlan
from dpvd.privacy import Guarantee
from dpvd.runs.charged import charged_in, discard_uncharged
from dpvd.runs.metrics import NOT_MEASURED
from dpvd.runs.model_file import save_model
from dpvd.runs.network import Method
from dpvd.runs.options import RunOptions
from dpvd.runs.record import RunRecord
from dpvd.runs.run_dir import MODEL, RECORD, create_run_dir, reopen_run_dir, write_key
from dpvd.runs.tables.choice import TableChoice
from dpvd.runs.tables.estimate import estimate_schema, failures_for, release_plans
from dpvd.runs.tables.metrics import class_metrics, number_metrics
from dpvd.runs.tables.prepare import PreparedTable
from dpvd.statistics import failure_delta
from dpvd.tabular import TableModel, TableRecipe, choose, fit_ordinary, fit_table

__all__ = ["execute_table", "resume_table", "started_with"]

_KEY_BYTES = 32
_TEST_BLOCK = 65_536


@dataclass(frozen=True, eq=False)
class _Outcome:
    """What training left, before it is written down."""

    model: TableModel
    guarantee: Guarantee
    recipe: TableRecipe | None
    plans: dict[str, PrivacyPlan]
    train: EncodedTable
    test: EncodedTable | None
    left_out: tuple[str, ...]
    seconds: float


def execute_table(run: PreparedTable, folder: Path) -> RunRecord:
    """Learn the table under the budget, measure on the test rows, write model and record.

    Guarantees:
        Every release is on disk, in a ledger of its own, before its result is used. A run that is
        refused before anything was charged leaves nothing behind.

    Raises:
        DpvdError: if the folder is in use, or the budget cannot be kept.
    """
    create_run_dir(folder, started_with(run.options, run.choice))
    key = secrets.token_bytes(_KEY_BYTES)
    try:
        write_key(folder, key)
        outcome = _learn(run, folder)
    except BaseException:
        discard_uncharged(folder)
        raise
    checksum = save_model(outcome.model, folder / MODEL)
    record = _record(run, outcome, _measure(outcome), key, checksum)
    record.write(folder)
    return record


def resume_table(options: RunOptions, choice: TableChoice, folder: Path) -> RunRecord:
    """The record of the finished run in the folder.

    Raises:
        DpvdError: if it has other options, or is unfinished: what was charged is spent, and noisy
            results that were lost cannot be had again for nothing.
    """
    reopen_run_dir(folder, started_with(options, choice))
    if (folder / RECORD).exists():
        return RunRecord.read(folder)
    charged = charged_in(folder)
    spent = charged.epsilon(options.delta, options.accountant)
    raise DpvdError(
        f"the run on a table in {folder} was interrupted and cannot be resumed: {charged.steps}"
        f" noisy releases and steps (ε = {spent:.4g} at δ = {options.delta:g}) were charged and"
        " stay spent; start a new run in another folder, and count both"
    )


def started_with(options: RunOptions, choice: TableChoice) -> dict[str, Any]:
    """What a run on a table is started with, as its folder keeps it."""
    chosen = {
        "dataset": str(choice.table),
        "target": choice.target,
        "schema": None if choice.schema is None else str(choice.schema),
        "id": choice.id,
        "rows_per_unit": choice.rows_per_unit,
        "test": None if choice.test is None else str(choice.test),
        "test_fraction": choice.test_fraction,
        "delimiter": choice.delimiter,
        "encoding": choice.encoding,
    }
    return options.to_dict() | chosen


def _learn(run: PreparedTable, folder: Path) -> _Outcome:
    started = time.monotonic()
    options = run.options
    schema = run.schema
    earlier: dict[str, PrivacyPlan] = {}
    left_out: tuple[str, ...] = ()
    failing = 0.0
    if run.estimated:
        assert options.epsilon is not None
        assert options.private_bounds is not None
        failures = failures_for(schema, run.estimated, options.epsilon, options.delta)
        failing = failure_delta(options.epsilon, failures) if failures else 0.0
        earlier = release_plans(
            run.base,
            schema,
            run.estimated,
            epsilon=options.private_bounds,
            delta=options.delta - failing,
            accountant=options.accountant,
        )
        columns = [column for column in schema.used if column.name in run.estimated]
        of_target = [schema.target] if schema.target.name in run.estimated else []
        cells = training_cells(
            run.choice.open(),
            schema,
            [*columns, *of_target],
            test_fraction=run.choice.test_fraction,
            seed=run.seed,
        )
        found = estimate_schema(schema, run.estimated, cells, earlier, failures, folder)
        schema = found.schema
        left_out = found.left_out
        train, test = run.load(schema)
    else:
        assert run.parts is not None
        train = run.parts.train
        test = run.test
    x = torch.from_numpy(train.x)
    y = _targets(train)
    if options.method is Method.NONE:
        model, guarantee, plan = _ordinary(run, train, x, y)
        seconds = time.monotonic() - started
        return _Outcome(model, guarantee, None, {"training": plan}, train, test, (), seconds)
    assert options.epsilon is not None
    classes = len(schema.target.classes) or None
    recipe = choose(
        run.base.examples,
        train.encoder.width,
        options.epsilon - (options.private_bounds or 0.0),
        options.delta - failing,
        classes=classes,
        accountant=options.accountant,
        relation=options.relation,
    )
    fitted = fit_table(
        x,
        y,
        classes=classes,
        epsilon=options.epsilon,
        delta=options.delta - failing,
        target_range=schema.target.bounds,
        groups=torch.from_numpy(train.encoder.groups),
        unit_index=None if train.unit is None else torch.from_numpy(train.unit),
        people=None if train.unit is None else train.units,
        rows_per_person=schema.rows_per_unit,
        relation=options.relation,
        accountant=options.accountant,
        noise=run.base.noise,
        seed=run.base.seed,
        unit=run.base.unit,
        tuned=run.base.tuned,
        public=run.base.public,
        recipe=recipe,
        earlier=earlier,
        folder=folder,
    )
    guarantee = _stated(run, fitted.guarantee, failing)
    seconds = time.monotonic() - started
    return _Outcome(fitted.model, guarantee, recipe, fitted.plans, train, test, left_out, seconds)


def _stated(run: PreparedTable, guarantee: Guarantee, failing: float) -> Guarantee:
    """The guarantee with what it says of the schema, and at the δ that was asked for."""
    seen = list(guarantee.seen or ())
    if run.estimated:
        seen.append(
            f"bounds and categories estimated within the budget: {', '.join(run.estimated)}"
        )
    if failing:
        seen.append(f"{failing:.2g} of delta is for categories that one {run.base.unit} alone has")
    return replace(
        guarantee,
        delta=run.options.delta,
        seen=tuple(seen),
        not_covered=(*guarantee.not_covered, *run.not_covered),
    )


def _ordinary(
    run: PreparedTable, train: EncodedTable, x: Tensor, y: Tensor
) -> tuple[TableModel, Guarantee, PrivacyPlan]:
    """The baseline without privacy."""
    target = train.schema.target
    model = fit_ordinary(
        x,
        y,
        classes=len(target.classes) or None,
        target_range=target.bounds or (-1.0, 1.0),
    )
    plan = run.base.calibrate(math.inf, run.options.delta)
    guarantee = plan.guarantee(run.options.delta, run.options.accountant)
    return model, guarantee.observed(seen=(), not_covered=run.not_covered), plan


def _targets(table: EncodedTable) -> Tensor:
    """Classes, or numbers in the unit of the target."""
    if table.schema.target.is_classification:
        return torch.from_numpy(table.y)
    return torch.from_numpy(table.encoder.decode_target(table.y))


def _measure(outcome: _Outcome) -> dict[str, Any]:
    """Results on the test rows; without such rows nothing is measured."""
    test = outcome.test
    if test is None:
        return dict(NOT_MEASURED)
    told = outcome.model.predict(torch.from_numpy(test.x))
    if test.schema.target.is_classification:
        return class_metrics(told, _targets(test))
    return number_metrics(told, _targets(test))


def _record(
    run: PreparedTable, outcome: _Outcome, test: dict[str, Any], key: bytes, checksum: str
) -> RunRecord:
    options = run.options
    train = outcome.train
    schema = train.schema
    main = outcome.plans.get("training") or outcome.plans["moments"]
    recipe = {} if outcome.recipe is None else outcome.recipe.to_dict()
    return RunRecord(
        method=str(options.method),
        seed=options.seed,
        dataset={
            "name": run.name,
            "train": train.units,
            "rows": train.rows,
            "test": 0 if outcome.test is None else outcome.test.rows,
            "classes": len(schema.target.classes) or None,
            "checksum": train.checksum(key),
            "preprocessing": _preprocessing(train.encoder, is_private=outcome.recipe is not None),
        },
        model={
            "network": {
                "kind": "table",
                "features": outcome.model.features,
                "classes": outcome.model.classes,
                "whitened": outcome.model.whitened,
            },
            "layers": _layers(outcome.model),
            "parameters": outcome.model.head.weight.numel(),
            "checksum": checksum,
        },
        plan=main.to_dict(),
        recipe={name: value for name, value in recipe.items() if value},
        guarantee=outcome.guarantee.to_dict(),
        history=[],
        test=test,
        seconds=outcome.seconds,
        environment={
            "python": platform.python_version(),
            "torch": torch.__version__,
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
        },
        created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        version=__version__,
        table={
            "kind": "classification" if schema.target.is_classification else "regression",
            "encoder": train.encoder.to_dict(),
            "classes": list(schema.target.classes),
            "target": schema.target.name,
            "unit": run.base.unit,
            "id": schema.id,
            "rows_per_unit": schema.rows_per_unit,
            "estimated": list(run.estimated),
            "left_out": list(outcome.left_out),
        },
        releases=_releases(outcome.plans) if options.method is not Method.NONE else [],
        declared={} if schema.rows_per_unit is None else {"rows_per_unit": _rows_words(run)},
    )


def _rows_words(run: PreparedTable) -> str:
    return f"at most {run.schema.rows_per_unit} of each {run.base.unit} take part, chosen at random"


def _preprocessing(encoder: Encoder, *, is_private: bool) -> str:
    mean = "a noisy mean" if is_private else "their exact mean"
    hats = f", numbers also by hat functions at {encoder.knots} knots" if encoder.knots else ""
    return (
        f"each row by itself, by the schema: {encoder.width} features of"
        f" {len(encoder.schema.used)} columns{hats}; rows are scaled to length 1, then centred by"
        f" {mean}"
    )


def _layers(model: TableModel) -> list[str]:
    outputs = model.head.out_features
    whitened = "whitened by noisy moments, " if model.whitened else ""
    return [
        f"rows: {model.features} features, centred, {whitened}head: Linear"
        f" {model.head.in_features}→{outputs}"
    ]


def _releases(plans: dict[str, PrivacyPlan]) -> list[dict[str, Any]]:
    """Each with its share of 1/z², which composes additively for sums over everybody."""
    costs = {
        name: plan.steps / (plan.noise_multiplier or math.inf) ** 2 for name, plan in plans.items()
    }
    whole = sum(costs.values())
    return [
        {
            "name": name,
            "noise_multiplier": plan.noise_multiplier,
            "steps": plan.steps,
            "share": costs[name] / whole,
            "plan": plan.to_dict(),
        }
        for name, plan in plans.items()
    ]
