"""Tables as arrays: split and limited by unit, in memory or in a file, within bounded memory."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.datasets import load_breast_cancer

from dpvd.data import Column, Encoder, Schema, Target, draft_schema, load_table, open_table
from dpvd.data import encoded_batches as batches_of
from dpvd.data.units import chosen_rows, share_of
from dpvd.errors import DpvdError
from tests.data.table_cases import CSV, ENCODED, one_number, public_table, schema

KEY = b"sixteen bytes or more"


def visits(people: int = 200, seed: int = 1) -> pl.DataFrame:
    """Rows of people with 1 to 12 visits each; x tells each row from all others."""
    generator = np.random.default_rng(seed)
    who = np.repeat(np.arange(people), generator.integers(1, 13, people))
    generator.shuffle(who)
    x = np.arange(len(who)) / len(who)
    return pl.DataFrame({"person": who, "x": x, "y": generator.integers(0, 2, len(who))})


def by_person(rows_per_unit: int = 3) -> Schema:
    x = Column("x", "numeric", bounds=(0, 1), source="public")
    target = Target("y", classes=("0", "1"), source="public")
    return Schema((x,), target, id="person", rows_per_unit=rows_per_unit)


def people_of(frame: pl.DataFrame, x: np.ndarray) -> list[int]:
    """To whom encoded rows belong, by their value of x."""
    place = np.rint((x[:, 1].astype(np.float64) + 1) / 2 * len(frame)).astype(int)
    return frame["person"].to_numpy()[place].tolist()


class TestLoading:
    def test_a_file_and_a_frame_give_the_same_arrays(self, tmp_path: Path) -> None:
        path = tmp_path / "table.csv"
        path.write_text(CSV)
        for data in (path, str(path), pl.read_csv(path), pd.read_csv(path)):
            table = load_table(data, schema()).train
            assert np.array_equal(table.x, ENCODED)
            assert table.y.tolist() == [1, 0, 0, 1]
            assert table.unit is None
            assert (table.rows, table.units) == (4, 4)

    def test_large_tables_go_into_a_file_that_has_no_name(self, tmp_path: Path) -> None:
        frame = visits()
        small = load_table(frame, by_person(), seed=3, test_fraction=0.3)
        large = load_table(
            frame, by_person(), seed=3, test_fraction=0.3, memory=100, scratch=tmp_path
        )
        assert isinstance(large.train.x, np.memmap)
        for left, right in ((small.train, large.train), (small.test, large.test)):
            assert np.array_equal(left.x, right.x)
            assert np.array_equal(left.y, right.y)
            assert np.array_equal(left.unit, right.unit)
            assert left.checksum(KEY) == right.checksum(KEY)
        assert list(tmp_path.iterdir()) == []

    def test_a_scratch_folder_that_is_none_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DpvdError, match="cannot write into the scratch folder"):
            load_table(visits(), by_person(), memory=100, scratch=tmp_path / "none")

    def test_batches_for_prediction_need_no_target(self, tmp_path: Path) -> None:
        source = open_table(pl.read_csv(CSV.encode()).drop("outcome"))
        ((frame, x),) = batches_of(source, Encoder(schema()))
        assert frame["id"].to_list() == ["a", "b", "a", "c"]
        assert np.array_equal(x, ENCODED)


class TestChecksum:
    def test_it_depends_on_contents_and_key(self) -> None:
        table = load_table(visits(), by_person(), seed=1).train
        again = load_table(visits(), by_person(), seed=1).train
        assert table.checksum(KEY) == again.checksum(KEY)
        assert table.checksum(KEY) != table.checksum(KEY + b"x")
        again.x[3, 1] += 0.1
        assert table.checksum(KEY) != again.checksum(KEY)

    @pytest.mark.parametrize("key", [b"", b"short", "sixteen bytes or more", None])
    def test_it_needs_a_key(self, key: object) -> None:
        with pytest.raises(DpvdError, match="16 bytes or more"):
            load_table(visits(), by_person()).train.checksum(key)


class TestUnits:
    def test_nobody_has_more_rows_than_declared_and_few_have_fewer(self) -> None:
        frame = visits()
        table = load_table(frame, by_person(3)).train
        there = Counter(frame["person"].to_list())
        kept = Counter(people_of(frame, table.x))
        assert kept == {person: min(rows, 3) for person, rows in there.items()}

    def test_rows_of_one_person_stand_together_under_one_number(self) -> None:
        frame = visits()
        table = load_table(frame, by_person(3)).train
        pairs = set(zip(people_of(frame, table.x), table.unit.tolist(), strict=True))
        assert len(pairs) == table.units == 200
        assert (np.diff(table.unit) >= 0).all()

    def test_nobodys_rows_depend_on_who_else_is_there(self) -> None:
        """Taking out one person changes nothing else: neither part nor rows of anybody."""
        frame = visits()
        without = frame.filter(pl.col("person") != 17)
        kept = load_table(frame, by_person(), seed=5, test_fraction=0.25)
        left = load_table(without, by_person(), seed=5, test_fraction=0.25)
        for before, after in ((kept.train, left.train), (kept.test, left.test)):
            others = np.array(people_of(frame, before.x)) != 17
            assert np.array_equal(before.x[others], after.x)

    def test_values_play_no_part_in_the_choice(self) -> None:
        frame = visits()
        other = frame.with_columns(x=1 - pl.col("x"), y=1 - pl.col("y"))
        kept = load_table(frame, by_person(), seed=5).train
        changed = load_table(other, by_person(), seed=5).train
        assert np.allclose(kept.x[:, 1], -changed.x[:, 1], atol=1e-6)
        assert np.array_equal(kept.y, 1 - changed.y)

    def test_every_row_of_a_person_is_chosen_equally_often(self) -> None:
        """Each of 5 rows stays in 2 of 5 draws; six standard errors are one in 10⁸."""
        draws = 20_000
        hashes = np.random.default_rng(0).integers(0, 2**64, draws, dtype=np.uint64)
        rows = chosen_rows(np.repeat(hashes, 5), 2)
        share = np.bincount(rows % 5, minlength=5) / draws
        assert np.abs(share - 0.4).max() < 6 * np.sqrt(0.4 * 0.6 / draws)

    def test_ids_are_the_same_as_text_and_as_number(self) -> None:
        frame = visits()
        texts = frame.with_columns(pl.col("person").cast(pl.String))
        floats = frame.with_columns(pl.col("person").cast(pl.Float64))
        tables = [load_table(each, by_person(), seed=1).train for each in (frame, texts, floats)]
        assert len({table.checksum(KEY) for table in tables}) == 1

    @pytest.mark.parametrize("gap", [None, " ", "?"])
    def test_a_row_without_an_id_is_refused(self, gap: str | None) -> None:
        frame = pl.DataFrame({"person": ["a", gap, "b"], "x": [0, 1, 1], "y": [0, 1, 0]})
        known = by_person()
        with pytest.raises(DpvdError, match='row 2, column "person": the identifier is missing'):
            load_table(frame, Schema(known.columns, known.target, "person", 3, "", ("?",)))


class TestSplit:
    def test_a_person_is_in_one_part_only_and_the_parts_are_the_whole(self) -> None:
        frame = visits()
        parts = load_table(frame, by_person(100), test_fraction=0.3)
        train = set(people_of(frame, parts.train.x))
        test = set(people_of(frame, parts.test.x))
        assert train.isdisjoint(test)
        assert train | test == set(range(200))
        assert parts.train.rows + parts.test.rows == len(frame)

    def test_the_test_part_keeps_all_rows(self) -> None:
        frame = visits()
        parts = load_table(frame, by_person(1), test_fraction=0.3)
        there = Counter(frame["person"].to_list())
        tested = Counter(people_of(frame, parts.test.x))
        assert all(there[person] == rows for person, rows in tested.items())
        assert load_table(frame, by_person(1), all_rows=True).train.rows == len(frame)

    @pytest.mark.parametrize(
        "known", [one_number(bounds=(0, 1)), by_person(100)], ids=["row", "id"]
    )
    def test_the_fraction_holds_on_average(self, known: Schema) -> None:
        frame = pl.DataFrame({"person": range(20_000), "x": [0.5] * 20_000, "y": [0, 1] * 10_000})
        parts = load_table(frame, known, test_fraction=0.2)
        assert abs(parts.test.rows / 20_000 - 0.2) < 6 * np.sqrt(0.2 * 0.8 / 20_000)

    @pytest.mark.parametrize("known", [one_number(bounds=(0, 1)), by_person(2)], ids=["row", "id"])
    def test_a_seed_makes_the_split_repeatable(self, known: Schema) -> None:
        frame = visits()
        sums = [
            load_table(frame, known, test_fraction=0.5, seed=seed).train.checksum(KEY)
            for seed in (1, 1, 2, None, None)
        ]
        assert sums[0] == sums[1]
        assert len(set(sums)) == 4

    @pytest.mark.parametrize("fraction", [0, 1, -0.2, float("nan"), "0.2"])
    def test_bad_fractions_are_refused(self, fraction: object) -> None:
        with pytest.raises(DpvdError, match="test_fraction must lie strictly between 0 and 1"):
            load_table(visits(), by_person(), test_fraction=fraction)

    @pytest.mark.parametrize("seed", [-1, 2**64, 1.0, True])
    def test_bad_seeds_are_refused(self, seed: object) -> None:
        with pytest.raises(DpvdError, match="seed must be an integer"):
            load_table(visits(), by_person(), seed=seed)

    def test_shares_are_spread_evenly(self) -> None:
        shares = share_of(np.arange(100_000, dtype=np.uint64))
        counts = np.histogram(shares, bins=10, range=(0, 1))[0]
        assert counts.sum() == 100_000
        assert np.abs(counts - 10_000).max() < 6 * np.sqrt(9_000)


BAD = {
    "0 rows": ("x,y\n", one_number(), "has a header and no rows"),
    "one row": ("x,y\n1,0\n", one_number(), "1 row to train on"),
    "one class": ("x,y\n1,0\n2,0\n", one_number(), 'all rows to train on have the class "0"'),
    "an all-missing column": (
        "x,y\n,0\n,1\n",
        one_number(missing="indicator"),
        'column "x": no row has a value',
    ),
    "an empty cell": ("x,y\n1,0\n,1\n", one_number(), 'row 2, column "x": the cell is empty'),
    "mixed types": ("x,y\n1,0\nten,1\n", one_number(), 'row 2, column "x": the cell is no'),
    "a missing column": ("z,y\n1,0\n2,1\n", one_number(), 'has no column "x"; it has z, y'),
    "no target": ("x\n1\n2\n", one_number(), 'has no column "y"'),
    "no id": ("x,y\n1,0\n2,1\n", by_person(), 'has no column "person"'),
    "an unseen class": (
        "x,y\n1,0\n2,7\n",
        one_number(),
        'row 2, column "y": the cell is not one of',
    ),
    "NaN": ("x,y\n1,0\nnan,1\n", one_number(), 'row 2, column "x": the cell is no number'),
    "infinity": ("x,y\n1,0\ninf,1\n", one_number(), 'row 2, column "x": the cell is not finite'),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tables_are_refused_with_one_line(case: str, tmp_path: Path) -> None:
    content, known, words = BAD[case]
    path = tmp_path / "table.csv"
    path.write_text(content)
    with pytest.raises(DpvdError) as caught:
        load_table(path, known)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_wrong_delimiter_is_suspected(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("x,y\n1,0\n2,1\n")
    with pytest.raises(DpvdError, match=r"read as one column.*is the delimiter a comma"):
        load_table(path, one_number(), delimiter=";")


def test_rows_are_counted_through_all_batches(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("x,y\n" + "1,0\n" * 40_000 + "bad,1\n")
    with pytest.raises(DpvdError, match="row 40001, column"):
        load_table(path, one_number())


class TestRealTables:
    def test_adult_is_encoded_by_its_draft_and_so_is_its_test_part(self) -> None:
        source = open_table(public_table("adult-train.csv"))
        known = draft_schema(source, "income").schema
        train = load_table(source, known).train
        test = load_table(public_table("adult-test.csv"), known, all_rows=True).train
        assert (train.rows, test.rows) == (32_561, 16_281)
        assert round(float(train.y.mean()), 4) == 0.2408
        missing = train.x[:, train.features.index("workclass is missing")]
        assert missing.sum() == 1836

    def test_breast_cancer_from_a_pandas_frame(self) -> None:
        bunch = load_breast_cancer(as_frame=True)
        frame = bunch.frame.assign(target=bunch.target.map({0: "malignant", 1: "benign"}))
        known = draft_schema(open_table(frame), "target").schema
        assert known.target.classes == ("benign", "malignant")
        parts = load_table(frame, known, test_fraction=0.2, seed=0)
        assert parts.train.rows + parts.test.rows == 569
        assert parts.train.x.shape[1] == 31


MEASURE = """
import resource, sys
import polars, torch
from dpvd.data import Encoder, load_table, read_schema
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
encoder = Encoder(read_schema(sys.argv[2]), bins=20)
before = peak()
parts = load_table(sys.argv[1], encoder, memory=8 * 2**20, test_fraction=0.1, seed=0)
print(peak() - before, parts.train.rows + parts.test.rows)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux")
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Encoded, the table takes 190 MB, of which 8 may stay in memory."""
    x = pl.DataFrame(
        {f"x{i}": np.random.default_rng(i).random(100_000).round(4) for i in range(22)}
    )
    path = tmp_path / "table.csv"
    x.with_columns(y=pl.Series([0, 1] * 50_000)).write_csv(path)
    entries = "".join(
        f'[columns.x{i}]\nkind = "numeric"\nbounds = [0, 1]\nsource = "public"\n' for i in range(22)
    )
    declared = tmp_path / "schema.toml"
    declared.write_text('[target]\nname = "y"\nclasses = [0, 1]\nsource = "public"\n' + entries)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, path, declared], capture_output=True, text=True, check=True
    )
    grown, rows = (float(word) for word in done.stdout.split())
    assert rows == 100_000
    assert grown < 260  # megabytes; all in memory takes 340
