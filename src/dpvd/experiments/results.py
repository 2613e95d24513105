"""Records by the cells of tables and figures: means, spreads, numbers of runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from dpvd.experiments.catalogue import Choices, cell_specs, delta_specs, seeds_of, sweep_specs
from dpvd.experiments.protocols import ExperimentProtocol
from dpvd.experiments.result import ExperimentResult
from dpvd.experiments.spec import Spec, Variant
from dpvd.privacy import AccountantName

__all__ = ["Results", "Summary", "summarise"]


@dataclass(frozen=True)
class Summary:
    """The runs of one cell.

    Args:
        mean: of the final accuracies.
        spread: their standard deviation; None for a single run.
        runs: how many.
        examples: how many examples each accuracy is a share of.
        epsilon: the largest ε by ``pld`` among them; None without privacy.
        curve: epoch, mean accuracy and its standard deviation over runs (0 for a single run).
        by_seed: each run's seed and final accuracy.
    """

    mean: float
    spread: float | None
    runs: int
    examples: int
    epsilon: float | None
    curve: tuple[tuple[float, float, float], ...]
    by_seed: tuple[tuple[int, float], ...] = ()

    def words(self) -> str:
        """In per cent, with spread and number of runs.

        >>> Summary(0.9012, 0.0123, 10, 360, 1.0, ()).words()
        '90.1 ± 1.2 (10)'
        """
        spread = "" if self.spread is None else f" ± {100 * self.spread:.1f}"
        return f"{100 * self.mean:.1f}{spread} ({self.runs})"


def summarise(records: Sequence[ExperimentResult]) -> Summary | None:
    """Mean and spread of runs that differ in their seed only; None without any."""
    if not records:
        return None
    accuracies = [record.accuracy for record in records]
    spent = [record.epsilons[AccountantName.PLD] for record in records if record.epsilons]
    points = zip(*(record.curve for record in records), strict=True)
    return Summary(
        mean=fmean(accuracies),
        spread=stdev(accuracies) if len(accuracies) > 1 else None,
        runs=len(accuracies),
        examples=records[0].examples,
        epsilon=max(spent) if spent else None,
        by_seed=tuple((record.spec.seed, record.accuracy) for record in records),
        curve=tuple(
            (point[0][0], *_mean_and_spread([accuracy for _, accuracy in point]))
            for point in points
        ),
    )


def _mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    return fmean(values), stdev(values) if len(values) > 1 else 0.0


class Results:
    """What there is, by cell. A cell without records is None: nothing is made up for it."""

    def __init__(self, records: Iterable[ExperimentResult], choices: Choices) -> None:
        self._records = {record.hash: record for record in records}
        self._choices = choices

    def __len__(self) -> int:
        return len(self._records)

    def cell(
        self, protocol: ExperimentProtocol, method: str, variant: Variant, epsilon: float | None
    ) -> Summary | None:
        """A cell of Table 1."""
        seeds = protocol.seeds if variant is Variant.RECIPE else seeds_of(protocol, method, epsilon)
        return self._summary(cell_specs(protocol, method, variant, epsilon, self._choices, seeds))

    def sweep(
        self, protocol: ExperimentProtocol, variant: Variant, setting: str
    ) -> dict[float, Summary]:
        """A panel of Fig. 5: by value of the setting."""
        return self._present(sweep_specs(protocol, self._choices)[variant, setting])

    def deltas(self, protocol: ExperimentProtocol) -> dict[float, Summary]:
        """By δ."""
        return self._present(delta_specs(protocol))

    def _present(self, points: dict[float, list[Spec]]) -> dict[float, Summary]:
        found = {value: self._summary(specs) for value, specs in points.items()}
        return {value: summary for value, summary in found.items() if summary is not None}

    def _summary(self, specs: Iterable[Spec]) -> Summary | None:
        hashes = [spec.hash for spec in specs]
        return summarise([self._records[name] for name in hashes if name in self._records])
