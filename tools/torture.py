"""Kill runs with SIGKILL at any instant, and see that each ends whole and that no charge is lost.

Real ``dpvd train`` programs are killed, half of them after a random time, half of them at a random
system call that concerns the run's folder (a file opened, moved, removed, a folder made). Each is
resumed until it ends. After every kill, what was released, as written down by the killed process
itself outside the folder, is compared with what the ledgers say; at the end the run is verified.

    python -m tools.torture --kills 300
"""

import argparse
import itertools
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tools.torture_child import Run, program

LONGEST = 300  # seconds that a run may take

# By name, what is trained; all with a ledger of several lines and several checkpoints.
WORKLOADS = {
    "digits": "train digits --epsilon 1 --delta 1e-5 --hidden 16 --epochs 12 --batch-size 200"
    " --recipe paper",
    "table": "train {place}/table.csv --target days --schema {place}/schema.toml --epsilon 4"
    " --delta 1e-5 --private-bounds 1 --test-fraction 0.2",
    "images": "train {place}/images.npz --epsilon 2 --delta 1e-5 --epochs 3 --batch-size 50"
    " --test-fraction 0.2",
    "sets": "train digits --epsilon 8 --delta 1e-5 --hidden 16 --epochs 6 --batch-size 200"
    " --recipe paper --prediction-sets 0.3",
    "account": "train digits --epsilon 1 --delta 1e-5 --hidden 16 --epochs 6 --batch-size 200"
    " --recipe paper",
}
DRAWING = ("account",)  # those that draw from an account of the data
LIMIT = 1.2  # ε of it: for one run and not for two


@dataclass
class Tally:
    """What happened."""

    kills: int = 0
    runs: int = 0
    releases: int = 0
    stages: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


# In the process that kills.


def start(command: list[str], run: Run, instant: int | None = None) -> Any:
    """Start the program in a process forked from a server that has everything loaded."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tools.torture_child"])
    child = processes.Process(target=program, args=(command, run, instant))
    child.start()
    return child


def finish(command: list[str], run: Run) -> int:
    """Run a command to its end and return its exit code."""
    child = start(command, run)
    child.join(LONGEST)
    code = child.exitcode
    child.kill()
    return -1 if code is None else int(code)


def charged(folder: Path) -> dict[str, int]:
    """By ledger, the steps on its complete lines: read here, not by the package."""
    found = {}
    for path in sorted(folder.glob("ledger*.jsonl")):
        lines = path.read_bytes().split(b"\n")[:-1]
        found[path.name] = sum(json.loads(line).get("steps", 0) for line in lines)
    return found


def drawn(account: Path) -> int:
    """Steps that an account counts, on its complete lines: read here, not by the package."""
    steps: dict[str, int] = {}
    for line in account.read_bytes().split(b"\n")[1:-1]:
        entry = json.loads(line)
        run = entry.get("reserve", entry.get("settle"))
        steps[run] = sum(kind["count"] for kind in entry["cost"]["steps"])
    return sum(steps.values())


def released(run: Run) -> int:
    """How many different noisy results the processes had."""
    notes = run.observed.read_text().splitlines() if run.observed.exists() else []
    return len(set(notes))


def stage(folder: Path) -> str:
    """How far a run had come, by its files."""
    for name, word in (
        ("report.html", "finished"),
        ("manifest.json", "reporting"),
        ("record.json", "record"),
        ("model.safetensors", "model"),
        ("checkpoint.safetensors", "training"),
        ("ledger*.jsonl", "statistics"),
        ("options.json", "preprocessing"),
    ):
        if folder.exists() and any(folder.glob(name)):
            return word
    return "start"


def torture(run: Run, random_source: random.Random, whole: tuple[float, int], tally: Tally) -> None:
    """Kill a run again and again until it ends, and look at what there is after each kill.

    Args:
        run: which.
        random_source: of the moments.
        whole: how long an undisturbed run takes, in seconds and in calls.
        tally: what is found goes into it.
    """
    seconds, calls = whole
    if not open_account(run):
        tally.problems.append(f"{run.folder}: no account could be made, {_last_words(run)}")
        return
    before: dict[str, int] = {}
    tally.runs += 1
    for attempt in itertools.count():
        # Some kills for each run, then more time: it must be able to come to its end.
        part = 0.7 if attempt < 8 else 2.0
        by_call = random_source.random() < 0.5
        instant = random_source.randint(1, round(part * calls)) if by_call else None
        child = start(run.command(), run, instant)
        child.join(LONGEST if by_call else random_source.uniform(0, part * seconds))
        if child.is_alive():
            child.kill()
        child.join()
        now = charged(run.folder)
        tally.problems += losses(run, before, now)
        before = now
        if child.exitcode == 0:
            break
        if child.exitcode != -signal.SIGKILL:
            tally.problems.append(f"{run.folder}: exit code {child.exitcode}, {_last_words(run)}")
            return
        tally.kills += 1
        tally.stages[stage(run.folder)] += 1
    tally.releases += released(run)
    tally.problems += _flaws_at_the_end(run)


def open_account(run: Run) -> bool:
    """Make the account that a run draws from, if it draws; returns whether it is there."""
    if run.account is None:
        return True
    limit = ["--epsilon", str(LIMIT), "--delta", "1e-5"]
    return finish(["account", str(run.account), *limit], run) == 0


def losses(run: Run, before: dict[str, int], now: dict[str, int]) -> list[str]:
    """Charges that are gone, or releases that nothing was charged for."""
    found = [
        f"{run.folder}: {name} fell from {steps} to {now.get(name, 0)}"
        for name, steps in before.items()
        if now.get(name, 0) < steps
    ]
    if released(run) > sum(now.values()):
        found.append(f"{run.folder}: {released(run)} released, {sum(now.values())} charged")
    if run.account is not None and drawn(run.account) < sum(now.values()):
        found.append(f"{run.folder}: {drawn(run.account)} drawn, {sum(now.values())} charged")
    return found


def _flaws_at_the_end(run: Run) -> list[str]:
    found = []
    if finish(["verify", str(run.folder)], run):
        found.append(f"{run.folder}: not verified, {_last_words(run)}")
    if finish(["show", str(run.folder), "--json"], run):
        found.append(f"{run.folder}: cannot be shown, {_last_words(run)}")
    if not (run.folder / "report.html").read_text().rstrip().endswith("</html>"):
        found.append(f"{run.folder}: the page is not whole")
    left = [path.name for path in run.folder.rglob("*.partial")]
    if left:
        found.append(f"{run.folder}: left over {left}")
    if run.account is not None:
        found += _flaws_of_the_account(run, run.account)
    if "Traceback" in run.said.read_text():
        found.append(f"{run.folder}: a traceback, {_last_words(run)}")
    return found


def _flaws_of_the_account(run: Run, account: Path) -> list[str]:
    """The account has what the ledgers have, and no room for a second run."""
    found = []
    steps = sum(charged(run.folder).values())
    if drawn(account) != steps:
        found.append(f"{run.folder}: {drawn(account)} drawn at the end, {steps} charged")
    second = run.folder.with_name(f"{run.folder.name}-second")
    if finish([*run.line, "--account", str(account), "--out", str(second)], run) != 2:
        found.append(f"{run.folder}: a second run was not refused, {_last_words(run)}")
    return found


def _last_words(run: Run) -> str:
    lines = run.said.read_text().splitlines()
    return lines[-1] if lines else "nothing said"


def write_data(place: Path) -> None:
    """A table of 1,500 rows whose recipe takes statistics and steps, and 300 small images."""
    rng = np.random.default_rng(2)
    age = rng.integers(20, 90, 1500)
    ward = rng.choice(["north", "south"], 1500)
    days = age / 10 + rng.normal(size=1500)
    rows = [f"{a},{w},{d:.2f}" for a, w, d in zip(age, ward, days, strict=True)]
    (place / "table.csv").write_text("\n".join(["age,ward,days", *rows]))
    (place / "schema.toml").write_text(
        '[target]\nname = "days"\nbounds = [0, 12]\nsource = "public"\n'
        '[columns.age]\nkind = "numeric"\nsource = "private"\n'
        '[columns.ward]\nkind = "categorical"\nsource = "private"\nunseen = "other"\n'
    )
    images = rng.integers(0, 256, (300, 8, 8), dtype=np.uint8)
    np.savez(place / "images.npz", x=images, y=np.arange(300) % 3)


def workloads(place: Path, names: list[str]) -> dict[str, tuple[tuple[str, ...], float, int]]:
    """By name: command line, and seconds and calls of an undisturbed run."""
    write_data(place)
    found = {}
    for name in names:
        line = tuple(WORKLOADS[name].format(place=place).split())
        took = []
        for attempt in ("first", "second"):  # the first one warms caches up
            run = Run(place / f"{name}-{attempt}", line, name in DRAWING)
            open_account(run)
            started = time.monotonic()
            if finish(run.command(), run):
                raise SystemExit(f"{name} does not even run undisturbed: {_last_words(run)}")
            took.append(time.monotonic() - started)
        calls = int(run.folder.with_suffix(".calls").read_text())
        found[name] = (line, min(took), calls)
    return found


def torture_all(kills: int, names: list[str], seed: int, place: Path) -> Tally:
    """Kill runs of these workloads in turn until there were so many kills."""
    random_source = random.Random(seed)
    known = workloads(place, names)
    for name, (_, seconds, calls) in known.items():
        print(f"{name}: {seconds:.1f} s and {calls} calls undisturbed", flush=True)
    tally = Tally()
    while tally.kills < kills and not tally.problems:
        name = names[tally.runs % len(names)]
        line, seconds, calls = known[name]
        run = Run(place / f"{name}-{tally.runs}", line, name in DRAWING)
        torture(run, random_source, (seconds, calls), tally)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        tally = torture_all(given.kills, given.workloads, given.seed, Path(place))
    for problem in tally.problems:
        print(problem)
    print(
        f"{tally.kills} kills of {tally.runs} runs in {time.monotonic() - started:.0f} s,"
        f" {tally.releases} releases; by stage: {dict(tally.stages)}; problems:"
        f" {len(tally.problems)}"
    )
    sys.exit(bool(tally.problems))


if __name__ == "__main__":
    main()
