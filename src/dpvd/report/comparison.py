"""Several runs side by side: rows, means over seeds, a CSV of numbers and a figure."""

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from dpvd.errors import DpvdError, is_finite_number
from dpvd.report.svg import FIGURE_STYLE, PALETTE
from dpvd.report.wording import plain
from dpvd.runs import SWEEP, RunRecord

__all__ = [
    "COLUMNS",
    "Comparison",
    "Group",
    "compare",
    "comparison_figure",
    "read_runs",
    "to_csv",
]

MEASURES = ("accuracy", "auc", "rmse", "calibration_error", "nll")
"""What is averaged over seeds."""

COLUMNS = (
    "run",
    "data",
    "method",
    "epsilon",
    "delta",
    "relation",
    "seed",
    "accuracy",
    "accuracy_low",
    "accuracy_high",
    "auc",
    "rmse",
    "calibration_error",
    "nll",
    "steps",
    "seconds",
)
"""Fields of a row, in the order of the CSV."""

_COLOURS = ("blue", "vermilion", "ink", "muted")
_MARKERS = ("o", "s", "^", "D")


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone.

    Attributes:
        data: name of the data.
        relation: under which ε was stated.
        method: how they trained.
        epsilon: the largest that one of them spent; None without privacy.
        delta: δ of it.
        shape: what else tells lines of a figure apart: steps, batches and network.
        rows: the runs.
    """

    data: str
    relation: str
    method: str
    epsilon: float | None
    delta: float
    shape: tuple[str, ...] = ()
    rows: list[dict[str, Any]] = field(default_factory=list)

    def mean(self, measure: str) -> float | None:
        """Mean over the runs that measured it; None if none did."""
        values = self._values(measure)
        return statistics.fmean(values) if values else None

    def spread(self, measure: str) -> float | None:
        """Standard deviation over seeds; None for fewer than two runs."""
        values = self._values(measure)
        return statistics.stdev(values) if len(values) > 1 else None

    def _values(self, measure: str) -> list[float]:
        return [row[measure] for row in self.rows if row[measure] is not None]


@dataclass(frozen=True)
class Comparison:
    """Rows of all runs, groups of equal settings, and what must be said about them together."""

    rows: list[dict[str, Any]]
    groups: list[Group]
    warnings: list[str]


def compare(runs: Mapping[str, RunRecord]) -> Comparison:
    """Put finished runs side by side.

    Guarantees: runs are averaged only if data, relation, method, plan but for its seed, recipe and
    model are equal. Other data and other relations are said to be so.

    Args:
        runs: records, by the name that the table gives them.

    Raises:
        DpvdError: if there is none.
    """
    if not runs:
        raise DpvdError("there is no run to compare")
    groups: dict[str, Group] = {}
    rows = []
    for name, record in runs.items():
        row = _row(name, record)
        rows.append(row)
        group = groups.setdefault(
            repr(_settings(record)),
            Group(
                row["data"],
                row["relation"],
                row["method"],
                row["epsilon"],
                row["delta"],
                _shape(record),
            ),
        )
        group.rows.append(row)
    ordered = sorted(groups.values(), key=_order)
    return Comparison(rows, ordered, _warnings(runs))


def _row(name: str, record: RunRecord) -> dict[str, Any]:
    test = record.test
    low, high = test.get("interval") or (None, None)
    values: dict[str, Any] = {
        "run": name,
        "data": str(record.dataset["name"]),
        "method": record.method,
        "epsilon": float(record.guarantee["epsilon"]) if record.is_private else None,
        "delta": record.guarantee["delta"],
        "relation": str(record.guarantee.get("relation") or "not recorded"),
        "seed": record.seed,
        "accuracy": test.get("accuracy"),
        "accuracy_low": low,
        "accuracy_high": high,
        "auc": test.get("auc"),
        "rmse": test.get("rmse"),
        "calibration_error": test.get("calibration_error"),
        "nll": test.get("nll", test.get("loss")),
        "steps": record.guarantee["steps"],
        "seconds": record.seconds,
    }
    texts = ("run", "data", "method", "relation")
    return {
        key: value if key in texts or is_finite_number(value) else None
        for key, value in values.items()
    }


def _settings(record: RunRecord) -> tuple[object, ...]:
    """Everything that two runs have in common if they are repetitions of each other."""
    plan = {name: value for name, value in record.plan.items() if name != "seed"}
    guarantee = record.guarantee
    return (
        *_data(record),
        record.method,
        guarantee["delta"],
        guarantee.get("accountant"),
        sorted(plan.items(), key=lambda entry: entry[0]),
        sorted(record.recipe.items(), key=lambda entry: entry[0]),
        record.model["layers"],
    )


def _shape(record: RunRecord) -> tuple[str, ...]:
    return (
        f"{record.guarantee['steps']} steps",
        f"batches of {record.plan['batch_size']}",
        f"{plain(record.model.get('parameters'))} parameters",
    )


def _data(record: RunRecord) -> tuple[object, ...]:
    """What tells data apart; checksums do not, since those of private data are keyed by run."""
    dataset = record.dataset
    return (dataset["name"], dataset["train"], dataset["test"])


def _order(group: Group) -> tuple[str, str, str, float]:
    epsilon = math.inf if group.epsilon is None else group.epsilon
    return (group.data, group.relation, group.method, epsilon)


def _warnings(runs: Mapping[str, RunRecord]) -> list[str]:
    """What a reader must know before comparing the numbers."""
    said = []
    data = {_data(record): str(record.dataset["name"]) for record in runs.values()}
    if len(data) > 1:
        names = ", ".join(sorted(set(data.values())))
        said.append(
            f"these runs are on {len(data)} different data sets ({names}): compare within one, not"
            " between them"
        )
    private = [record for record in runs.values() if record.is_private]
    relations = sorted({str(record.guarantee.get("relation")) for record in private})
    if len(relations) > 1:
        said.append(
            f"ε is stated under different relations ({', '.join(relations)}): equal numbers do not"
            " mean equal privacy"
        )
    units = sorted({str(record.guarantee.get("unit") or "example") for record in private})
    if len(units) > 1:
        said.append(f"ε is for different units ({', '.join(units)}): it does not compare")
    deltas = sorted({float(record.guarantee["delta"]) for record in private})
    if len(deltas) > 1:
        said.append(f"δ differs ({', '.join(f'{delta:g}' for delta in deltas)}), and ε with it")
    return said


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV, one line for each run; what was not measured is left empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def comparison_figure(comparison: Comparison) -> Figure:
    """Draw test result and calibration against ε: a line for each data set, relation and method.

    Points are means over seeds, bars one standard deviation. Runs without privacy are dashed lines.

    Raises:
        DpvdError: if no run has a result on test data.
    """
    measure = _first_measure(comparison.groups)
    panels = [measure]
    if any(group.mean("calibration_error") is not None for group in comparison.groups):
        panels.append("calibration_error")
    with matplotlib.rc_context(FIGURE_STYLE):
        figure = Figure(figsize=(4.8 * len(panels), 3.8))
        places = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, name in zip(places, panels, strict=True):
            _draw(axes, comparison.groups, name)
            axes.set_title(f"test {name}".replace("_", " "))
            axes.set_xlabel("ε")
        lines, names = places[0].get_legend_handles_labels()
        figure.legend(lines, names, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return figure


def _first_measure(groups: Sequence[Group]) -> str:
    for measure in ("accuracy", "auc", "rmse"):
        if any(group.mean(measure) is not None for group in groups):
            return measure
    raise DpvdError("there is nothing to draw: none of these runs was measured on test data")


def _draw(axes: Any, groups: Sequence[Group], measure: str) -> None:
    series: dict[tuple[str, ...], list[Group]] = {}
    for group in groups:
        if group.mean(measure) is not None:
            series.setdefault(_label(group, groups), []).append(group)
    for number, (names, members) in enumerate(series.items()):
        colour = PALETTE[_COLOURS[number % len(_COLOURS)]]
        label = ", ".join(names)
        private = [group for group in members if group.epsilon is not None]
        if private:
            axes.errorbar(
                [group.epsilon for group in private],
                [group.mean(measure) for group in private],
                yerr=[group.spread(measure) or 0.0 for group in private],
                color=colour,
                marker=_MARKERS[number % len(_MARKERS)],
                markersize=5,
                capsize=3,
                linewidth=1.5,
                label=label,
            )
            axes.set_xscale("log")
        for group in members:
            if group.epsilon is None:
                axes.axhline(group.mean(measure), color=colour, linestyle="--", label=label)
    ticks = sorted({group.epsilon for group in groups if group.epsilon is not None})
    if ticks:
        axes.set_xlim(ticks[0] / 1.25, ticks[-1] * 1.25)
        axes.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
        axes.minorticks_off()


def _label(group: Group, groups: Sequence[Group]) -> tuple[str, ...]:
    """Method, and what else tells lines apart: of different data or settings, none joins two."""
    words = ["without privacy" if group.method == "none" else group.method]
    private = [each for each in groups if each.epsilon is not None]
    for name in ("data", "relation"):
        if len({getattr(each, name) for each in private}) > 1:
            words.append(getattr(group, name))
    shapes = {each.shape for each in groups if each.method == group.method}
    for part, *others in zip(group.shape, *shapes, strict=True):
        if len(set(others)) > 1:
            words.append(part)
    return tuple(words)


def read_runs(folders: Sequence[Path]) -> dict[str, RunRecord]:
    """Return the records of finished runs, by their folder's name as given.

    Edge cases: the file of a sweep is skipped, so that a shell's ``sweep/*`` names its runs.

    Raises:
        DpvdError: if a folder holds no finished run, or is given twice.
    """
    records = {}
    for folder in folders:
        if folder.name == SWEEP and folder.is_file():
            continue
        if not folder.is_dir():
            raise DpvdError(f"there is no run folder {folder}")
        if str(folder) in records:
            raise DpvdError(f"{folder} is given twice")
        records[str(folder)] = RunRecord.read(folder)
    return records
