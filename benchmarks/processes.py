"""Several processes against one: time and bytes of a private step.

    python -m benchmarks.processes                    two of one thread against one of two threads
    python -m benchmarks.processes --scaling          one to four processes of one thread

Needs a machine with nothing else to do, and Linux, whose sockets say how much they sent. Exit code
1 if a limit is passed.
"""

import argparse
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from benchmarks.children import ANSWER, PAUSE, ROOT
from benchmarks.plain import LEARNING_RATE
from benchmarks.timing import Turn, interleaved, ratios, spread, turns
from benchmarks.workloads import Step, Workload, workload
from dpvd.grads import Clipping
from dpvd.plan import PrivacyPlan
from dpvd.training import PrivateStep, cross_entropy

__all__ = ["LIMIT", "MOST_BYTES", "RESULTS", "Team", "predicted_bytes"]

RESULTS = Path(__file__).parent / "results" / "processes.json"
NAMES = ("mnist-mlp", "encoder")
LIMIT = 1.15
"""Two processes of one thread cost at most so many times one process with two threads."""
MOST_BYTES = 2.1
"""A process sends at most so many times the size of the parameters in a step."""

_BYTES_SENT = 200  # where Linux's tcp_info has the bytes sent, data and what was sent again
_STEPS = 10**6
_COUNTED = 5  # steps over which bytes are counted


def predicted_bytes(parameter_bytes: int, processes: int) -> float:
    """What one process sends in a step: (W-1)/W of all to reduce, as much to gather."""
    return 2 * parameter_bytes * (processes - 1) / processes


def private_step(work: Workload) -> Step:
    """One step on the whole batch, of which each process of a group has its part."""
    group = distributed.group.WORLD if distributed.is_initialized() else None
    model = work.network()
    plan = PrivacyPlan(
        examples=work.batch,
        batch_size=work.batch,
        steps=_STEPS,
        noise_multiplier=1.0,
        clipping=Clipping("flat", clip_norm=1.0),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    step = PrivateStep(model, cross_entropy, plan, optimizer, group=group)
    batches = plan.batches(work.data(), shared=True, group=group)
    return lambda: step(next(batches))


def bytes_sent() -> int:
    """By all TCP connections that this process has open."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as connection:
                facts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:  # a file, or another kind of socket
            continue
        if len(facts) >= _BYTES_SENT + 8:
            total += struct.unpack_from("=Q", facts, _BYTES_SENT)[0]
    return total


def member(name: str) -> None:
    """One process: takes as many steps as each line of its input says, and answers."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if "RANK" in os.environ:
        distributed.init_process_group("gloo")
    step = private_step(workload(name))
    take = turns(step)
    print(ANSWER, "ready", flush=True)
    for line in sys.stdin:
        if line.strip() != "bytes":
            print(ANSWER, take(int(line)), flush=True)
            continue
        before = bytes_sent()
        take(_COUNTED)
        print(ANSWER, (bytes_sent() - before) / _COUNTED, flush=True)


class Team:
    """Processes that train together, each with so many threads; one of them is no group."""

    def __init__(self, name: str, processes: int, threads: int) -> None:
        command = [sys.executable, "-m", "benchmarks.processes", "--member", name]
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        self._members = []
        for rank in range(processes):
            environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
            if processes > 1:
                environment |= {**address, "RANK": str(rank), "WORLD_SIZE": str(processes)}
            self._members.append(
                subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )

    def wait_until_ready(self) -> None:
        for each in self._members:
            self._answer(each)

    def __call__(self, repeats: int) -> float:
        """Take so many steps together: milliseconds of one, of the slowest process."""
        time.sleep(PAUSE)
        return max(map(float, self._ask(str(repeats))))

    def bytes_per_step(self) -> float:
        """What the process that sends most sends in one step."""
        return max(map(float, self._ask("bytes")))

    def end(self) -> None:
        for each in self._members:
            each.kill()
            each.communicate()

    def _ask(self, words: str) -> list[str]:
        for each in self._members:
            assert each.stdin is not None
            print(words, file=each.stdin, flush=True)
        return [self._answer(each) for each in self._members]

    def _answer(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(ANSWER):
                return line.removeprefix(ANSWER).strip()
        raise RuntimeError(f"a process ended with code {process.wait()}: its own message says why")


def _free_port() -> int:
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        port: int = any_port.getsockname()[1]
        return port


@contextmanager
def teams(name: str, shapes: Mapping[str, tuple[int, int]]) -> Iterator[dict[str, Team]]:
    """Teams by their names, of so many processes and threads, built and warmed up."""
    started = {label: Team(name, *shape) for label, shape in shapes.items()}
    try:
        for team in started.values():
            team.wait_until_ready()
        yield started
    finally:
        for team in started.values():
            team.end()


def compare(name: str, *, rounds: int, seconds: float) -> dict[str, Any]:
    """Two processes of one thread and one process of two, taking turns; and bytes."""
    size = sum(p.numel() * p.element_size() for p in workload(name).network().parameters())
    with teams(name, {"one": (1, 2), "two": (2, 1)}) as found:
        systems: dict[str, Turn] = dict(found)
        times = interleaved(systems, rounds=rounds, seconds=seconds)
        sent = found["two"].bytes_per_step()
    return {
        "one_ms": statistics.median(times["one"]),
        "two_ms": statistics.median(times["two"]),
        "ratio": ratios(times, "one")["two"].to_dict(),
        "rounds": len(times["one"]),
        "parameter_bytes": size,
        "bytes": sent,
        "predicted_bytes": predicted_bytes(size, 2),
    }


def scaling(name: str, *, rounds: int, seconds: float) -> dict[str, Any]:
    """Milliseconds of a step with one to four processes of one thread."""
    shapes = {str(processes): (processes, 1) for processes in range(1, 5)}
    with teams(name, shapes) as found:
        times = interleaved(dict(found), rounds=rounds, seconds=seconds)
    return {label: spread(values).to_dict() for label, values in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--member", metavar="WORKLOAD", help=argparse.SUPPRESS)
    parser.add_argument("--workloads", nargs="+", default=NAMES)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--scaling", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.member:
        member(options.member)
        return 0
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    over = 0
    for name in options.workloads:
        entry = results.setdefault(name, {})
        if options.scaling:
            entry["scaling"] = scaling(name, rounds=options.rounds, seconds=options.seconds)
            medians = [f"{of['median']:.1f}" for of in entry["scaling"].values()]
            print(f"{name}: 1 to 4 processes, ms: {', '.join(medians)}")
            continue
        entry |= compare(name, rounds=options.rounds, seconds=options.seconds)
        ratio = entry["ratio"]["median"]
        share = entry["bytes"] / entry["parameter_bytes"]
        print(f"{name}: one process {entry['one_ms']:.1f} ms, two {entry['two_ms']:.1f} ms", end="")
        print(f", ratio {ratio:.3f} (limit {LIMIT}), bytes {share:.3f} P (limit {MOST_BYTES})")
        over += (ratio > LIMIT) + (share > MOST_BYTES)
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    return int(over > 0)


if __name__ == "__main__":
    sys.exit(main())
