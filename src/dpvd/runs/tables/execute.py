"""A run on a table, from its preparation to a folder: estimate, learn, measure, record."""

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpvd.data import Column, EncodedTable, Target, training_cells
from dpvd.plan import PrivacyPlan
from dpvd.privacy import Cost, Guarantee, whole_budget
from dpvd.runs.charged import charged_in, discard_uncharged
from dpvd.runs.draw import drawing, file_parts, settle_finished
from dpvd.runs.manifest import finished_run
from dpvd.runs.metrics import NOT_MEASURED
from dpvd.runs.model_file import save_model
from dpvd.runs.network import Method
from dpvd.runs.options import RunOptions
from dpvd.runs.record import RunRecord
from dpvd.runs.run_dir import (
    CONTENTS,
    MODEL,
    RECORD,
    check_contents,
    create_run_dir,
    read_key,
    reopen_run_dir,
    write_contents,
    write_key,
)
from dpvd.runs.tables.choice import TableChoice
from dpvd.runs.tables.metrics import class_metrics, number_metrics
from dpvd.runs.tables.outcome import Outcome, outcome_record
from dpvd.runs.tables.prepare import PreparedTable, prepare_table
from dpvd.runs.tables.recipe import ordinary_hidden, table_recipe
from dpvd.statistics import failure_delta
from dpvd.tabular import (
    TableFit,
    TableModel,
    estimate_schema,
    failures_for,
    fit_ordinary,
    fit_table,
    release_plans,
)

__all__ = ["execute_table", "resume_table", "started_with"]


def execute_table(run: PreparedTable, folder: Path) -> RunRecord:
    """Learn the table under the budget, measure on the test rows, write model and record.

    Guarantees:
        Every release is on disk, in the ledger that pays for it, before it is used. A run that is
        refused before anything was charged leaves nothing behind.

    Raises:
        DpvdError: if the folder is in use, or the budget cannot be kept.
    """
    create_run_dir(folder, started_with(run.options, run.choice), key=run.key)
    try:
        write_contents(folder, run.contents())
        return _carry_out(run, folder, resume=False)
    except BaseException:
        discard_uncharged(folder)
        raise


def resume_table(options: RunOptions, choice: TableChoice, folder: Path) -> RunRecord:
    """Go on with the run in the folder; a finished one is left as it is.

    Guarantees:
        Releases that the interrupted process paid for are read from their ledgers, not made or paid
        for again. Steps that it was charged and lost stay charged.

    Raises:
        DpvdError: if the run was started with other options, or the files have changed since.
    """
    reopen_run_dir(folder, started_with(options, choice))
    if (folder / RECORD).exists():
        settle_finished(options, folder)
        return finished_run(folder)
    if not (folder / CONTENTS).exists() and not charged_in(folder).steps:
        # It had not come as far as reading the table.
        run = prepare_table(options, choice)
        write_key(folder, run.key)
        write_contents(folder, run.contents())
    else:
        run = prepare_table(options, choice, read_key(folder))
        check_contents(folder, run.contents())
    return _carry_out(run, folder, resume=True)


def _carry_out(run: PreparedTable, folder: Path, *, resume: bool) -> RunRecord:
    data = file_parts(run.choice.table)
    with drawing(run.options, folder, _most_it_costs(run), data) as draw:
        outcome = _learn(run, folder, resume=resume)
        if draw is not None:
            outcome = replace(outcome, guarantee=draw.stated(outcome.guarantee))
        checksum = save_model(outcome.model, folder / MODEL)
        record = outcome_record(run, outcome, _measure(outcome), run.key, checksum)
        record.write(folder)
        return finished_run(folder)


def _most_it_costs(run: PreparedTable) -> Cost:
    """The whole budget: what it is divided into follows from estimates that are part of it."""
    options = run.options
    if options.account is None or options.epsilon is None:
        return Cost()  # nothing is drawn
    failures = _failures(run)
    failing = failure_delta(options.epsilon, failures) if failures else 0.0
    return whole_budget(options.epsilon, options.delta - failing, failure=sum(failures))


def _failures(run: PreparedTable) -> list[float]:
    """For each column of categories that is estimated, how it may fail."""
    assert run.options.epsilon is not None  # of a private method
    return failures_for(run.schema, run.estimated, run.options.epsilon, run.options.delta)


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


@dataclass(frozen=True, eq=False)
class _Ready:
    """A table that can be learnt from.

    Attributes:
        train: rows to train on.
        test: rows to test on, if there are any.
        earlier: releases that were made of the same people to get here.
        failing: the part of δ that these need beside their noise.
        left_out: columns that could not be estimated.
    """

    train: EncodedTable
    test: EncodedTable | None
    earlier: dict[str, PrivacyPlan]
    failing: float = 0.0
    left_out: tuple[str, ...] = ()


def _learn(run: PreparedTable, folder: Path, *, resume: bool) -> Outcome:
    started = time.monotonic()
    ready = _ready(run, folder, resume=resume)
    if run.options.method is Method.NONE:
        model, guarantee, plan = _ordinary(run, ready.train)
        plans = {"training": plan}
        recipe = None
    else:
        fitted = _private(run, ready, folder, resume=resume)
        model = fitted.model
        guarantee = _stated(run, fitted.guarantee, ready.failing)
        plans = fitted.plans
        recipe = fitted.recipe
    return Outcome(
        model,
        guarantee,
        recipe,
        plans,
        ready.train,
        ready.test,
        ready.left_out,
        time.monotonic() - started,
    )


def _ready(run: PreparedTable, folder: Path, *, resume: bool) -> _Ready:
    """The encoded table, after the estimates that its schema waits for."""
    if run.parts is not None:
        return _Ready(run.parts.train, run.test, {})
    options = run.options
    schema = run.schema
    assert options.epsilon is not None  # as private bounds are asked for
    assert options.private_bounds is not None
    failures = _failures(run)
    failing = failure_delta(options.epsilon, failures) if failures else 0.0
    plans = release_plans(
        run.base,
        schema,
        run.estimated,
        epsilon=options.private_bounds,
        delta=options.delta - failing,
        accountant=options.accountant,
    )
    declared: list[Column | Target] = [*schema.used, schema.target]
    columns = [each for each in declared if each.name in run.estimated]
    assert run.table is not None  # it waits for the estimates
    cells = training_cells(
        run.table,
        schema,
        columns,
        test_fraction=run.choice.test_fraction,
        seed=run.seed,
    )
    found = estimate_schema(schema, run.estimated, cells, plans, failures, folder, resume=resume)
    train, test = run.load(found.schema)
    return _Ready(train, test, plans, failing, found.left_out)


def _private(run: PreparedTable, ready: _Ready, folder: Path, *, resume: bool) -> TableFit:
    """The model under the budget; what was estimated before is part of it."""
    options = run.options
    train = ready.train
    target = train.schema.target
    classes = len(target.classes) or None
    assert options.epsilon is not None  # of a private method
    delta = options.delta - ready.failing
    return fit_table(
        torch.from_numpy(train.x),
        _targets(train),
        classes=classes,
        epsilon=options.epsilon,
        delta=delta,
        target_range=target.bounds,
        groups=torch.from_numpy(train.encoder.groups),
        hats=torch.from_numpy(train.encoder.is_hat),
        unit_index=None if train.unit is None else torch.from_numpy(train.unit),
        people=None if train.unit is None else train.units,
        rows_per_person=train.schema.rows_per_unit,
        relation=options.relation,
        accountant=options.accountant,
        noise=run.base.noise,
        seed=run.base.seed,
        unit=run.base.unit,
        tuned=run.base.tuned,
        public=run.base.public,
        recipe=table_recipe(options, run.base.examples, train.encoder, delta),
        earlier=ready.earlier,
        folder=folder,
        resume=resume,
    )


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


def _ordinary(run: PreparedTable, train: EncodedTable) -> tuple[TableModel, Guarantee, PrivacyPlan]:
    """The baseline without privacy: linear or a network by the same rule."""
    target = train.schema.target
    model = fit_ordinary(
        torch.from_numpy(train.x),
        _targets(train),
        classes=len(target.classes) or None,
        target_range=target.bounds or (-1.0, 1.0),
        hidden=ordinary_hidden(run.options, train.units, train.encoder),
    )
    plan = run.base.calibrate(math.inf, run.options.delta)
    guarantee = plan.guarantee(run.options.delta, run.options.accountant)
    return model, guarantee.observed(seen=(), not_covered=run.not_covered), plan


def _targets(table: EncodedTable) -> Tensor:
    """Classes, or numbers in the unit of the target."""
    if table.schema.target.is_classification:
        return torch.from_numpy(table.y)
    return torch.from_numpy(table.encoder.decode_target(table.y))


def _measure(outcome: Outcome) -> dict[str, Any]:
    """Results on the test rows; without such rows nothing is measured."""
    test = outcome.test
    if test is None:
        return dict(NOT_MEASURED)
    told = outcome.model.predict(torch.from_numpy(test.x))
    if test.schema.target.is_classification:
        return class_metrics(told, _targets(test))
    return number_metrics(told, _targets(test))
