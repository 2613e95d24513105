"""Results by the cells of tables and figures: means, spreads, numbers of runs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from dpvd.experiments.catalogue import Choices, cell_specs, delta_specs, seeds_of, sweep_specs
from dpvd.experiments.protocols import ExperimentProtocol
from dpvd.experiments.result import ExperimentResult
from dpvd.experiments.spec import Spec, Variant
from dpvd.privacy import AccountantName

__all__ = ["Results", "Summary", "summarise"]

Point = tuple[float, float, float]
"""Epoch, mean accuracy and its standard deviation over runs (0 for a single run)."""


@dataclass(frozen=True)
class Summary:
    """The runs of one cell.

    Args:
        mean: of the final accuracies.
        spread: their standard deviation; None for a single run.
        runs: how many.
        examples: how many examples each accuracy is a share of.
        epsilon: the largest ε by ``pld`` among them; None without privacy.
        curve: a point for each epoch.
        by_seed: each run's seed and final accuracy.
    """

    mean: float
    spread: float | None
    runs: int
    examples: int
    epsilon: float | None
    curve: tuple[Point, ...]
    by_seed: tuple[tuple[int, float], ...] = ()

    def words(self) -> str:
        """In per cent, with spread and number of runs.

        >>> Summary(0.9012, 0.0123, 10, 360, 1.0, ()).words()
        '90.1 ± 1.2 (10)'
        """
        mean = f"{100 * self.mean:.1f}"
        if self.spread is None:
            return f"{mean} ({self.runs})"
        spread = f"{100 * self.spread:.1f}"
        return f"{mean} ± {spread} ({self.runs})"


def summarise(results: Sequence[ExperimentResult]) -> Summary | None:
    """Mean and spread of runs that differ in their seed only; None without any."""
    if not results:
        return None
    accuracies = [result.accuracy for result in results]
    spent = [result.epsilons[AccountantName.PLD] for result in results if result.epsilons]
    return Summary(
        mean=fmean(accuracies),
        spread=stdev(accuracies) if len(accuracies) > 1 else None,
        runs=len(accuracies),
        examples=results[0].examples,
        epsilon=max(spent) if spent else None,
        curve=_mean_curve(results),
        by_seed=tuple((result.spec.seed, result.accuracy) for result in results),
    )


def _mean_curve(results: Sequence[ExperimentResult]) -> tuple[Point, ...]:
    """The mean of all curves, epoch by epoch."""
    curve = []
    curves = [result.curve for result in results]
    for points in zip(*curves, strict=True):
        epoch = points[0][0]
        accuracies = [accuracy for _, accuracy in points]
        spread = stdev(accuracies) if len(accuracies) > 1 else 0.0
        curve.append((epoch, fmean(accuracies), spread))
    return tuple(curve)


class Results:
    """What there is, by cell. A cell without results is None: nothing is made up for it."""

    def __init__(self, results: Iterable[ExperimentResult], choices: Choices) -> None:
        self._by_hash = {result.hash: result for result in results}
        self._choices = choices

    def __len__(self) -> int:
        return len(self._by_hash)

    def cell(
        self, protocol: ExperimentProtocol, method: str, variant: Variant, epsilon: float | None
    ) -> Summary | None:
        """A cell of Table 1."""
        seeds = protocol.seeds
        if variant is not Variant.RECIPE:
            seeds = seeds_of(protocol, method, epsilon)
        specs = cell_specs(protocol, method, variant, epsilon, self._choices, seeds)
        return self._summary(specs)

    def sweep(
        self, protocol: ExperimentProtocol, variant: Variant, setting: str
    ) -> dict[float, Summary]:
        """A panel of Fig. 5: by value of the setting."""
        sweeps = sweep_specs(protocol, self._choices)
        specs = sweeps[variant, setting]
        return self._present(specs)

    def sweep_values(
        self, protocol: ExperimentProtocol, variant: Variant, setting: str
    ) -> list[float]:
        """All values of a panel of Fig. 5, whether they were run or not."""
        sweeps = sweep_specs(protocol, self._choices)
        return list(sweeps[variant, setting])

    def deltas(self, protocol: ExperimentProtocol) -> dict[float, Summary]:
        """By δ."""
        specs = delta_specs(protocol)
        return self._present(specs)

    def _present(self, points: Mapping[float, list[Spec]]) -> dict[float, Summary]:
        """Those points that have results."""
        found = {}
        for value, specs in points.items():
            summary = self._summary(specs)
            if summary is not None:
                found[value] = summary
        return found

    def _summary(self, specs: Iterable[Spec]) -> Summary | None:
        """Of those specs that have results."""
        found = []
        for spec in specs:
            result = self._by_hash.get(spec.hash)
            if result is not None:
                found.append(result)
        return summarise(found)
