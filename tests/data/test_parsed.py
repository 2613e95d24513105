"""Rows that are parsed once: the same in every pass, in memory or in a file without a name."""

import contextlib
import gc
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from dpvd.data import (
    Column,
    Schema,
    TableSource,
    Target,
    load_table,
    open_table,
    parsed_once,
    training_cells,
)
from dpvd.errors import DpvdError

ROWS = 14_000


@pytest.fixture(scope="module")
def frame() -> pl.DataFrame:
    """One column of each kind that a file can hold."""
    numbers = pl.Series("number", np.random.default_rng(0).normal(size=ROWS))
    texts = pl.Series("text", ["ä", None, "b, c", ""] * (ROWS // 4))
    return pl.DataFrame(
        [
            numbers,
            texts,
            texts.cast(pl.Categorical).alias("category"),
            pl.Series("list", [[1], [], None, [2, 3]] * (ROWS // 4)),
            (numbers > 0).alias("flag"),
            pl.Series("nothing", [None] * ROWS),
            pl.int_range(ROWS, eager=True).cast(pl.Date).alias("day"),
        ]
    )


class Counted:
    """A table that counts how often it is parsed."""

    def __init__(self, frame: pl.DataFrame, fails: bool = False) -> None:
        self.frame = frame
        self.passes = 0
        self.fails = fails

    def source(self) -> TableSource:
        return TableSource("counted", tuple(self.frame.columns), self._batches)

    def _batches(self) -> Iterator[pl.DataFrame]:
        self.passes += 1
        yield from self.frame.iter_slices(6_000)
        if self.fails and self.passes == 1:
            raise DpvdError("row 14001: a bad cell")


@pytest.mark.parametrize("memory", [2**30, 1])
def test_every_pass_gives_the_same_batches_of_a_table_that_is_parsed_once(
    frame: pl.DataFrame, memory: int
) -> None:
    table = Counted(frame)
    source = parsed_once(table.source(), memory=memory)
    assert table.passes == 0
    first, second = list(source.batches()), list(source.batches())
    assert [len(batch) for batch in first] == [6_000, 6_000, 2_000]
    for batches in (first, second):
        assert pl.concat(batches).equals(frame)
        assert batches[0].schema == frame.schema
    some = list(source.read(["day", "number"]))
    assert pl.concat(some).equals(frame.select("day", "number"))
    assert table.passes == 1


def test_a_pass_that_failed_is_not_taken_for_the_table(frame: pl.DataFrame) -> None:
    table = Counted(frame, fails=True)
    source = parsed_once(table.source(), memory=1)
    with pytest.raises(DpvdError, match="row 14001"):
        list(source.batches())
    assert pl.concat(source.batches()).equals(frame)
    assert table.passes == 2


def test_a_frame_is_not_copied(frame: pl.DataFrame) -> None:
    source = open_table(frame)
    assert parsed_once(source, memory=1) is source


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="Linux lists open files there")
def test_the_file_has_no_name_and_goes_with_the_source(frame: pl.DataFrame, tmp_path: Path) -> None:
    def in_scratch() -> int:
        """How many files of the folder are open."""
        found = 0
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # the one of the listing itself
                found += os.readlink(f"/proc/self/fd/{number}").startswith(str(tmp_path))
        return found

    source = parsed_once(Counted(frame).source(), memory=1, scratch=tmp_path)
    list(source.batches())
    assert in_scratch() == 1
    assert list(tmp_path.iterdir()) == []
    del source
    gc.collect()
    assert in_scratch() == 0


def test_a_full_or_missing_disk_is_named(frame: pl.DataFrame, tmp_path: Path) -> None:
    source = parsed_once(Counted(frame).source(), memory=1, scratch=tmp_path / "none")
    with pytest.raises(DpvdError, match="the table cannot be written to disk"):
        list(source.batches())


def people_and_cells(columns: int) -> tuple[TableSource, Schema]:
    rng = np.random.default_rng(1)
    cells: dict[str, pl.Series] = {
        f"x{place}": pl.Series(rng.normal(size=ROWS)) for place in range(columns // 2)
    }
    wards = pl.Series(["north", "south"])
    for place in range(columns // 2):
        cells[f"c{place}"] = wards.gather(rng.integers(2, size=ROWS))
    frame = pl.DataFrame(cells).with_columns(
        person=pl.Series(rng.integers(ROWS // 3, size=ROWS)),
        y=pl.Series(rng.integers(2, size=ROWS)),
    )
    declared = tuple(
        Column(name, "numeric", bounds=(-9, 9), source="public")
        if name.startswith("x")
        else Column(name, "categorical", categories=("north", "south"), source="public")
        for name in cells
    )
    target = Target("y", classes=("0", "1"), source="public")
    schema = Schema(declared, target, id="person", rows_per_unit=2)
    return parsed_once(Counted(frame).source(), memory=1), schema


def test_cells_to_estimate_from_are_those_that_are_trained_on() -> None:
    source, schema = people_and_cells(4)
    train = load_table(source, schema, test_fraction=0.2, seed=3).train
    cells = training_cells(source, schema, schema.columns, test_fraction=0.2, seed=3)
    assert train.unit is not None
    assert cells.unit is not None
    assert np.array_equal(cells.unit, train.unit)
    for name in ("x0", "x1"):
        scaled = (cells.column(name) / 9).astype(np.float32)
        assert np.allclose(scaled, train.x[:, train.features.index(name)], atol=1e-6)
    is_north = cells.column("c1") == "north"
    assert np.array_equal(is_north, train.x[:, train.features.index("c1 = north")] == 1)
    assert cells.has_more_values("c1", 1)
    assert not cells.has_more_values("c1", 2)


def test_memory_of_estimates_does_not_grow_with_the_columns() -> None:
    def peak(columns: int) -> int:
        source, schema = people_and_cells(columns)
        list(source.read(["y"]))
        tracemalloc.start()
        cells = training_cells(source, schema, schema.columns, test_fraction=0.2, seed=3)
        for column in schema.columns:
            cells.column(column.name)
            cells.has_more_values(column.name, 10)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    few, many = peak(2), peak(12)
    assert many < few + ROWS * 8  # less than one more column
