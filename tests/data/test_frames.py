"""Frames of every library hold the same table, and give the same features."""

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dpvd.data import Encoder, open_table
from dpvd.data.frames import from_frame
from dpvd.errors import DpvdError
from tests.data.table_cases import ENCODED, schema

LISTS = {
    "age": [50, None, 200, 0],
    "colour": ["red", "blue", None, "green"],
    "smoker": [True, False, False, True],
    "seen": [date(2020, 1, 6), date(2020, 1, 1), date(2020, 1, 11), None],
    "outcome": ["ill", "well", "well", "ill"],
}
TIMES = [None if day is None else datetime(day.year, 1, day.day, 8, 30) for day in LISTS["seen"]]


def pandas_plain() -> pd.DataFrame:
    return pd.DataFrame({**LISTS, "seen": pd.Series(TIMES, dtype="datetime64[ns]")})


def pandas_extended() -> pd.DataFrame:
    """The types that pandas has beside those of NumPy, and an index that is not 0, 1, 2."""
    frame = pandas_plain()
    frame["age"] = frame["age"].astype("Int64")
    frame["colour"] = frame["colour"].astype("category")
    frame["smoker"] = frame["smoker"].astype("boolean")
    frame["seen"] = frame["seen"].dt.tz_localize("Asia/Tokyo")
    frame["outcome"] = frame["outcome"].astype("string")
    return frame.set_index(pd.Index([7, 7, 3, 1]))


def pandas_arrow() -> pd.DataFrame:
    table = pa.Table.from_pydict(LISTS)
    return table.to_pandas(types_mapper=pd.ArrowDtype)


FRAMES = {
    "polars": lambda: pl.DataFrame(LISTS),
    "polars, lazy": lambda: pl.LazyFrame(LISTS),
    "polars, categories": lambda: pl.DataFrame(LISTS).with_columns(
        pl.col("colour").cast(pl.Categorical), pl.col("age").cast(pl.Float32)
    ),
    "polars, reordered and more": lambda: pl.DataFrame(
        {"extra": [[1]] * 4, **dict(reversed(LISTS.items()))}
    ),
    "pandas": pandas_plain,
    "pandas, its own types": pandas_extended,
    "pandas, arrow": pandas_arrow,
    "pandas, objects": lambda: pd.DataFrame(LISTS, dtype=object),
    "pyarrow": lambda: pa.Table.from_pydict(LISTS),
    "pyarrow, dictionary": lambda: pa.Table.from_pydict(
        {**LISTS, "colour": pa.array(LISTS["colour"]).dictionary_encode()}
    ),
    "lists": lambda: LISTS,
    "arrays": lambda: {
        **{name: np.array(cells, dtype=object) for name, cells in LISTS.items()},
        "age": np.array([50, np.nan, 200, 0], dtype=np.float16),
        "seen": np.array(LISTS["seen"], dtype="datetime64[D]"),
    },
    "decimals": lambda: {
        **LISTS,
        "age": [None if age is None else Decimal(age) for age in LISTS["age"]],
    },
}


@pytest.mark.parametrize("name", FRAMES)
def test_every_frame_gives_the_same_features_and_targets(name: str) -> None:
    encoder = Encoder(schema())
    (frame,) = open_table(FRAMES[name]()).batches()
    assert np.array_equal(encoder.encode(frame), ENCODED)
    assert encoder.encode_target(frame).tolist() == [1, 0, 0, 1]


def test_arrays_take_names() -> None:
    (frame,) = from_frame(np.arange(6.0).reshape(3, 2), names=["a", "b"]).batches()
    assert frame.to_dict(as_series=False) == {"a": [0, 2, 4], "b": [1, 3, 5]}
    structured = np.array([(1, "x"), (2, "y")], dtype=[("n", "i4"), ("t", "U1")])
    (frame,) = from_frame(structured).batches()
    assert frame.to_dict(as_series=False) == {"n": [1, 2], "t": ["x", "y"]}


def test_mixed_objects_become_text() -> None:
    (frame,) = from_frame({"m": [1, 2.0, "x", True, None, np.float32("nan"), pd.NA]}).batches()
    assert frame["m"].to_list() == ["1", "2", "x", "true", None, None, None]


@pytest.mark.parametrize(
    ("data", "names", "words"),
    [
        (3, None, "a table must be the path of a file.*got int"),
        ([[1, 2]], None, "got list"),
        (np.zeros(3), None, r"shape \(rows, columns\)"),
        (np.zeros((3, 2)), None, "2 columns needs as many names, got none"),
        (np.zeros((3, 2)), ["a"], "2 columns needs as many names, got 1"),
        (pl.DataFrame({"a": [1]}), ["a"], "names are for arrays"),
        ({"a": [1], "b": [1, 2]}, None, r"different lengths: \[1, 2\]"),
        ({"a": "text"}, None, 'column "a" must be an array or a list'),
        ({"a": np.zeros((2, 2))}, None, 'column "a" must have one value per row'),
        ({"a": [{}]}, None, 'column "a" holds a dict'),
        ({}, None, "no columns"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), None, 'two columns named "a"'),
        (pd.DataFrame([[1, 2]], columns=["1", 1]), None, 'two columns named "1"'),
    ],
)
def test_what_is_no_table_is_refused(data: Any, names: list[str] | None, words: str) -> None:
    with pytest.raises(DpvdError, match=words):
        from_frame(data, names)
