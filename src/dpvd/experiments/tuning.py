"""Choosing learning rate and decay on a part of the training data, never on the test data.

A search starts with a grid and goes on to the neighbours of its best point, one step in η₀ or in γ
away, until all of them have been tried: no choice is left at the edge of what was looked at.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from dpvd.errors import DpvdError
from dpvd.experiments.carry import carried_rate
from dpvd.experiments.catalogue import Choices, TuningCell, make_spec
from dpvd.experiments.noise_levels import EXAMPLES
from dpvd.experiments.prepare import HELD_OUT
from dpvd.experiments.protocols import PROTOCOLS, ExperimentProtocol
from dpvd.experiments.spec import Part, Spec, Variant
from dpvd.report import write_atomically

__all__ = ["COST", "Scores", "Trial", "Tuning", "TuningStore", "choose", "trials"]

COST = (
    "The guarantee is that of a final run alone. The trials are not in the account: each spent the"
    " budget of its cell once more, on nine tenths of the training data. Neither is the choice"
    " among them: it compares accuracies on the other tenth without noise, and no finite ε covers"
    " that."
)
"""What the search costs, in words."""

RATES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""The learning rates that a search can reach, in the order of its steps."""
GAMMAS = (0.0, 0.5, 1.0)
"""The decays that a search can reach, in the order of its steps."""

Point = tuple[float, float]
"""η₀ and γ."""

Scores = Mapping[str, float]
"""Accuracy on the held-out tenth, by the hash of the trial's spec."""


@dataclass(frozen=True)
class Trial:
    """One point that was tried, its accuracy on the held-out tenth and the hash of its spec."""

    learning_rate: float
    gamma: float
    accuracy: float
    spec: str


@dataclass(frozen=True)
class Tuning:
    """What was chosen for a cell, and all that was tried.

    Args:
        cell: protocol, method and budget.
        learning_rate, gamma: the choice. Where a shorter protocol's search decides, the slowest
            decay of those that cannot be told from the best, and its η₀ carried over.
        at_edge: whether the best η₀ is the smallest or largest that was tried, so that a better one
            may lie beyond.
        trials: every point.
        cost: what the search costs in privacy, in words.
    """

    cell: TuningCell
    learning_rate: float
    gamma: float
    at_edge: bool
    trials: tuple[Trial, ...]
    cost: str = COST

    @property
    def best(self) -> Trial:
        """The most accurate trial; of equals, the one with the smallest steps."""
        return max(self.trials, key=lambda t: (t.accuracy, -t.learning_rate, t.gamma))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"trials": [asdict(trial) for trial in self.trials]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Tuning":
        """Read what ``to_dict`` wrote.

        Raises:
            DpvdError: if a field is missing or unknown, or trials are not those that the cell asks
                for today: a choice that was made for other settings is not one for these.
        """
        known = {f.name for f in fields(cls)}
        if not isinstance(values, Mapping) or set(values) != known:
            raise DpvdError("not the result of a search: delete it, and it will be made again")
        made = tuple(Trial(**trial) for trial in values["trials"])
        tuning = cls(**{**values, "cell": TuningCell(**values["cell"]), "trials": made})
        if any(_trial(tuning.cell, (t.learning_rate, t.gamma)).hash != t.spec for t in made):
            raise DpvdError("trials of other settings: delete it, and it will be made again")
        return tuning


def trials(cell: TuningCell, scores: Scores) -> list[Spec]:
    """The specs that must be run next before something can be chosen for a cell.

    Guarantees: what is asked for depends on the scores alone, and is empty once the search is over.
    """
    protocol = _searched(cell)
    grid = [_trial(cell, (rate, gamma)) for rate in protocol.rates for gamma in protocol.gammas]
    missing = [spec for spec in grid if spec.hash not in scores]
    if missing or not protocol.search_on:
        return missing
    best = _tried(cell, scores)[0]
    around = [_trial(cell, point) for point in _neighbours((best.learning_rate, best.gamma))]
    return [spec for spec in around if spec.hash not in scores]


def choose(cell: TuningCell, scores: Scores) -> Tuning:
    """The best point.

    Raises:
        DpvdError: if a trial has not been run.
    """
    missing = trials(cell, scores)
    if missing:
        raise DpvdError(f"{len(missing)} trials of {cell.name} have no record: run them first")
    protocol, searched = PROTOCOLS[cell.protocol], _searched(cell)
    best, tried = _tried(cell, scores)
    rates = [trial.learning_rate for trial in tried]
    at_edge = best.learning_rate in (min(rates), max(rates))
    if searched is protocol:
        return Tuning(cell, best.learning_rate, best.gamma, at_edge, tried)
    taken = _slowest_decay(tried, held_out=HELD_OUT * EXAMPLES[searched.dataset])
    rate, gamma = taken.learning_rate, taken.gamma
    carried = carried_rate(cell.method, cell.epsilon, rate, gamma, searched, protocol)
    return Tuning(cell, carried, gamma, at_edge, tried)


def _slowest_decay(tried: Sequence[Trial], held_out: float) -> Trial:
    """Of the trials within a standard error of the best, the best with the smallest γ.

    A short run hardly tells decays apart, and a long one has more use for the slower: what γ = 1
    has not learnt early it never learns.
    """
    best = max(trial.accuracy for trial in tried)
    error = math.sqrt(best * (1 - best) / held_out)
    near = [trial for trial in tried if trial.accuracy >= best - error]
    return max(near, key=lambda trial: (-trial.gamma, trial.accuracy, -trial.learning_rate))


def _searched(cell: TuningCell) -> ExperimentProtocol:
    """The protocol at which trials are run."""
    protocol = PROTOCOLS[cell.protocol]
    return PROTOCOLS[protocol.tuned_at] if protocol.tuned_at else protocol


def _trial(cell: TuningCell, point: Point) -> Spec:
    base = make_spec(_searched(cell), cell.method, Variant.TUNED, cell.epsilon, seed=0)
    rate, gamma = point
    return replace(base, part=Part.HELD_OUT, learning_rate=rate, gamma=gamma)


def _tried(cell: TuningCell, scores: Scores) -> tuple[Trial, tuple[Trial, ...]]:
    """The best trial, and all."""
    protocol = _searched(cell)
    made = []
    for rate in sorted({*RATES, *protocol.rates}):
        for gamma in sorted({*GAMMAS, *protocol.gammas}):
            name = _trial(cell, (rate, gamma)).hash
            if name in scores:
                made.append(Trial(rate, gamma, scores[name], name))
    tried = tuple(made)
    return Tuning(cell, 0.0, 0.0, False, tried).best, tried


def _neighbours(point: Point) -> list[Point]:
    """One step in η₀ or in γ away.

    >>> _neighbours((1.0, 0.5))
    [(0.3, 0.5), (3.0, 0.5), (1.0, 0.0), (1.0, 1.0)]
    """
    rate, gamma = point
    in_rate = [(other, gamma) for other in _beside(rate, RATES)]
    in_gamma = [(rate, other) for other in _beside(gamma, GAMMAS)]
    return in_rate + in_gamma


def _beside(value: float, steps: tuple[float, ...]) -> list[float]:
    place = steps.index(value)
    return [steps[index] for index in (place - 1, place + 1) if 0 <= index < len(steps)]


class TuningStore:
    """The choices of a reproduction, in one file.

    Edge cases: files of single choices in the folder beside it, as earlier versions wrote them,
        count too. Of two choices for one cell the one with more trials counts.
    """

    def __init__(self, file: Path, earlier: Path | None = None) -> None:
        self.file = file
        self.earlier = earlier

    def __contains__(self, cell: TuningCell) -> bool:
        return any(tuning.cell == cell for tuning in self.read_all())

    def write(self, *tunings: Tuning) -> None:
        """Keep choices, in place of those for the same cells."""
        by_cell = {tuning.cell: tuning for tuning in [*self.read_all(), *tunings]}
        ordered = sorted(by_cell.values(), key=lambda tuning: tuning.cell.name)
        write_atomically(self.file, _as_text(ordered).encode())

    def fold(self) -> None:
        """Take single choices of earlier versions into the file."""
        files = self._earlier_files()
        if files:
            self.write()
        for path in files:
            path.unlink()

    def read_all(self) -> list[Tuning]:
        """Every choice there is, by the name of its cell.

        Raises:
            DpvdError: if a file is damaged, or was made for other settings.
        """
        found: dict[TuningCell, Tuning] = {}
        for path in [self.file, *self._earlier_files()]:
            for tuning in _read(path):
                known = found.get(tuning.cell)
                if known is None or len(tuning.trials) >= len(known.trials):
                    found[tuning.cell] = tuning
        return sorted(found.values(), key=lambda tuning: tuning.cell.name)

    def choices(self) -> Choices:
        """η₀ and γ by cell."""
        return {tuning.cell: (tuning.learning_rate, tuning.gamma) for tuning in self.read_all()}

    def scores(self) -> dict[str, float]:
        """Accuracies of all trials that choices were made from, by the hash of their specs."""
        made = [trial for tuning in self.read_all() for trial in tuning.trials]
        return {trial.spec: trial.accuracy for trial in made}

    def _earlier_files(self) -> list[Path]:
        return [] if self.earlier is None else sorted(self.earlier.glob("*.json"))


def _read(path: Path) -> list[Tuning]:
    """The choices in a file, which holds a list of them or a single one; none without a file."""
    if not path.exists():
        return []
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        listed = values if isinstance(values, list) else [values]
        return [Tuning.from_dict(each) for each in listed]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DpvdError(f"the choice {path} cannot be read: {error}") from error


def _as_text(tunings: Sequence[Tuning]) -> str:
    """A list in JSON with a line for each trial, so that changes can be read."""
    cells = []
    for tuning in tunings:
        values = tuning.to_dict()
        trial_lines = [_json(trial) for trial in values.pop("trials")]
        lines = [f"{_json(name)}: {_json(value)}" for name, value in values.items()]
        lines.append('"trials": [\n  ' + ",\n  ".join(trial_lines) + "\n ]")
        cells.append("{" + ",\n ".join(lines) + "}")
    return "[" + ",\n".join(cells) + "]\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
