"""Choosing learning rate and decay on a part of the training data, never on the test data.

A search starts with a grid and goes on to the neighbours of its best point, one step in η₀ or in γ
away, until all of them have been tried: no choice is left at the edge of what was looked at.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from dpvd.errors import DpvdError
from dpvd.experiments.carry import carried_rate
from dpvd.experiments.catalogue import Choices, TuningCell, make_spec
from dpvd.experiments.noise_levels import EXAMPLES
from dpvd.experiments.prepare import HELD_OUT
from dpvd.experiments.protocols import PROTOCOLS, ExperimentProtocol
from dpvd.experiments.spec import Part, Spec, Variant
from dpvd.files import write_atomically

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
        values = asdict(self)
        values["trials"] = [asdict(trial) for trial in self.trials]
        return values

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
        cell = TuningCell(**values["cell"])
        made = tuple(Trial(**trial) for trial in values["trials"])
        for trial in made:
            wanted = _trial(cell, (trial.learning_rate, trial.gamma))
            if wanted.hash != trial.spec:
                raise DpvdError("trials of other settings: delete it, and it will be made again")
        return cls(**{**values, "cell": cell, "trials": made})


def trials(cell: TuningCell, scores: Scores) -> list[Spec]:
    """The specs that must be run next before something can be chosen for a cell.

    Guarantees: what is asked for depends on the scores alone, and is empty once the search is over.
    """
    protocol = _searched(cell)
    grid = product(protocol.rates, protocol.gammas)
    missing = _unscored(cell, grid, scores)
    if missing or not protocol.search_on:
        return missing
    best, _ = _tried(cell, scores)
    around = _neighbours((best.learning_rate, best.gamma))
    return _unscored(cell, around, scores)


def _unscored(cell: TuningCell, points: Iterable[Point], scores: Scores) -> list[Spec]:
    specs = [_trial(cell, point) for point in points]
    return [spec for spec in specs if spec.hash not in scores]


def choose(cell: TuningCell, scores: Scores) -> Tuning:
    """The best point.

    Raises:
        DpvdError: if a trial has not been run.
    """
    missing = trials(cell, scores)
    if missing:
        raise DpvdError(f"{len(missing)} trials of {cell.name} have no record: run them first")
    protocol = PROTOCOLS[cell.protocol]
    searched = _searched(cell)
    best, tried = _tried(cell, scores)
    rates = [trial.learning_rate for trial in tried]
    at_edge = best.learning_rate in (min(rates), max(rates))
    if searched is protocol:
        return Tuning(cell, best.learning_rate, best.gamma, at_edge, tried)
    held_out = HELD_OUT * EXAMPLES[searched.dataset]
    chosen = _slowest_decay(tried, held_out)
    carried = carried_rate(
        method=cell.method,
        epsilon=cell.epsilon,
        rate=chosen.learning_rate,
        gamma=chosen.gamma,
        short=searched,
        long=protocol,
    )
    return Tuning(cell, carried, chosen.gamma, at_edge, tried)


def _slowest_decay(tried: Sequence[Trial], held_out: float) -> Trial:
    """Of the trials within a standard error of the best, the best with the smallest γ.

    A short run hardly tells decays apart, and a long one has more use for the slower: what γ = 1
    has not learnt early it never learns.
    """
    best = max(trial.accuracy for trial in tried)
    error = math.sqrt(best * (1 - best) / held_out)
    least = best - error
    near = [trial for trial in tried if trial.accuracy >= least]
    slowest = min(trial.gamma for trial in near)
    slow = [trial for trial in near if trial.gamma == slowest]

    def accuracy_first(trial: Trial) -> tuple[float, float]:
        return trial.accuracy, -trial.learning_rate

    return max(slow, key=accuracy_first)


def _searched(cell: TuningCell) -> ExperimentProtocol:
    """The protocol at which trials are run."""
    protocol = PROTOCOLS[cell.protocol]
    if protocol.tuned_at:
        return PROTOCOLS[protocol.tuned_at]
    return protocol


def _trial(cell: TuningCell, point: Point) -> Spec:
    rate, gamma = point
    protocol = _searched(cell)
    base = make_spec(protocol, cell.method, Variant.TUNED, cell.epsilon, seed=0)
    return replace(base, part=Part.HELD_OUT, learning_rate=rate, gamma=gamma)


def _tried(cell: TuningCell, scores: Scores) -> tuple[Trial, tuple[Trial, ...]]:
    """The best trial, and all."""
    protocol = _searched(cell)
    rates = sorted({*RATES, *protocol.rates})
    gammas = sorted({*GAMMAS, *protocol.gammas})
    made = []
    for rate, gamma in product(rates, gammas):
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
    position = steps.index(value)
    below = steps[:position]
    above = steps[position + 1 :]
    return [*below[-1:], *above[:1]]


class TuningStore:
    """The choices of a reproduction, in one file.

    Edge cases: files of single choices in the folder beside it, as earlier versions wrote them,
        count too. Of two choices for one cell the one with more trials counts.
    """

    def __init__(self, file: Path, earlier: Path | None = None) -> None:
        self.file = file
        self.earlier = earlier

    def __contains__(self, cell: TuningCell) -> bool:
        decided = self.choices()
        return cell in decided

    def write(self, *tunings: Tuning) -> None:
        """Keep choices, in place of those for the same cells."""
        by_name = {tuning.cell.name: tuning for tuning in self.read_all()}
        for tuning in tunings:
            by_name[tuning.cell.name] = tuning
        ordered = [by_name[name] for name in sorted(by_name)]
        text = _as_text(ordered)
        write_atomically(self.file, text.encode())

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
        scores = {}
        for tuning in self.read_all():
            for trial in tuning.trials:
                scores[trial.spec] = trial.accuracy
        return scores

    def _earlier_files(self) -> list[Path]:
        if self.earlier is None:
            return []
        return sorted(self.earlier.glob("*.json"))


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
