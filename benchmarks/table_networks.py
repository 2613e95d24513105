"""Linear model or network: what the rule of ``--network auto`` was chosen by, on made-up tables.

    python -m benchmarks.table_networks [--repeats 3]

Prints a table for docs/tables.md: AUC and loss of both on new rows of tables whose classes follow
single columns, products of two columns, or a small network.
"""

import argparse
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from benchmarks.table_data import Array, Column, Table, encode
from benchmarks.tables import area_under_curve
from dpvd.experiments.table_formats import markdown_table
from dpvd.statistics import Part, noise_shares
from dpvd.tabular import choose, fit_table, knots_for

DELTA = 1e-5
EPSILON = 1.0
TEST_ROWS = 10_000
SHAPES = ((2500, 10), (5000, 10), (20_000, 40), (20_000, 10))
_BOUND = 3.0
_SIGNAL = 2.0
_OFFSET = 0.5


def _standard(values: Array) -> Array:
    scaled: Array = (values - values.mean()) / values.std()
    return scaled


def _waves(z: Array, rng: np.random.Generator) -> Array:
    waves = [np.sin(1.5 * column + rng.uniform(0, 6)) * rng.normal() for column in z.T]
    return _standard(np.sum(waves, axis=0))


def _line(z: Array, rng: np.random.Generator) -> Array:
    return _standard(z @ rng.normal(size=z.shape[1]))


def _single(z: Array, rng: np.random.Generator) -> Array:
    return 0.8 * _line(z, rng) + 0.6 * _waves(z, rng)


def _products(z: Array, rng: np.random.Generator) -> Array:
    base = 0.7 * _line(z, rng) + 0.3 * _waves(z, rng)
    pairs = [rng.choice(z.shape[1], 2, replace=False) for _ in range(z.shape[1] // 2)]
    products = [z[:, one] * z[:, other] * rng.normal() for one, other in pairs]
    return base + 0.65 * _standard(np.sum(products, axis=0))


def _network(z: Array, rng: np.random.Generator) -> Array:
    base = 0.5 * _line(z, rng)
    units = np.tanh(z @ rng.normal(size=(z.shape[1], 6)) * 2.25 / np.sqrt(z.shape[1]))
    return base + 0.85 * _standard(units @ rng.normal(size=6))


RULES: dict[str, Callable[[Array, np.random.Generator], Array]] = {
    "a line": _line,
    "single columns": _single,
    "products": _products,
    "a network": _network,
}
KINDS = ("single columns", "products", "a network")


def made_up(kind: str, rows: int, columns: int, seed: int) -> Table:
    """A table of numbers, some of which go together, with classes 0 and 1."""
    rng = np.random.default_rng(seed)
    mixing = np.eye(columns) + rng.normal(size=(columns, columns)) * 0.6 / np.sqrt(columns)
    z = rng.normal(size=(rows, columns)) @ mixing
    z /= z.std(axis=0)
    scores = _SIGNAL * _standard(RULES[kind](z, rng)) - _OFFSET
    y = (rng.random(rows) < 1 / (1 + np.exp(-scores))).astype(np.int64)
    inside = np.clip(z, -_BOUND, _BOUND)
    return Table(kind, [Column(column, -_BOUND, _BOUND) for column in inside.T], y)


def measure(table: Table, rows: int, network: str) -> tuple[float, float]:
    """AUC and loss of a model of the first rows on the others; noise from the system."""
    knots = knots_for(rows, EPSILON, len(table.columns))
    encoded, groups = encode(table, knots)
    x = torch.tensor(encoded, dtype=torch.float32)
    y = torch.tensor(table.y)
    hats = torch.arange(x.shape[1]) % (1 + knots) > 0  # each number, then its hats
    recipe = choose(
        rows, x.shape[1], EPSILON, DELTA, classes=2, network=network, hats=int(hats.sum())
    )
    found = fit_table(
        x[:rows],
        y[:rows],
        classes=2,
        epsilon=EPSILON,
        delta=DELTA,
        groups=torch.tensor(groups),
        hats=hats,
        recipe=recipe,
    )
    told = found.model.predict(x[rows:]).probabilities
    assert told is not None
    return area_under_curve(told[:, 1].numpy(), table.y[rows:]), _loss(told, y[rows:])


def _loss(told: Tensor, y: Tensor) -> float:
    return float(-told[torch.arange(len(y)), y].clamp_min(1e-9).log().mean())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    z = noise_shares(EPSILON, DELTA, {"all": Part(1.0)})["all"]
    lines = []
    for rows, columns in SHAPES:
        cells = []
        for kind in KINDS:
            tables = [made_up(kind, rows + TEST_ROWS, columns, seed) for seed in range(repeats)]
            auc, loss = {}, {}
            for network in ("linear", "mlp"):
                found = np.array([measure(table, rows, network) for table in tables])
                auc[network], loss[network] = found.mean(0)
            cells.append(
                f"{auc['linear']:.3f} → {auc['mlp']:.3f}, {loss['linear']:.3f} → {loss['mlp']:.3f}"
            )
            print(rows, columns, kind, cells[-1], flush=True)
        lines.append((f"{rows:,}", columns, f"{rows / (z * columns):.0f}", *cells))
    print(markdown_table(("N", "columns", "N / (z d)", *KINDS), lines))


if __name__ == "__main__":
    main()
