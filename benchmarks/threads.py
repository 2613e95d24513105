"""How many threads a step wants: wall time with one thread up to all, taking turns in one process.

    python -m benchmarks.threads --rounds 40

Needs a machine with nothing else to do. torch takes as many threads as there are cores unless
``OMP_NUM_THREADS`` says otherwise; this shows when to say otherwise.
"""

import argparse
import os
import statistics
import time
from itertools import product

import torch

from benchmarks.systems import SYSTEMS
from benchmarks.workloads import WORKLOADS, Step, Workload

NAMES = ("digits-mlp", "mnist-mlp")
SYSTEM_NAMES = ("plain", "dpsgd", "dpvd")
WARM_UP = 3


def milliseconds(step: Step, threads: int) -> float:
    """Wall time of one step on so many threads."""
    torch.set_num_threads(threads)
    started = time.perf_counter()
    step()
    return 1000 * (time.perf_counter() - started)


def measure(
    work: Workload, systems: tuple[str, ...], threads: range, rounds: int
) -> dict[tuple[str, int], float]:
    """Median milliseconds of every system's step for every number of threads."""
    steps = {name: SYSTEMS[name](work) for name in systems}
    settings = product(steps, threads)
    times: dict[tuple[str, int], list[float]] = {setting: [] for setting in settings}
    for turn in range(rounds + WARM_UP):
        for (name, n), values in times.items():
            elapsed = milliseconds(steps[name], n)
            if turn >= WARM_UP:
                values.append(elapsed)
    return {key: statistics.median(values) for key, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--most", type=int, default=os.cpu_count() or 1, help="threads to go up to")
    options = parser.parse_args()
    threads = range(1, options.most + 1)
    counts = [f"{n:>4} thread{'s' * (n > 1):<1}" for n in threads]
    print(f"{'workload':<12} {'system':<8}", *counts)
    for work in (WORKLOADS[name] for name in NAMES):
        medians = measure(work, SYSTEM_NAMES, threads, options.rounds)
        for system in SYSTEM_NAMES:
            times = [f"{medians[system, n]:8.2f} ms" for n in threads]
            print(f"{work.name:<12} {system:<8}", *times)


if __name__ == "__main__":
    main()
