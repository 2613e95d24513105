"""A small table that tests of several modules use: every kind of column, with gaps."""

import os
from pathlib import Path

import numpy as np
import pytest

from dpvd.data import Column, Schema, Target

CSV = """id,age,colour,smoker,seen,outcome
a,50,red,yes,2020-01-06,ill
b,?,blue,no,2020-01-01,well
a,200,,NO,2020-01-11T08:30,well
c,0,green,1,,ill
"""

FEATURES = (
    "constant",
    "age",
    "age is missing",
    "colour = red",
    "colour = blue",
    "colour is another",
    "colour is missing",
    "smoker",
    "seen",
    "seen is missing",
)

# One row of features for each row of the table.
ENCODED = np.array(
    [
        [1, 0.0, 0, 1, 0, 0, 0, 1, 0, 0],
        [1, 0.0, 1, 0, 1, 0, 0, -1, -1, 0],
        [1, 1.0, 0, 0, 0, 0, 1, -1, 1, 0],
        [1, -1.0, 0, 0, 0, 1, 0, 1, 0, 1],
    ],
    dtype=np.float32,
)


def columns() -> tuple[Column, ...]:
    return (
        Column("age", "numeric", bounds=(0, 100), missing="indicator", source="public"),
        Column(
            "colour",
            "categorical",
            categories=("red", "blue"),
            unseen="other",
            missing="category",
            source="data",
        ),
        Column("smoker", "boolean"),
        Column(
            "seen",
            "date",
            bounds=("2020-01-01", "2020-01-11"),
            missing="indicator",
            source="public",
        ),
    )


def schema(**changes: object) -> Schema:
    target = Target("outcome", classes=("well", "ill"), source="public")
    parts = {"columns": columns(), "target": target, "missing_values": ("?",)}
    return Schema(**{**parts, **changes})


def one_number(**changes: object) -> Schema:
    """A schema of one numeric column x and a target y with classes 0 and 1."""
    entries = {"bounds": (0, 10), "source": "public", **changes}
    target = Target("y", classes=("0", "1"), source="public")
    return Schema((Column("x", "numeric", **entries),), target)


def public_table(name: str) -> Path:
    """A table of the UCI repository, or skip the test."""
    path = Path(os.environ.get("DPVD_DATA_DIR", ""), "tables", name)
    if "DPVD_DATA_DIR" not in os.environ or not path.exists():
        pytest.skip(f"needs tables/{name} in $DPVD_DATA_DIR")
    return path
