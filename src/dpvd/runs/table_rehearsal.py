"""Rehearsals of the recipe for tables on made-up tables: no data is read, nobody is in them."""

from collections.abc import Mapping

import polars as pl
import torch
from torch import Tensor

from dpvd.data import Column, Encoder, Kind, Schema, Source, Target
from dpvd.runs.rehearsal import SIGNALS, TEST_ROWS, Rehearsal, Shape, made_up
from dpvd.tabular import TableRecipe, rehearse_table

__all__ = ["MOST_COLUMNS", "MOST_ROWS", "rehearse_recipe"]

MOST_ROWS = 10_000
"""Larger tables are rehearsed with so many rows, and noise that matters as much as in the plan."""
MOST_COLUMNS = 24
"""Wider tables are rehearsed with so many columns, likewise; the same for every budget."""

_BOUND = 3.0  # of every made-up column, whose numbers are normal


def rehearse_recipe(
    shape: Shape, recipe: TableRecipe, multipliers: Mapping[str, float], knots: int
) -> Rehearsal:
    """Learn made-up tables of this shape by the recipe that a run would take.

    All columns are numbers, and classes follow a linear rule with a weak, a middling and a strong
    signal. A larger table is rehearsed with fewer rows or columns, and noise for which the number
    of rows per column and unit of noise is as planned.

    Guarantees: the same arguments give the same result; no data is read.

    Args:
        shape: of the table; its features are columns.
        recipe: how it would be learnt.
        multipliers: noise multiplier of each part of the recipe.
        knots: of the encoding of its numbers.
    """
    columns = min(shape.features, MOST_COLUMNS)
    rows = min(shape.examples, MOST_ROWS)
    smaller = (rows / shape.examples) * (shape.features / columns)
    noise = {name: smaller * multiplier for name, multiplier in multipliers.items()}
    tried = Shape(rows, columns, shape.classes)
    results = [_on_table(tried, recipe, noise, knots, signal) for signal in SIGNALS]
    return Rehearsal(
        low=min(reached for reached, _ in results),
        high=max(reached for reached, _ in results),
        best_low=min(best for _, best in results),
        best_high=max(best for _, best in results),
        lost=max(best - reached for reached, best in results),
        rows=rows,
    )


def _on_table(
    shape: Shape,
    recipe: TableRecipe,
    multipliers: Mapping[str, float],
    knots: int,
    signal: float,
) -> tuple[float, float]:
    """The accuracy of the recipe on a made-up table, and of the rule that made it."""
    rows = shape.examples
    x, y, rule = made_up(shape, rows + TEST_ROWS, signal)
    encoder = _encoder(shape, knots)
    frame = pl.DataFrame({f"x{place}": column.numpy() for place, column in enumerate(x.T)})
    features = torch.from_numpy(encoder.encode(frame))
    model = rehearse_table(
        features[:rows],
        y[:rows],
        classes=shape.classes,
        recipe=recipe,
        multipliers=multipliers,
        groups=torch.from_numpy(encoder.groups),
        hats=torch.from_numpy(encoder.is_hat),
    )
    with torch.no_grad():
        reached = _accuracy(model(features[rows:]), y[rows:])
    return reached, _accuracy(rule[rows:], y[rows:])


def _encoder(shape: Shape, knots: int) -> Encoder:
    columns = tuple(
        Column(f"x{place}", Kind.NUMERIC, bounds=(-_BOUND, _BOUND), source=Source.PUBLIC)
        for place in range(shape.features)
    )
    classes = tuple(map(str, range(shape.classes)))
    schema = Schema(columns=columns, target=Target("y", classes=classes, source=Source.PUBLIC))
    return Encoder(schema, knots=knots)


def _accuracy(scores: Tensor, y: Tensor) -> float:
    return (scores.argmax(1) == y).double().mean().item()
