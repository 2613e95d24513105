"""What correlated noise is worth: the MNIST network with noise over 1, 4 and 8 steps.

20,000 training images, batches of 200, 1,000 steps, momentum 0.9, automatic clipping, δ = 1e-5. The
learning rate is chosen for each ε and number of bands on 10,000 other training images (doubled or
halved while that helps); then the accuracy on the test images over three seeds is printed.

    DPVD_DATA_DIR=... python -m benchmarks.correlated_noise [bands ...]
"""

import statistics
import sys

import torch
from torch import Tensor, nn

import dpvd
from dpvd.data import load, prepare

EXAMPLES = 20_000
BATCH = 200
STEPS = 1_000
DELTA = 1e-5
BUDGETS = (1.0, 3.0)
BANDS = (1, 4, 8)
FIRST_RATE = 0.4
SEEDS = (1, 2, 3)

Data = tuple[Tensor, Tensor]


def network(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


def accuracy(train: Data, test: Data, plan: dpvd.PrivacyPlan, rate: float, seed: int) -> float:
    """Per cent of the test images that are recognised after training."""
    recipe = dpvd.Recipe(learning_rate=rate, momentum=0.9, decay="linear")
    model = dpvd.fit(network(seed), train, plan, recipe, delta=DELTA, evaluations=1).model
    with torch.no_grad():
        found = model(test[0]).argmax(1)
    return 100 * (found == test[1]).double().mean().item()


def tuned(train: Data, held_out: Data, plan: dpvd.PrivacyPlan) -> dict[float, float]:
    """Accuracies by learning rate, which is doubled, and halved, while that helps."""
    tried = {FIRST_RATE: accuracy(train, held_out, plan, FIRST_RATE, seed=0)}
    for factor in (2.0, 0.5):
        rate = FIRST_RATE
        while tried[rate] == max(tried.values()):
            rate *= factor
            tried[rate] = accuracy(train, held_out, plan, rate, seed=0)
    return tried


def main(bands: tuple[int, ...]) -> None:
    data = prepare(load("mnist"))
    x = data.train_x.flatten(1)
    train = (x[:EXAMPLES], data.train_y[:EXAMPLES])
    held_out = (x[-10_000:], data.train_y[-10_000:])
    test = (data.test_x.flatten(1), data.test_y)
    for epsilon in BUDGETS:
        for count in bands:
            plan = dpvd.PrivacyPlan(
                examples=EXAMPLES,
                batch_size=BATCH,
                steps=STEPS,
                bands=count,
                clipping=dpvd.Clipping("automatic"),
            ).calibrate(epsilon, DELTA)
            tried = tuned(train, held_out, plan)
            rate = max(tried, key=lambda rate: tried[rate])
            found = [accuracy(train, test, plan, rate, seed) for seed in SEEDS]
            mean, deviation = statistics.mean(found), statistics.stdev(found)
            print(
                f"epsilon {epsilon:g}, {count} bands: noise multiplier {plan.noise_multiplier:.3f},"
                f" rate {rate:g}, accuracy {mean:.1f} ± {deviation:.1f}",
                {rate: round(value, 1) for rate, value in tried.items()},
                flush=True,
            )


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or BANDS)
