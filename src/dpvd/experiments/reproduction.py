"""The order of a reproduction: choose settings, run what is missing, and nothing twice."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpvd.data import load
from dpvd.experiments.catalogue import Experiment, TuningCell, runs_of, tuning_cells
from dpvd.experiments.protocols import PROTOCOLS, ExperimentProtocol
from dpvd.experiments.result import ExperimentResult
from dpvd.experiments.spec import Spec
from dpvd.experiments.store import ResultStore
from dpvd.experiments.tuning import TuningStore, choose, trials
from dpvd.experiments.workers import Job, cost, run_all

__all__ = ["Folder", "Status", "reproduce"]


@dataclass(frozen=True)
class Folder:
    """Where a reproduction keeps what it made."""

    path: Path

    @property
    def records(self) -> ResultStore:
        """Results of runs that were measured on the test data."""
        return ResultStore(self.path / "records")

    @property
    def tuning(self) -> TuningStore:
        """What was chosen, with all scores."""
        file = self.path / "tuning.json"
        earlier = self.path / "tuning"
        return TuningStore(file, earlier)

    @property
    def trials(self) -> ResultStore:
        """Results of runs that were measured on a tenth of the training data, to choose."""
        folder = self.path / "tuning" / "trials"
        return ResultStore(folder)

    def fold(self) -> None:
        """Move what workers and earlier versions left in single files into the files to keep."""
        self.records.fold()
        self.trials.fold()
        self.tuning.fold()

    def records_of(self, protocols: Sequence[ExperimentProtocol]) -> list[ExperimentResult]:
        """The records of these protocols."""
        names = {protocol.name for protocol in protocols}
        results = self.records.read_all()
        return [result for result in results if result.spec.protocol in names]

    def protocols(self) -> list[ExperimentProtocol]:
        """The protocols that have records here."""
        results = self.records.read_all()
        names = {result.spec.protocol for result in results}
        return [protocol for name, protocol in PROTOCOLS.items() if name in names]


@dataclass(frozen=True)
class Status:
    """How far a reproduction is.

    ``done`` and ``total`` are in the unit of :func:`cost`, for a bar; ``runs`` and ``of`` are
    specs.
    """

    done: float
    total: float
    runs: int
    of: int


def reproduce(
    experiment: Experiment,
    protocols: Sequence[ExperimentProtocol],
    folder: Folder,
    *,
    processes: int = 1,
    data_dir: Path | None = None,
    on_progress: Callable[[Status], None] = lambda status: None,
) -> int:
    """Run all that an experiment needs and that has no record yet; return how many specs that were.

    Guarantees:
        A spec with a record is not run again, and a choice that was made is not made again:
        starting a second time goes on where the first was stopped.

    Raises:
        DpvdError: if data cannot be had (before anything is run), or a record is damaged.
    """
    cells = [cell for protocol in protocols for cell in tuning_cells(experiment, protocol)]
    undecided = _undecided(cells, folder.tuning)
    first = _trials(undecided, folder)
    known = [*first, *_runs(experiment, protocols, folder)]
    for name in sorted({spec.dataset for spec, _ in known}):
        load(name, data_dir)  # better now than after hours
    # Runs that wait for a choice are known in number and length, not yet in learning rate: count
    # others in their place.
    waiting = _runs(experiment, protocols, folder, assumed=undecided)
    bar = _Bar([*first, *waiting], on_progress)
    jobs = first
    while jobs:
        for spec in run_all(jobs, processes, data_dir):
            bar.advance(cost(spec))
        jobs = _trials(undecided, folder)  # the best so far may ask for its neighbours
        bar.expect(jobs)
    if undecided:
        scores = _scores(folder)
        folder.tuning.write(*(choose(cell, scores) for cell in undecided))
    runs = _runs(experiment, protocols, folder)
    for spec in run_all(_seed_by_seed(runs), processes, data_dir):
        bar.advance(cost(spec))
    folder.fold()
    return bar.runs


def _undecided(cells: Sequence[TuningCell], store: TuningStore) -> list[TuningCell]:
    """The cells for which nothing was chosen yet, or whose search has to go on."""
    decided = store.choices()
    scores = store.scores()
    return [cell for cell in cells if cell not in decided or trials(cell, scores)]


def _scores(folder: Folder) -> dict[str, float]:
    """Of all trials: those that have a record here, and those that choices were made from."""
    scores = folder.tuning.scores()
    for result in folder.trials.read_all():
        scores[result.hash] = result.accuracy
    return scores


def _trials(cells: Sequence[TuningCell], folder: Folder) -> list[Job]:
    """The trials that these cells ask for next; none twice."""
    scores = _scores(folder)
    wanted: dict[Spec, None] = {}
    for cell in cells:
        for spec in trials(cell, scores):
            wanted[spec] = None
    return [(spec, folder.trials) for spec in wanted]


def _runs(
    experiment: Experiment,
    protocols: Sequence[ExperimentProtocol],
    folder: Folder,
    assumed: Sequence[TuningCell] = (),
) -> list[Job]:
    """The runs without a record; those of the assumed cells as if any choice had been made."""
    choices = dict(folder.tuning.choices())
    for cell in assumed:
        choices[cell] = (1.0, 0.0)
    wanted = []
    for protocol in protocols:
        wanted += runs_of(experiment, protocol, choices)
    missing = folder.records.missing(wanted)
    return [(spec, folder.records) for spec in missing]


def _seed_by_seed(jobs: list[Job]) -> list[Job]:
    """The first seed of everything, then the second: whoever stops has whole tables."""
    return sorted(jobs, key=lambda job: job[0].seed)


class _Bar:
    """Adds up what has been done."""

    def __init__(self, jobs: Sequence[Job], on_progress: Callable[[Status], None]) -> None:
        self.runs = 0
        self._of = 0
        self._done = 0.0
        self._total = 0.0
        self._on_progress = on_progress
        self.expect(jobs)

    def expect(self, jobs: Sequence[Job]) -> None:
        """Count what has to be done as well."""
        self._of += len(jobs)
        self._total += sum(cost(spec) for spec, _ in jobs)
        self._on_progress(self._status())

    def advance(self, units: float) -> None:
        """Count one spec as done."""
        self.runs += 1
        self._done += units
        self._on_progress(self._status())

    def _status(self) -> Status:
        return Status(self._done, self._total, self.runs, self._of)
