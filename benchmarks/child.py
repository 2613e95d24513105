"""One system in a process of its own: prints what was measured as JSON.

    python -m benchmarks.child serve mnist-mlp dpsgd
    python -m benchmarks.child peak mnist-mlp dpsgd
    python -m benchmarks.child shares mnist-mlp dpsgd

``serve`` reads numbers, line by line, and takes so many steps each time; the answer has a line of
its own.

Systems come from ``--module``: any module whose ``SYSTEMS`` says how to build them, in whatever
environment.
"""

import argparse
import json
import sys
from importlib import import_module
from typing import Any

import torch

from benchmarks.children import ANSWER
from benchmarks.memory import limit_memory, peak_mb
from benchmarks.shares import shares
from benchmarks.timing import Clock, turns
from benchmarks.workloads import workload

__all__ = ["main", "measure"]


def measure(arguments: list[str]) -> Any:
    """What the command line asks for: steps to be taken, a peak in MB, or shares."""
    options = _parser().parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    make = import_module(options.module).SYSTEMS[options.system]
    work = workload(options.workload)
    if options.what == "peak":
        return peak_mb(make, work)
    step = make(work)
    if options.what == "shares":
        return shares(step, options.rounds)
    return turns(step, options.clock)


def main() -> int:
    limit_memory()
    found = measure(sys.argv[1:])
    if not callable(found):
        print(json.dumps(found))
        return 0
    print(ANSWER, "ready", flush=True)
    for line in sys.stdin:
        print(ANSWER, found(int(line)), flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["serve", "peak", "shares"])
    parser.add_argument("workload")
    parser.add_argument("system")
    parser.add_argument("--module", default="benchmarks.systems")
    parser.add_argument("--rounds", type=int, default=60, help="for shares: the number of steps")
    parser.add_argument("--clock", type=Clock, choices=list(Clock), default=Clock.WALL)
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0 for its own choice")
    return parser


if __name__ == "__main__":
    sys.exit(main())
