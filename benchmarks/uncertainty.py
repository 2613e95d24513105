"""Probabilities at equal ε: the default, DP-SGD, and DP-SGD with a private temperature.

    python -m benchmarks.uncertainty DATA [--seeds 3] [--folder FOLDER]

DATA is digits, mnist or adult. Adds one line for each way and seed to
benchmarks/results/uncertainty.jsonl and prints the means as a table for docs/uncertainty.md.

DP-SGD has point weights, the inputs of the default, and its learning rate and clipping. The
temperature is that of Zhang et al., "A Closer Look at the Calibration of Differentially Private
Learners" (2210.08248): a tenth of the examples is kept from training, and noisy gradient descent on
the log of the temperature is run on these with the whole budget. No example is in both parts, so ε
is the same. Nothing is chosen here on test data.
"""

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import table_data
from dpvd.data import load
from dpvd.experiments.table_formats import markdown_table
from dpvd.grads import Clipping
from dpvd.plan import PrivacyPlan
from dpvd.privacy import noise_multiplier_for, poisson_event
from dpvd.runs import NetworkKind, NetworkSpec, RunOptions, Scale, predict_dist, prepare_run
from dpvd.runs import private_recipe as recipe_for
from dpvd.tabular import fit_table, knots_for
from dpvd.training import fit

EPSILON, DELTA = 1.0, 1e-5
KEPT = 0.1  # of the examples, for the temperature
TEMPERATURE_STEPS = 100
RATE = 0.3
CLIP = 4.0  # clipped at 1, gradients find too large a factor on made-up logits
MOST_NOISE = 0.3  # in the log of the temperature
BINS = 15
RESULTS = Path(__file__).parent / "results" / "uncertainty.jsonl"
WAYS = ("default", "DP-SGD", "DP-SGD, temperature")


@dataclass(frozen=True, eq=False)
class Data:
    """Inputs of the trained part, and the default's way of learning them."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    default: Callable[[int], tuple[Tensor, Tensor]]
    """From a seed to probabilities [n, classes] of the test examples and what ranks errors [n]."""
    spec: NetworkSpec


def images(name: str, folder: Path | None) -> Data:
    """Features of images, which the default learns with a linear layer."""
    data = load(name, folder)
    run = prepare_run(RunOptions(delta=DELTA, epsilon=EPSILON), data)
    first = run.network.build(0)
    train_x = run.network.head_inputs(first, data.train_x)
    test_x = run.network.head_inputs(first, data.test_x)

    def default(seed: int) -> tuple[Tensor, Tensor]:
        head = run.network.trained(run.network.build(seed))
        fit(
            head,
            (train_x, data.train_y),
            run.plan,
            run.recipe,
            delta=DELTA,
            evaluations=1,
            generator=torch.Generator().manual_seed(seed),
            shared=True,
        )
        probabilities, spread = predict_dist(head, test_x)
        best = probabilities.argmax(1, keepdim=True)
        return probabilities, spread.gather(1, best).squeeze(1)

    return Data(train_x, data.train_y, test_x, data.test_y, default, run.network)


def adult(folder: Path) -> Data:
    """Rows of Adult, encoded as for the other benchmarks of tables."""
    table = table_data.load("adult", folder)
    count = table.training or 0
    knots = knots_for(count, EPSILON, len(table.columns))
    encoded, groups = table_data.encode(table, knots)
    x = torch.tensor(encoded, dtype=torch.float32)
    y = torch.tensor(table.y)
    hats = torch.tensor(table_data.is_hat(table, knots))

    def default(seed: int) -> tuple[Tensor, Tensor]:
        del seed  # noise is from the system
        found = fit_table(
            x[:count],
            y[:count],
            classes=2,
            epsilon=EPSILON,
            delta=DELTA,
            groups=torch.tensor(groups),
            hats=hats,
        )
        told = found.model.predict(x[count:])
        assert told.probabilities is not None
        assert told.mutual_information is not None
        return told.probabilities, told.mutual_information

    unit = F.normalize(x)
    spec = NetworkSpec(x.shape[1], 0, 2, Scale.NONE, input_norm=1.0, kind=NetworkKind.LINEAR)
    return Data(unit[:count], y[:count], unit[count:], y[count:], default, spec)


def point_weights(data: Data, rows: Tensor, seed: int) -> nn.Module:
    """DP-SGD on some of the rows."""
    x = data.train_x[rows]
    plan = PrivacyPlan(
        examples=len(x),
        batch_size=len(x),
        steps=150,
        clipping=Clipping("automatic", 1.0),
    ).calibrate(EPSILON, DELTA)
    recipe = replace(recipe_for(plan, data.spec.rule), kl_weight=0.0)
    torch.manual_seed(seed)
    model = nn.Linear(x.shape[1], data.spec.classes, bias=False)
    nn.init.zeros_(model.weight)
    batch = (x, data.train_y[rows])
    fit(model, batch, plan, recipe, delta=DELTA, evaluations=1, shared=True)
    return model


@torch.no_grad()
def private_temperature(logits: Tensor, y: Tensor) -> float:
    """What logits are multiplied by, from clipped and noisy gradients on its logarithm."""
    z = noise_multiplier_for(EPSILON, DELTA, lambda z: poisson_event(z, 1.0, TEMPERATURE_STEPS))
    right = F.one_hot(y, logits.shape[1]).to(logits)
    # Noise of all steps together moves the logarithm by no more than that, whatever the data.
    rate = min(RATE, MOST_NOISE * len(y) / (z * CLIP * math.sqrt(TEMPERATURE_STEPS)))
    log_factor = 0.0
    tail = []
    for step in range(TEMPERATURE_STEPS):
        scaled = math.exp(log_factor) * logits
        gradients = ((scaled.softmax(1) - right) * scaled).sum(1).clamp(-CLIP, CLIP)  # [n]
        noisy = gradients.sum().item() + z * CLIP * torch.randn(()).item()
        log_factor = min(3.0, max(-3.0, log_factor - rate * noisy / len(y)))
        if 2 * step >= TEMPERATURE_STEPS:
            tail.append(log_factor)
    return math.exp(sum(tail) / len(tail))


def measures(probabilities: Tensor, ranks_errors: Tensor | None, y: Tensor) -> dict[str, float]:
    """Accuracy, NLL, ECE over bins of equal mass, Brier score, and AUROC for errors."""
    exact = probabilities.double()
    confidence, best = exact.max(1)
    wrong = best != y
    parts = torch.tensor_split(confidence.argsort(), BINS)
    gaps = [len(p) * (confidence[p].mean() - (~wrong[p]).double().mean()).abs() for p in parts]
    found = {
        "accuracy": 1 - wrong.double().mean().item(),
        "nll": F.nll_loss(exact.clamp_min(1e-12).log(), y).item(),
        "ece": sum(gap.item() for gap in gaps) / len(y),
        "brier": (exact - F.one_hot(y, exact.shape[1])).square().sum(1).mean().item(),
        "auroc_confidence": area(1 - confidence, wrong),
    }
    if ranks_errors is not None:
        found["auroc_spread"] = area(ranks_errors.double(), wrong)
    return found


def area(scores: Tensor, wrong: Tensor) -> float:
    """The chance that an error scores above what is right; ties count half."""
    _, places, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0).double() - (counts.double() - 1) / 2)[places]
    errors = int(wrong.sum())
    above: float = ranks[wrong].sum().item() - errors * (errors + 1) / 2
    return above / errors / (len(wrong) - errors)


def measure(data: Data, way: str, seed: int) -> dict[str, float]:
    """One way of learning, on the test examples."""
    if way == "default":
        return measures(*data.default(seed), data.test_y)
    everybody = torch.arange(len(data.train_y))
    if way == "DP-SGD":
        model = point_weights(data, everybody, seed)
        factor = 1.0
    else:
        coins = torch.rand(len(everybody), generator=torch.Generator().manual_seed(seed))
        model = point_weights(data, everybody[coins >= KEPT], seed)
        kept = everybody[coins < KEPT]
        with torch.no_grad():
            factor = private_temperature(model(data.train_x[kept]), data.train_y[kept])
    with torch.no_grad():
        logits = factor * model(data.test_x)
    return measures(logits.softmax(1), None, data.test_y) | {"factor": factor}


def main() -> None:
    """Measure, note and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", choices=("digits", "mnist", "adult"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    data = adult(given.folder) if given.data == "adult" else images(given.data, given.folder)
    lines = []
    for way in WAYS:
        rows = []
        for seed in range(given.seeds):
            found = measure(data, way, seed)
            rows.append(found)
            entry = {"data": given.data, "way": way, "seed": seed, "epsilon": EPSILON}
            with RESULTS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry | {"delta": DELTA} | found) + "\n")
        means = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
        lines.append([given.data, way, *(f"{value:.4f}" for value in means.values())])
        print(markdown_table(["data", "way", *means], lines[-1:]), flush=True)


if __name__ == "__main__":
    main()
