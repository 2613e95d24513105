"""Small tables that estimators learn from."""

import numpy as np
import pandas as pd

from dpvd.data import Column, Kind, Missing, Schema, Source, Target


def numbers(rows: int = 400, columns: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Numbers within [0, 1], and whether the first is larger than the second."""
    x = np.random.default_rng(0).random((rows, columns))
    return x, (x[:, 0] > x[:, 1]).astype(int)


def patients(rows: int = 600) -> tuple[pd.DataFrame, np.ndarray]:
    """Mixed columns with missing values, and who is ill."""
    generator = np.random.default_rng(0)
    age = generator.uniform(0, 100, rows)
    ward = generator.choice(["north", "south"], rows)
    ill = (age + 40 * (ward == "south") + generator.normal(0, 10, rows)) > 70
    frame = pd.DataFrame({"age": age, "ward": ward, "smoker": generator.random(rows) < 0.5})
    frame.loc[::17, "age"] = np.nan
    return frame, np.where(ill, "ill", "well")


SCHEMA = Schema(
    columns=(
        Column(
            "age",
            Kind.NUMERIC,
            bounds=(0, 120),
            missing=Missing.INDICATOR,
            source=Source.PUBLIC,
        ),
        Column("ward", Kind.CATEGORICAL, categories=("north", "south"), source=Source.DATA),
        Column("smoker", Kind.BOOLEAN),
    ),
    target=Target("state", classes=("well", "ill"), source=Source.PUBLIC),
)
