"""Write a made-up table of hospital visits: several rows per person, mixed types, missing values.

The rows are written in blocks, so that memory does not grow with their number.

    python examples/make_table.py visits.csv --rows 1000000
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

BLOCK = 50_000
MOST_VISITS = 8
WARDS = np.array(["surgery", "cardiology", "oncology", "emergency", "maternity"])
FIRST_DAY = np.datetime64("2015-01-01")


def visits(generator: np.random.Generator, rows: int, first_patient: int) -> pd.DataFrame:
    """Make so many visits; each patient has between one and MOST_VISITS of them."""
    counts = generator.integers(1, MOST_VISITS + 1, size=rows)
    patient = np.repeat(np.arange(rows), counts)[:rows]  # [rows]
    # What belongs to a patient is drawn once per patient, the rest once per visit.
    age = generator.uniform(0, 100, size=rows)[patient]
    smoker = (generator.random(rows) < 0.25)[patient]
    pressure = generator.normal(110 + 0.3 * age, 15)
    glucose = generator.gamma(9, 12, size=rows)
    ward = generator.integers(len(WARDS), size=rows)
    risk = 0.05 * (age - 60) + 0.03 * (pressure - 130) + 1.0 * smoker + 0.6 * (ward == 3)
    readmitted = generator.random(rows) < 1 / (1 + np.exp(-risk))
    glucose[generator.random(rows) < 0.2] = np.nan  # not measured
    wards = WARDS[ward].astype(object)
    wards[generator.random(rows) < 0.05] = None
    return pd.DataFrame(
        {
            "patient_id": [f"P{first_patient + number:07d}" for number in patient],
            "age": age.round(1),
            "smoker": np.where(smoker, "yes", "no"),
            "pressure": pressure.round(),
            "glucose": glucose.round(1),
            "ward": wards,
            "admitted": FIRST_DAY + generator.integers(0, 3650, size=rows),
            "readmitted": np.where(readmitted, "yes", "no"),
        }
    )


def write_table(path: Path, rows: int, seed: int = 0) -> None:
    """Write the table to a new CSV file."""
    generator = np.random.default_rng(seed)
    with path.open("x", encoding="utf-8", newline="") as file:
        for start in range(0, rows, BLOCK):
            block = visits(generator, min(BLOCK, rows - start), first_patient=start)
            block.to_csv(file, index=False, header=start == 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    write_table(chosen.path, chosen.rows, chosen.seed)
