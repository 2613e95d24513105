"""Few rows and few columns: what hat functions and a tighter clip norm are worth there.

    python -m benchmarks.table_few_rows [--repeats 4]

Prints a table for docs/tables.md: mean AUC on new rows of made-up tables, whose classes follow a
linear rule or curves of single columns. No real table is read.
"""

import argparse
from dataclasses import replace

import numpy as np
import torch

from benchmarks.table_data import Table, encode, is_hat
from benchmarks.table_networks import DELTA, made_up
from benchmarks.tables import area_under_curve
from dpvd.experiments.table_formats import markdown_table
from dpvd.tabular import choose, fit_table

ROWS = (400, 700, 1400)
COLUMNS = (4, 8, 20)
EPSILONS = (0.5, 1.0)
TEST_ROWS = 4000
KINDS = ("a line", "single columns")
WAYS = ((0, 0.7), (0, 0.5), (5, 0.5))  # knots, clip norm


def measure(table: Table, rows: int, epsilon: float, knots: int, clip_norm: float) -> float:
    """AUC of a linear model by steps of the first rows on the others; noise from the system."""
    encoded, groups = encode(table, knots)
    hats = is_hat(table, knots)
    x = torch.tensor(encoded, dtype=torch.float32)
    y = torch.tensor(table.y)
    # One feature: steps, whatever the rule would take.
    recipe = choose(rows, 1, epsilon, DELTA, classes=2, network="linear")
    found = fit_table(
        x[:rows],
        y[:rows],
        classes=2,
        epsilon=epsilon,
        delta=DELTA,
        groups=torch.tensor(groups),
        hats=torch.tensor(hats),
        recipe=replace(recipe, clip_norm=clip_norm),
    )
    told = found.model.predict(x[rows:]).probabilities
    assert told is not None
    return area_under_curve(told[:, 1].numpy(), table.y[rows:])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=4)
    repeats = parser.parse_args().repeats
    lines = []
    for epsilon in EPSILONS:
        for columns in COLUMNS:
            for rows in ROWS:
                tables = [
                    made_up(kind, rows + TEST_ROWS, columns, 500 + seed)
                    for kind in KINDS
                    for seed in range(repeats)
                ]
                means = []
                for way in WAYS:
                    found = [measure(table, rows, epsilon, *way) for table in tables]
                    means.append(f"{np.mean(found):.3f}")
                lines.append((epsilon, columns, rows, *means))
                print(*lines[-1], flush=True)
    head = [f"{knots or 'no'} knots, clip norm {clip}" for knots, clip in WAYS]
    print(markdown_table(("ε", "columns", "N", *head), lines))


if __name__ == "__main__":
    main()
