"""What a private step costs, as a ratio to the plain PyTorch step: interleaved rounds, medians.

    make bench            or: python -m benchmarks.step --rounds 30 --json results.json

Times of single runs on a busy machine mean little; the ratio of medians of runs that took turns means more.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from dpvd.grads import Clipping
from dpvd.nn import variational
from dpvd.plan import PrivacyPlan
from dpvd.training import PrivateStep, cross_entropy


@dataclass(frozen=True)
class Workload:
    """A fully connected network and a batch for it."""

    widths: tuple[int, ...]
    batch: int

    def network(self) -> nn.Sequential:
        layers: list[nn.Module] = []
        for i, o in zip(self.widths, self.widths[1:], strict=False):
            layers += [nn.Linear(i, o), nn.ReLU()]
        return nn.Sequential(*layers[:-1])


WORKLOADS = {
    "digits-mlp": Workload((64, 1000, 10), 100),
    "mnist-mlp": Workload((784, 1000, 10), 600),
}
MANY = 10**6  # steps that no benchmark reaches


def plain(work: Workload, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    model = work.network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def private(model: nn.Module, work: Workload, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    plan = PrivacyPlan(100 * work.batch, work.batch, steps=MANY, noise_multiplier=1.0, clipping=Clipping())
    step = PrivateStep(model, cross_entropy, plan, torch.optim.SGD(model.parameters(), lr=0.01))
    return lambda: step((x, y))


SYSTEMS: dict[str, Callable[[Workload, torch.Tensor, torch.Tensor], Callable[[], None]]] = {
    "plain": plain,
    "dpsgd": lambda w, x, y: private(w.network(), w, x, y),
    "dpvd": lambda w, x, y: private(variational(w.network(), rates="layer", learned=False), w, x, y),
    "learned": lambda w, x, y: private(variational(w.network()), w, x, y),
}


def measure(work: Workload, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each system's step, one of each in every round."""
    x, y = torch.randn(work.batch, work.widths[0]), torch.randint(work.widths[-1], (work.batch,))
    steps = {name: make(work, x, y) for name, make in SYSTEMS.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 3):  # three rounds to warm up
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            if turn >= 3:
                times[name].append(1000 * (time.perf_counter() - started))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    options = parser.parse_args()
    results = {}
    for name, work in WORKLOADS.items():
        medians = {system: statistics.median(times) for system, times in measure(work, options.rounds).items()}
        results[name] = {s: {"ms": ms, "ratio": ms / medians["plain"]} for s, ms in medians.items()}
        for system, row in results[name].items():
            print(f"{name:<12} {system:<8} {row['ms']:8.2f} ms   {row['ratio']:5.2f} x plain")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
