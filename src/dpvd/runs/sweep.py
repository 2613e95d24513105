"""A sweep: several methods and budgets, each with several seeds, as one job that can be resumed.

Every run of a sweep touches the same data. If more than one of them is kept, shown or chosen from,
what was spent is the sum over all of them, which :func:`sweep` returns.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpvd.errors import DpvdError, positive_int
from dpvd.files import write_atomically
from dpvd.privacy import round_up
from dpvd.runs.network import Method
from dpvd.runs.options import RunOptions
from dpvd.runs.record import RunRecord
from dpvd.runs.run_dir import OPTIONS, RECORD
from dpvd.runs.spent import Total, total_spent

__all__ = [
    "SWEEP",
    "SweepResult",
    "SweepRun",
    "TrainOne",
    "plan_sweep",
    "sweep",
    "total_in_words",
]

SWEEP = "sweep.json"
"""The file that says which sweep a folder belongs to."""

TrainOne = Callable[[RunOptions, Path, bool], RunRecord]
"""Trains one run with these options into this folder; the last says whether to resume it."""


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep: the name of its folder and its options."""

    name: str
    options: RunOptions


@dataclass(frozen=True)
class SweepResult:
    """Records of all runs by the name of their folder, and what they cost together."""

    records: dict[str, RunRecord]
    total: Total


def plan_sweep(
    given: Mapping[str, Any],
    *,
    methods: Sequence[str] = (),
    epsilons: Sequence[float] = (),
    seeds: int = 1,
) -> list[SweepRun]:
    """Return the runs of a sweep, the first seed of everything before the second.

    A method without privacy has no ε, and is run once for each seed.

    Args:
        given: options of every run, by the names of ``RunOptions``; ``seed`` is the first seed.
        methods: values of ``method``; that of ``given`` if there are none.
        epsilons: values of ``epsilon``; that of ``given`` if there are none.
        seeds: how many seeds, from the first on.

    Raises:
        DpvdError: if a value is not allowed or is given twice.

    >>> sweep = plan_sweep({"delta": 1e-5}, methods=["dpvd", "none"], epsilons=[0.5, 2], seeds=1)
    >>> [run.name for run in sweep]
    ['dpvd-epsilon-0.5-seed-0', 'dpvd-epsilon-2-seed-0', 'none-seed-0']
    """
    positive_int(seeds=seeds)
    _check_distinct("--method", methods)
    _check_distinct("--epsilon", epsilons)
    first = given.get("seed", 0)
    runs = []
    for seed in range(first, first + seeds):
        for method in methods or (str(given.get("method", Method.DPVD)),):
            budgets: Sequence[float | None] = tuple(epsilons) or (given.get("epsilon"),)
            if method == Method.NONE:
                budgets = (None,)
            for epsilon in budgets:
                choices = {"method": method, "epsilon": epsilon, "seed": seed}
                options = RunOptions.from_given({**given, **choices})
                runs.append(SweepRun(_name(options), options))
    return runs


def _check_distinct(name: str, values: Sequence[object]) -> None:
    if len(set(values)) < len(values):
        raise DpvdError(f"{name} has a value twice: {', '.join(map(str, values))}")


def _name(options: RunOptions) -> str:
    budget = "" if options.epsilon is None else f"epsilon-{options.epsilon!r}-"
    return f"{options.method}-{budget.replace('.0-', '-')}seed-{options.seed}"


def sweep(
    runs: Sequence[SweepRun],
    folder: Path | str,
    train_one: TrainOne,
    *,
    data: Mapping[str, Any],
    on_run: Callable[[SweepRun, int, bool], None] | None = None,
) -> SweepResult:
    """Carry out the runs that are not finished, each in a folder of its own, and add up their cost.

    Guarantees: a finished run is not trained again, an interrupted one is resumed. A folder that
    holds anything else, or another sweep, is refused before anything is written or charged.

    Args:
        runs: from :func:`plan_sweep`.
        folder: where the folders of the runs are made.
        train_one: trains one run; the sweep decides which, and whether to resume.
        data: what tells the data apart, as JSON holds it: a name and a checksum, for example.
        on_run: called before each run with its number, from 0, and whether it is finished.

    Raises:
        DpvdError: if the folder is not that of this sweep, or a run fails.
    """
    place = Path(folder)
    _claim(place, runs, data)
    records = {}
    for number, run in enumerate(runs):
        inside = place / run.name
        is_finished = (inside / RECORD).exists()
        if on_run is not None:
            on_run(run, number, is_finished)
        if is_finished:
            records[run.name] = _finished(inside, run.options)
        else:
            records[run.name] = train_one(run.options, inside, (inside / OPTIONS).exists())
    return SweepResult(records, total_spent(records.values()))


def _claim(place: Path, runs: Sequence[SweepRun], data: Mapping[str, Any]) -> None:
    """Make the folder this sweep's own, or raise if it is somebody else's."""
    if not runs:
        raise DpvdError("a sweep needs at least one run")
    described = {
        "data": dict(data),
        "runs": {run.name: run.options.to_dict() for run in runs},
    }
    text = json.dumps(described, indent=1, allow_nan=False)
    path = place / SWEEP
    if place.exists() and not place.is_dir():
        raise DpvdError(f"{place} is a file: --out of a sweep takes a folder")
    if path.exists():
        _check_same(path, json.loads(text))
        return
    if place.is_dir() and any(place.iterdir()):
        raise DpvdError(
            f"{place} is not empty and holds no sweep: choose another --out for this sweep"
        )
    write_atomically(path, f"{text}\n".encode())


def _check_same(path: Path, described: Mapping[str, Any]) -> None:
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DpvdError(f"{path} cannot be read ({error}): choose another --out") from error
    if before != described:
        raise DpvdError(
            f"{path.parent} holds another sweep, with other options or on other data: choose"
            " another --out, or give the options it was started with"
        )


def _finished(folder: Path, options: RunOptions) -> RunRecord:
    """Return the record of a run that was finished before, which must be the one that is meant."""
    record = RunRecord.read(folder)
    if record.method != options.method or record.seed != options.seed:
        raise DpvdError(
            f"{folder} holds a run of method {record.method} with seed {record.seed}, not"
            f" {options.method} with seed {options.seed}: choose another --out"
        )
    return record


def total_in_words(total: Total) -> str:
    """Return what a sweep cost, in words for whoever started it."""
    words = []
    if total.runs:
        budget = f"({round_up(total.epsilon)}, {total.delta:g})"
        how = "composed" if total.composed else "ε and δ of the runs added up"
        runs = "The private run cost" if total.runs == 1 else f"All {total.runs} private runs cost"
        words.append(f"{runs} {budget} together ({how}).")
    if total.runs > 1:
        words.append(
            "That is what was spent on the data if more than one of them is kept, shown, or chosen"
            " from; the statement of a single run is for that run alone."
        )
    if total.without_privacy:
        plural = "run is" if total.without_privacy == 1 else "runs are"
        words.append(
            f"{total.without_privacy} {plural} without privacy and not in the sum: do not release"
            " them, nor choose by them."
        )
    return " ".join(words)
