"""A whole private run against the same number of plain steps: sampling, ledger, checkpoints and
evaluation included.

    python -m benchmarks.end_to_end --epochs 200 --data-dir DIR

The private run is Algorithm 1 with the paper's protocol on MNIST (784-1000-10, batch 600, per-layer
clipping at 2), with a ledger and checkpoints on disk and twenty evaluations on the test images. The
plain steps are what a loop in PyTorch takes: shuffled batches, cross-entropy, SGD, no evaluation.
The two take turns; the ratio is that of their medians.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.data import load_mnist
from dpvd.grads import Clipping
from dpvd.nn import variational
from dpvd.plan import PrivacyPlan
from dpvd.training import Recipe, fit

BATCH = 600
EPSILON = 1.0
DELTA = 1e-5
EVALUATIONS = 20
LEARNING_RATE = 0.1
KL_WEIGHT = 0.01

Images = tuple[Tensor, Tensor]


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(784, 1000),
        nn.ReLU(),
        nn.Linear(1000, 10),
    )


def private_run(train: Images, test: Images, plan: PrivacyPlan) -> float:
    """Seconds of a whole run."""
    model = variational(network(), rates="layer", learned=False)
    recipe = Recipe(learning_rate=LEARNING_RATE, kl_weight=KL_WEIGHT)

    def evaluate(trained: nn.Module) -> dict[str, float]:
        x, y = test
        with torch.no_grad():
            predicted = trained(x).argmax(1)
        right = (predicted == y).float()
        return {"accuracy": right.mean().item()}

    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        fit(
            model,
            train,
            plan,
            recipe,
            delta=DELTA,
            evaluate=evaluate,
            evaluations=EVALUATIONS,
            folder=Path(folder) / "run",
        )
        return time.perf_counter() - started


def plain_steps(train: Images, steps: int) -> float:
    """Seconds of the same number of ordinary steps."""
    model = network()
    x, y = train
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    taken = 0
    started = time.perf_counter()
    while taken < steps:
        for rows in torch.randperm(len(x)).split(BATCH)[: steps - taken]:
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
            taken += 1
    return time.perf_counter() - started


def images(folder: Path) -> tuple[Images, Images]:
    """The training and the test images of MNIST, from 0 to 1, with their labels."""
    data = load_mnist(folder)
    train_x = data.train_x.float().flatten(1) / 255
    test_x = data.test_x.float().flatten(1) / 255
    return (train_x, data.train_y), (test_x, data.test_y)


def plan_for(examples: int, steps: int) -> PrivacyPlan:
    """The paper's clipping, with the noise of this package for ε = 1."""
    clipping = Clipping("per-layer", clip_norm=2.0)
    plan = PrivacyPlan(examples, BATCH, steps=steps, clipping=clipping)
    return plan.calibrate(EPSILON, DELTA)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1, help="how often each is run")
    parser.add_argument("--data-dir", type=Path, required=True, help="where the folder mnist is")
    parser.add_argument("--output", type=Path, help="write the figures here as well")
    options = parser.parse_args()
    train, test = images(options.data_dir)
    examples = len(train[0])
    steps = options.epochs * examples // BATCH
    plan = plan_for(examples, steps)
    runs: dict[str, Callable[[], float]] = {
        "plain steps": lambda: plain_steps(train, steps),
        "private run": lambda: private_run(train, test, plan),
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    plain_steps(train, 20)  # to warm up
    for _ in range(options.rounds):
        for name, run in runs.items():
            seconds[name].append(run())
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratio = medians["private run"] / medians["plain steps"]
    times = ", ".join(f"{name} {value:.1f} s" for name, value in medians.items())
    print(f"{steps} steps: {times}, ratio {ratio:.3f}")
    if options.output:
        facts = {"epochs": options.epochs, "steps": steps, "seconds": seconds, "ratio": ratio}
        options.output.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
