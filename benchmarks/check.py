"""Compare measurements with the limits that were set for them.

    python -m benchmarks.check [results.json]

Prints every number that has a limit, and which are over it; the exit code is 1 if any is.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results import LATEST, Results, load
from benchmarks.workloads import WORKLOADS

__all__ = ["LIMITS", "Limit", "Verdict", "judge", "main", "remarks"]


@dataclass(frozen=True)
class Limit:
    """How much slower and larger than a baseline the step of a system may be.

    Args:
        workloads, systems: to which it applies.
        ratio: of the median times, in interleaved rounds.
        memory: of the peaks, in fresh processes.
        baseline: the system that it is compared with.
    """

    workloads: tuple[str, ...]
    systems: tuple[str, ...]
    ratio: float
    memory: float
    baseline: str = "plain"


_OWN = tuple(name for name, work in WORKLOADS.items() if not work.from_library)
LIMITS = (
    Limit(("mnist-mlp", "wide-mlp"), ("dpsgd", "dpvd"), ratio=1.10, memory=1.2),
    Limit(("digits-mlp",), ("dpsgd", "dpvd"), ratio=1.3, memory=1.2),
    Limit(("cnn",), ("dpsgd", "dpvd"), ratio=1.15, memory=1.3),
    Limit(("lstm",), ("dpsgd", "dpvd"), ratio=1.2, memory=1.3),
    Limit(_OWN, ("sparse-private",), ratio=1.15, memory=1.2, baseline="sparse"),
    Limit(("encoder",), ("dpsgd",), ratio=1.20, memory=1.3),
    Limit(("decoder-lora",), ("dpsgd",), ratio=1.15, memory=1.3),
    Limit(("resnet",), ("dpsgd",), ratio=1.5, memory=1.3),
)


@dataclass(frozen=True)
class Verdict:
    """One measurement and its limit; ``found`` is None where it was not measured."""

    workload: str
    system: str
    quantity: str
    baseline: str
    found: float | None
    limit: float

    @property
    def met(self) -> bool:
        return self.found is not None and self.found <= self.limit

    def __str__(self) -> str:
        found = "not measured"
        if self.found is not None:
            found = f"{self.found:.3f}"
        mark = "" if self.met else "   OVER LIMIT"
        what = f"{self.quantity} to {self.baseline}"
        system = f"{self.workload:<12} {self.system:<15}"
        return f"{system} {what:<16} {found:>12}   at most {self.limit:g}{mark}"


def judge(results: Results) -> list[Verdict]:
    """Every measurement that has a limit. One that is missing is over it.

    Edge cases: memory counts if it was measured anywhere: a quick run leaves it out.
    """
    found = []
    for limit in LIMITS:
        for work in limit.workloads:
            systems = results["workloads"].get(work, {}).get("systems", {})
            for system in limit.systems:
                found += _judge_system(systems, work, system, limit)
    if _has_memory(results):
        return found
    return [verdict for verdict in found if verdict.quantity == "time"]


def _judge_system(systems: Results, work: str, system: str, limit: Limit) -> list[Verdict]:
    own = systems.get(system, {})
    base = systems.get(limit.baseline, {})
    if limit.baseline == "plain":
        time = own.get("ratio")
    else:
        time = own.get("ratio_to", {}).get(limit.baseline)
    memory = None
    if "peak_mb" in own and "peak_mb" in base:
        memory = own["peak_mb"] / base["peak_mb"]
    return [
        Verdict(work, system, "time", limit.baseline, time, limit.ratio),
        Verdict(work, system, "memory", limit.baseline, memory, limit.memory),
    ]


def _has_memory(results: Results) -> bool:
    for work in results["workloads"].values():
        for found in work["systems"].values():
            if "peak_mb" in found:
                return True
    return False


def remarks(results: Results) -> list[str]:
    """What the limits say nothing of, but whoever reads them should know."""
    found = []
    for name, work in results["workloads"].items():
        for system in ("dpsgd", "dpvd"):
            entry = work["systems"].get(system, {})
            ratio = entry.get("ratio_to", {}).get("plain-channels-last")
            if ratio is not None:
                times = f"{ratio:.2f} times"
                found.append(f"{name}: {system} takes {times} the plain step in channels_last")
    return found


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    path = Path(given[0]) if given else LATEST
    results = load(path)
    verdicts = judge(results)
    met = [verdict for verdict in verdicts if verdict.met]
    when = f"{results['clock']} time, {results['date']}"
    print(*verdicts, *remarks(results), sep="\n")
    print(f"{len(met)} of {len(verdicts)} limits met ({when})")
    return int(len(met) < len(verdicts))


if __name__ == "__main__":
    sys.exit(main())
