"""A very long run of a tiny model: memory stays flat, ε is the plan's, the noise does not drift.

The gradients of the model are zero, so its weights are the sum of the noise that every step added:
after k steps at the learning rate η, with the noise multiplier z, the sensitivity Δ and the batch
size S, each is Gaussian with the variance k (ηzΔ/S)². Both halves of the run are compared with it.

    python -m tools.long_haul --steps 100000
"""

import argparse
import math
import os
import resource
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from dpvd import Clipping, PrivacyPlan, PrivateStep
from dpvd.privacy import Ledger

__all__ = ["Haul", "haul", "problems"]

WEIGHTS = 4000
EXAMPLES = 20
NOISE = 200.0
DELTA = 1e-5
MARKS = 10  # how often memory is looked at
KEPT = 200  # bytes that a ledger keeps of each line: its hash, to know the line again
WARM = 2  # marks after which memory has to stay where it is
GROWTH = 4 << 20  # bytes that it may still grow by
ALARM = 5.0  # standard deviations of an estimated variance


@dataclass
class Haul:
    """What a run came to.

    Attributes:
        steps: that were taken.
        seconds: that they took.
        memory: resident bytes at each mark.
        epsilon: of the statement.
        planned: ε of the plan, computed anew.
        charged: steps in the ledger, read anew.
        ratios: variance of the weights of each half of the run, over what it was planned to be.
    """

    steps: int
    seconds: float = 0.0
    memory: list[int] = field(default_factory=list)
    epsilon: float = math.nan
    planned: float = math.nan
    charged: int = 0
    ratios: list[float] = field(default_factory=list)


def haul(steps: int, folder: Path) -> Haul:
    """Take so many private steps and measure as they go."""
    plan = PrivacyPlan(
        examples=EXAMPLES,
        batch_size=EXAMPLES // 2,
        steps=steps,
        noise_multiplier=NOISE,
        clipping=Clipping("flat", 1.0),
    )
    model = nn.Linear(WEIGHTS, 1, bias=False)
    nn.init.zeros_(model.weight)
    x = torch.zeros(EXAMPLES, WEIGHTS)  # of which every gradient is zero
    y = torch.zeros(EXAMPLES)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    ledger = Ledger.create(folder / "ledger.jsonl", plan.to_dict())
    step = PrivateStep(model, loss, plan, optimizer, ledger=ledger)
    found = Haul(steps)
    begun = time.monotonic()
    before = model.weight.detach().clone()
    for taken, batch in enumerate(plan.batches((x, y)), start=1):
        step(batch)
        if taken % max(1, steps // MARKS) == 0:
            found.memory.append(resident())
        if taken in (steps // 2, steps):
            moved = model.weight.detach() - before
            found.ratios.append(variance_ratio(moved, plan, steps // 2))
            before = model.weight.detach().clone()
    found.seconds = time.monotonic() - begun
    found.epsilon = step.guarantee(DELTA).epsilon
    ledger.close()
    found.planned = plan.epsilon(DELTA)
    found.charged = Ledger.open(folder / "ledger.jsonl").charged
    return found


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    losses: Tensor = (model(x).squeeze(1) - y).square()
    return losses


def variance_ratio(moved: Tensor, plan: PrivacyPlan, steps: int) -> float:
    """The variance of what so many steps added, over k (zΔ/S)²."""
    sensitivity = plan.clipping.sensitivity(plan.relation, 1)
    planned = steps * (plan.noise_std(sensitivity) / plan.batch_size) ** 2
    return float(moved.double().square().mean()) / planned


def resident() -> int:
    """Bytes that this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def problems(found: Haul) -> list[str]:
    """What is not as it must be."""
    said = []
    growth = max(found.memory[WARM:]) - found.memory[WARM]
    if growth > GROWTH + KEPT * found.steps:
        said.append(f"memory grew by {growth / 2**20:.1f} MB after the first steps")
    if found.epsilon != found.planned:
        said.append(f"ε is {found.epsilon!r}, and the plan's is {found.planned!r}")
    if found.charged != found.steps:
        said.append(f"{found.charged} steps were charged, {found.steps} taken")
    allowed = ALARM * math.sqrt(2 / WEIGHTS)
    for part, ratio in zip(("first", "second"), found.ratios, strict=True):
        if abs(ratio - 1) > allowed:
            said.append(f"the noise of the {part} half has {ratio:.3f} of the planned variance")
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as place:
        found = haul(given.steps, Path(place))
    wrong = problems(found)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    memory = ", ".join(f"{bytes_ / 2**20:.1f}" for bytes_ in found.memory)
    ratios = " and ".join(f"{ratio:.4f}" for ratio in found.ratios)
    print(
        f"{found.steps} steps in {found.seconds:.0f} s; MB in memory: {memory}; ε"
        f" {found.epsilon:.6g}, planned {found.planned:.6g}; variance over the planned: {ratios}"
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
