"""Choosing learning rate and decay on a part of the training data, never on the test data."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from dpvd.errors import DpvdError
from dpvd.experiments.catalogue import Choices, TuningCell, make_spec
from dpvd.experiments.protocols import PROTOCOLS
from dpvd.experiments.record import RecordStore
from dpvd.experiments.spec import Part, Spec, Variant
from dpvd.report import write_atomically

__all__ = ["COST", "Trial", "Tuning", "TuningStore", "choose", "trials"]

COST = (
    "The guarantee is that of a final run alone. The trials are not in the account: each spent the budget of its cell "
    "once more, on nine tenths of the training data. Neither is the choice among them: it compares accuracies on the "
    "other tenth without noise, and no finite ε covers that."
)
"""What the search costs, in words."""


@dataclass(frozen=True)
class Trial:
    """One point of the grid, its accuracy on the held-out tenth and the hash of the spec that was run for it."""

    learning_rate: float
    gamma: float
    accuracy: float
    spec: str


@dataclass(frozen=True)
class Tuning:
    """What was chosen for a cell, and all that was tried.

    Args:
        cell: protocol, method and budget.
        learning_rate, gamma: the choice.
        at_edge: whether the chosen η₀ is the smallest or largest of the grid: a better one may lie beyond.
        trials: every point of the grid.
        cost: what the search costs in privacy, in words.
    """

    cell: TuningCell
    learning_rate: float
    gamma: float
    at_edge: bool
    trials: tuple[Trial, ...]
    cost: str = COST

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"trials": [asdict(trial) for trial in self.trials]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Tuning":
        known = {f.name for f in fields(cls)}
        if not isinstance(values, Mapping) or set(values) != known:
            raise DpvdError("not the result of a search: delete it, and it will be made again")
        made = tuple(Trial(**trial) for trial in values["trials"])
        return cls(**{**values, "cell": TuningCell(**values["cell"]), "trials": made})


def trials(cell: TuningCell) -> list[Spec]:
    """The specs whose accuracy on the held-out tenth decides about a cell: one for each point of the grid."""
    protocol = PROTOCOLS[cell.protocol]
    base = replace(make_spec(protocol, cell.method, Variant.TUNED, cell.epsilon, seed=0), part=Part.HELD_OUT)
    return [replace(base, learning_rate=rate, gamma=gamma) for rate in protocol.rates for gamma in protocol.gammas]


def choose(cell: TuningCell, store: RecordStore) -> Tuning:
    """The best point of the grid; of equals, the one with the smallest steps.

    Raises:
        DpvdError: if a trial has not been run.
    """
    made = []
    for spec in trials(cell):
        assert spec.learning_rate is not None
        assert spec.gamma is not None
        made.append(Trial(spec.learning_rate, spec.gamma, store.read(spec).accuracy, spec.hash))
    best = max(made, key=lambda trial: (trial.accuracy, -trial.learning_rate, trial.gamma))
    rates = [trial.learning_rate for trial in made]
    at_edge = best.learning_rate in (min(rates), max(rates))
    return Tuning(cell, best.learning_rate, best.gamma, at_edge, tuple(made))


class TuningStore:
    """A folder with one file for each cell that has been decided about."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __contains__(self, cell: TuningCell) -> bool:
        return self._path(cell).is_file()

    def write(self, tuning: Tuning) -> None:
        text = json.dumps(tuning.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)
        write_atomically(self._path(tuning.cell), (text + "\n").encode())

    def read_all(self) -> list[Tuning]:
        """Every choice there is.

        Raises:
            DpvdError: if a file is damaged.
        """
        found = []
        for path in sorted(self.folder.glob("*.json")):
            try:
                found.append(Tuning.from_dict(json.loads(path.read_text(encoding="utf-8"))))
            except (OSError, ValueError, TypeError) as error:
                raise DpvdError(f"the choice {path} cannot be read: {error}") from error
        return found

    def choices(self) -> Choices:
        """η₀ and γ by cell."""
        return {tuning.cell: (tuning.learning_rate, tuning.gamma) for tuning in self.read_all()}

    def _path(self, cell: TuningCell) -> Path:
        return self.folder / f"{cell.name}.json"
