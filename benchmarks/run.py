"""Measure everything and write it down.

    make bench              all workloads, systems, growth, other libraries: results/latest.json
    make bench-quick        all workloads, our systems, few rounds, no memory: results/quick.json
    make bench-peers        the other libraries again, into the latest results

On a busy machine: --clock cpu --threads 1.
"""

import argparse
import math
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from benchmarks.children import NoResult, StepServer, child
from benchmarks.environments import PEERS, Peer, installed, interpreter
from benchmarks.growth import GROWTH, Growth
from benchmarks.results import LATEST, QUICK, Results, Times, circumstances, entry, load, save
from benchmarks.systems import SYSTEMS, applies
from benchmarks.timing import Clock, interleaved, ratios
from benchmarks.workloads import WORKLOADS, Workload, workload
from dpvd.nn import variational

__all__ = ["Settings", "growth", "main", "ours", "peers"]

PRIVATE = ("dpsgd", "dpvd", "sparse-private")
BASELINES = ("sparse", "plain-channels-last")  # beside the plain step, to which all are compared


@dataclass(frozen=True)
class Settings:
    """How long and how to measure.

    Args:
        rounds, seconds: of all runs together, whichever ends it first.
        runs: how many interleaved runs, each with a new process for every system. Where operands
            lie in memory makes a product of matrices up to a fifth faster or slower, for as long as
            a process lives.
        peaks: processes for each figure of memory; 0 for none.
        profiled: steps over which shares are taken; 0 for none.
        clock, threads: as for ``benchmarks.child``.
        both: whether networks from public libraries, timed on one thread, are timed on two as well.
    """

    rounds: int
    seconds: float
    peaks: int
    profiled: int
    runs: int = 1
    clock: Clock = Clock.WALL
    threads: int = 0
    both: bool = False


FULL = Settings(rounds=100, seconds=60.0, peaks=3, profiled=20, runs=2, both=True)
FAST = Settings(
    rounds=60, seconds=6.0, peaks=0, profiled=0
)  # starting a process takes several seconds


def ours(name: str, settings: Settings) -> Results:
    """A workload: the plain step and our systems, taking turns; memory; where the time goes."""
    if not workload(name).from_library:
        return _ours(name, settings)
    found = _ours(name, replace(settings, threads=1))
    if settings.both:
        times = _times(replace(settings, threads=2), name, "plain", "dpsgd")
        found["two_threads"] = {system: entry(times, system, ()) for system in times}
    return found


def _ours(name: str, settings: Settings) -> Results:
    work = workload(name)
    systems = [system for system in SYSTEMS if applies(system, work)]
    times = _times(settings, name, *systems)
    entries = {system: entry(times, system, BASELINES) for system in systems}
    if settings.peaks:
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # memory does not mind company
            peaks = pool.map(lambda system: _peak(settings, name, system), systems)
        for system, peak in zip(systems, peaks, strict=True):
            entries[system]["peak_mb"] = peak
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "batch": work.batch,
        "parameters": sum(p.numel() for p in work.network().parameters()),
        "variational": _conversion(work),
        "rounds": len(times["plain"]),
        "runs": settings.runs,
        "systems": entries,
        "shares": {
            system: _shares(settings, name, system)
            for system in PRIVATE
            if settings.profiled and system in systems
        },
    }


def _conversion(work: Workload) -> str:
    """What is variational in the systems that are; empty where none is trained."""
    if work.from_library:
        return ""
    return str(variational(work.network()).conversion)


def peers(name: str, settings: Settings, libraries: tuple[Peer, ...] = PEERS) -> dict[str, Results]:
    """Other libraries on a workload, each against the plain step in its own process; or why not."""
    found: dict[str, Results] = {}
    if workload(name).from_library:
        settings = replace(settings, threads=1)
    for peer in libraries:
        if workload(name).from_library and not peer.takes_any:
            reason = "the network is not written in JAX here"
            found |= {system: {"failed": reason} for system in peer.systems}
            continue
        for system in peer.systems:
            found[system] = _or_reason(
                lambda peer=peer, system=system: _peer(peer, system, name, settings)
            )
    return found


def growth(what: Growth, settings: Settings) -> Results:
    """Ratios to the plain step as one thing grows."""
    systems = ("plain", "dpsgd", "dpvd")
    once = replace(settings, runs=1)
    runs = [_times(once, name, *systems) for name in what.workloads]
    return {
        "network": what.network,
        "at": list(what.at),
        "ms": [median(run["plain"]) for run in runs],
        "ratios": {
            system: [ratios(run, "plain")[system].to_dict() for run in runs]
            for system in systems[1:]
        },
    }


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    standard = FAST if options.quick else FULL
    settings = replace(
        standard,
        rounds=options.rounds or standard.rounds,
        seconds=options.seconds or standard.seconds,
        clock=options.clock,
        threads=options.threads,
    )
    output = options.output or (QUICK if options.quick else LATEST)
    if options.peers_only or options.again:
        results = load(output)
    else:
        results = circumstances(settings.clock, settings.threads)
    for name in options.workloads:
        if not options.peers_only:
            _say(f"{name}: plain and ours")
            found = ours(name, settings)
            if options.again:
                known = results["workloads"][name]
                found["systems"] = known["systems"] | found["systems"]
            results["workloads"][name] = found
        if options.peers_only or not (options.quick or options.again):
            _say(f"{name}: other libraries")
            results["workloads"][name]["systems"] |= peers(name, settings)
        save(output, results)
    if not (options.quick or options.peers_only or options.again):
        for what in GROWTH:
            _say(f"growth with {what.name}")
            results["growth"][what.name] = growth(what, settings)
    if not options.quick:
        results["versions"] |= _versions()
    save(output, results)
    _say(f"written to {output}")
    return 0


def _peer(peer: Peer, system: str, name: str, settings: Settings) -> Results:
    python = interpreter(peer)
    once = replace(settings, runs=1)
    times = _times(once, name, "plain", system, more=("--module", peer.module), python=python)
    found = entry(times, system, ())
    found["peak_mb"] = _peak(settings, name, system, "--module", peer.module, python=python)
    return found


def _times(
    settings: Settings,
    name: str,
    *systems: str,
    more: tuple[str, ...] = (),
    python: Path | None = None,
) -> Times:
    """Of several interleaved runs, one after the other, with new processes for each."""
    total: Times = {system: [] for system in systems}
    for _ in range(settings.runs):
        times = _interleaved(settings, name, systems, more, python)
        for system, ms in times.items():
            total[system] += ms
    return total


def _interleaved(
    settings: Settings,
    name: str,
    systems: tuple[str, ...],
    more: tuple[str, ...],
    python: Path | None,
) -> Times:
    options = (*more, "--clock", settings.clock, "--threads", settings.threads)
    servers = {system: StepServer(name, system, *options, python=python) for system in systems}
    rounds = math.ceil(settings.rounds / settings.runs)
    seconds = settings.seconds / settings.runs
    try:
        for server in servers.values():
            server.wait_until_ready()
        return interleaved(servers, rounds=rounds, seconds=seconds)
    finally:
        for server in servers.values():
            server.end()


def _peak(
    settings: Settings, name: str, system: str, *more: str, python: Path | None = None
) -> float:
    """The median of several fresh processes."""
    one = ("peak", name, system, *more, "--threads", settings.threads)
    peaks = [child(*one, python=python) for _ in range(settings.peaks)]
    return median(peaks)


def _shares(settings: Settings, name: str, system: str) -> dict[str, float]:
    found: dict[str, float] = child(
        "shares", name, system, "--rounds", settings.profiled, "--threads", settings.threads
    )
    return found


def _or_reason(measure: Callable[[], Results]) -> Results:
    try:
        return measure()
    except NoResult as reason:
        return {"failed": str(reason)}


def _versions() -> dict[str, str]:
    """Of the other libraries that could be installed."""
    found: dict[str, str] = {}
    for peer in PEERS:
        names = tuple(
            requirement.split("==")[0] for requirement in peer.requirements if "==" in requirement
        )
        try:
            found |= installed(interpreter(peer), names)
        except NoResult as reason:
            found |= dict.fromkeys(names, str(reason))
    return found


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--quick", action="store_true", help="our systems only, few rounds, no memory"
    )
    kind.add_argument("--peers-only", action="store_true", help="measure the other libraries again")
    kind.add_argument(
        "--again",
        action="store_true",
        help="measure our systems again, and keep what else is known",
    )
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), metavar="NAME")
    parser.add_argument("--rounds", type=int, help="at most this many for each interleaved run")
    parser.add_argument("--seconds", type=float, help="after which no round of a run begins")
    parser.add_argument("--clock", type=Clock, choices=list(Clock), default=Clock.WALL)
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0 for its own choice")
    parser.add_argument("--output", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
