"""One measurement in a process of its own; prints its result as JSON.

    python -m benchmarks.child times mnist-mlp plain dpsgd --rounds 30
    python -m benchmarks.child peak mnist-mlp dpsgd
    python -m benchmarks.child shares mnist-mlp dpsgd

Systems come from ``--module``: any module whose ``SYSTEMS`` says how to build them, in whatever environment.
"""

import argparse
import json
import sys
from importlib import import_module
from typing import Any

import torch

from benchmarks.memory import limit_memory, peak_mb
from benchmarks.shares import shares
from benchmarks.timing import Clock, interleaved
from benchmarks.workloads import workload

__all__ = ["main", "measure"]


def measure(arguments: list[str]) -> Any:
    """What the command line asks for: milliseconds of each system in each round, a peak in MB, or shares."""
    options = _parser().parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    systems = import_module(options.module).SYSTEMS
    work = workload(options.workload)
    chosen = {name: systems[name] for name in options.systems}
    if options.what == "times":
        steps = {name: make(work) for name, make in chosen.items()}
        return interleaved(steps, rounds=options.rounds, seconds=options.seconds, clock=options.clock)
    (make,) = chosen.values()
    return peak_mb(make, work) if options.what == "peak" else shares(make(work), options.rounds)


def main() -> int:
    limit_memory()
    print(json.dumps(measure(sys.argv[1:])))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["times", "peak", "shares"])
    parser.add_argument("workload")
    parser.add_argument("systems", nargs="+")
    parser.add_argument("--module", default="benchmarks.systems")
    parser.add_argument("--rounds", type=int, default=60, help="at most; for shares, the number of steps")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clock", type=Clock, choices=list(Clock), default=Clock.WALL)
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0 for its own choice")
    return parser


if __name__ == "__main__":
    sys.exit(main())
