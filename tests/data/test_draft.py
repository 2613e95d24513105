"""Drafts of schemas: the kinds of columns, bounds, what is marked, and what is warned of."""

import tomllib
from datetime import date

import polars as pl
import pytest

from dpvd.data import Draft, Kind, Schema, Source, draft_schema, open_table
from dpvd.errors import DpvdError
from tests.data.table_cases import public_table


def draft_of(target: str = "y", id: str | None = None, **cells: list) -> Draft:
    """Draft from text cells, as a CSV file has them; y is 0, 1, 0, 1, ... unless it is given."""
    rows = len(next(iter(cells.values())))
    whole = {"y": [str(row % 2) for row in range(rows)], **cells}
    frame = pl.DataFrame(whole, schema=dict.fromkeys(whole, pl.String))
    return draft_schema(open_table(frame), target, id=id)


def kind_of(cells: list, name: str = "c") -> Kind:
    other = ["1.5", "2.5"] * len(cells)
    return draft_of(**{name: cells, "other": other[: len(cells)]}).schema.column(name).kind


MANY = [str(number) for number in range(0, 600, 3)]


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1.5", "2", "3"], "numeric"),
        (MANY, "numeric"),
        (["-1.5", "1e3"], "numeric"),
        (["1", "2", "3", "1"], "categorical"),
        (["a", "b", "a"], "categorical"),
        (["f", "m", "f"], "categorical"),
        (["yes", "no", ""], "boolean"),
        (["True", "False"], "boolean"),
        (["0", "1", "?"], "boolean"),
        (["2020-01-01", "2021-05-06T10:00"], "date"),
        (["31.12.2020", "1.1.2021"], "date"),
        (["", "NA"], "ignore"),
        ([f"text {number}" for number in range(200)], "ignore"),
        ([f"text {number % 150}" for number in range(300)], "ignore"),
        ([str(number) for number in range(1, 201)], "ignore"),  # it counts the rows
    ],
    ids=lambda value: str(value)[:24],
)
def test_kinds_are_recognised(cells: list, kind: str) -> None:
    assert kind_of(cells) == kind


def test_a_date_that_can_be_read_in_two_ways_is_not_guessed() -> None:
    assert kind_of(["03/04/2020", "05/06/2020"]) is Kind.CATEGORICAL
    column = draft_of(d=["03/04/2020", "25/06/2020"]).schema.column("d")
    assert (column.kind, column.date_format) == (Kind.DATE, "%d/%m/%Y")
    assert column.bounds == (date(2020, 1, 1), date(2020, 12, 31))


@pytest.mark.parametrize(
    ("cells", "bounds"),
    [
        (["17", "20.5", "83"], (10, 90)),
        (["0", "0.5", "99999"], (0, 100_000)),
        (["0.031", "0.25", "0.142"], (0, 0.3)),
        (["-7.5", "-1.2"], (-8, -1)),
        (["2.5", "2.5"], (2, 3)),
        (["0.5", "1e300"], (0, 1e300)),
        (["1000000.5", "1000000.25"], (1000000.2, 1000000.5)),
    ],
    ids=str,
)
def test_bounds_are_round_numbers_around_all_values(cells: list, bounds: tuple) -> None:
    found = draft_of(x=cells).schema.column("x").bounds
    assert found == pytest.approx(bounds, rel=1e-12)
    assert found[0] <= min(map(float, cells)) < max(map(float, cells)) + 1e-9
    assert found[1] >= max(map(float, cells))


class TestMarks:
    def test_everything_read_off_the_data_is_marked_and_not_covered(self) -> None:
        cells = {"n": ["1.5", "?", "7"], "c": ["a", "b", "a"], "d": ["2020-01-01"] * 3}
        draft = draft_of(**cells)
        assert draft.schema.public_facts() == ()
        assert draft.schema.not_covered() == (
            "bounds of n",
            "categories of c",
            "date range of d",
            "classes of y",
        )
        lines = draft.text.splitlines()
        for start in ("bounds", "categories", "classes", "missing_values", "missing ="):
            for number, line in enumerate(lines):
                if line.startswith(start):
                    assert lines[number - 1].startswith("# read off the data"), line

    def test_the_text_is_the_schema(self) -> None:
        draft = draft_of(n=["1.5", "?", "7"], c=["a", "b", "a"])
        assert Schema.from_dict(tomllib.loads(draft.text)) == draft.schema
        assert "not private" in draft.text
        assert 'changed source to "public"' in draft.text

    def test_gaps_get_a_rule_and_their_words_are_listed(self) -> None:
        schema = draft_of(n=["1.5", "?", "7"], c=["a", "", "a"]).schema
        assert schema.missing_values == ("?",)
        assert schema.column("n").missing == "indicator"
        assert schema.column("c").missing == "category"


class TestTarget:
    def test_few_texts_or_whole_numbers_are_classes_and_other_numbers_are_not(self) -> None:
        x = ["1.5", "2.5", "3.5"]
        assert draft_of(x=x, y=["b", "a", "b"]).schema.target.classes == ("a", "b")
        assert draft_of(x=x, y=["10", "2", "2"]).schema.target.classes == ("2", "10")
        assert draft_of(x=x, y=["1.5", "2", "2"]).schema.target.bounds == (1.5, 2)
        assert draft_of(x=MANY, y=MANY).schema.target.bounds == (0, 600)

    @pytest.mark.parametrize(
        ("cells", "words"),
        [
            (["a", "a"], 'is "a" in all rows'),
            (["a", ""], "missing in 1 of 2 rows, first in row 2"),
            (["a", "?"], "missing in 1 of 2 rows"),
        ],
    )
    def test_a_target_that_cannot_be_learned_is_refused(self, cells: list, words: str) -> None:
        with pytest.raises(DpvdError, match=words):
            draft_of(x=["1.5", "2.5"], y=cells)

    def test_a_target_of_many_texts_is_refused(self) -> None:
        with pytest.raises(DpvdError, match="more than 100 different texts"):
            draft_of(x=["1.5"] * 200, y=[f"text {number}" for number in range(200)])

    def test_a_table_with_nothing_to_predict_from_is_refused(self) -> None:
        with pytest.raises(DpvdError, match="no column to predict"):
            draft_of(note=["", ""])


IDS = [f"P{number % 50}" for number in range(300)]
X = [f"{number}.5" for number in range(300)]


class TestIdentifiers:
    @pytest.mark.parametrize("name", ["patient_id", "ID", "PatientId", "case-no", "id_patient"])
    def test_one_with_repeats_is_ignored_with_a_warning(self, name: str) -> None:
        draft = draft_of(**{name: IDS, "x": X})
        assert draft.schema.column(name).kind is Kind.IGNORE
        assert len(draft.warnings) == 1
        for word in (f'"{name}" looks like an identifier', f"--id {name}"):
            assert word in draft.warnings[0]

    def test_one_without_repeats_needs_no_warning(self) -> None:
        draft = draft_of(patient_id=[f"P{number}" for number in range(300)], x=X)
        assert draft.schema.column("patient_id").kind is Kind.IGNORE
        assert draft.warnings == ()

    def test_ordinary_names_are_no_identifiers(self) -> None:
        for name in ("humid", "valid", "acid", "piano", "dosage"):
            assert draft_of(**{name: MANY, "x": MANY}).warnings == ()

    def test_the_id_that_is_given_is_no_column(self) -> None:
        draft = draft_of(id="patient_id", patient_id=IDS, x=X)
        assert (draft.schema.id, draft.schema.rows_per_unit) == ("patient_id", 5)
        assert [column.name for column in draft.schema.columns] == ["x"]
        assert draft.warnings == ()

    def test_target_and_id_must_be_there_and_differ(self) -> None:
        for target, id, words in (
            ("z", None, 'no column "z"'),
            ("y", "z", 'no column "z"'),
            ("y", "y", "at once"),
        ):
            with pytest.raises(DpvdError, match=words):
                draft_of(target, id, x=X)


def test_numbers_with_a_few_texts_are_warned_of() -> None:
    cells = [f"{number}.5" for number in range(50)] + ["unknown"]
    (warning,) = draft_of(dose=cells).warnings
    assert '"dose" has numbers and texts ("unknown" in row 51)' in warning


def test_nested_columns_are_ignored() -> None:
    frame = pl.DataFrame({"l": [[1], [2]], "x": [1.5, 2.5], "y": [0, 1]})
    assert draft_schema(open_table(frame), "y").schema.column("l").kind is Kind.IGNORE


def test_typed_frames_and_text_give_the_same_draft() -> None:
    cells = {"n": [1.5, 2.5, 7.0], "w": [3, 1, 2], "b": [True, False, True], "y": [0, 1, 0]}
    typed = draft_schema(open_table(pl.DataFrame(cells)), "y").schema
    texts = {name: [str(cell) for cell in values] for name, values in cells.items()}
    read = draft_schema(open_table(pl.DataFrame(texts)), "y").schema
    assert typed == read


class TestRealTables:
    def test_german_credit(self) -> None:
        source = open_table(public_table("german-credit.csv"))
        schema = draft_schema(source, "risk").schema
        assert schema.target.classes == ("1", "2")
        assert schema.column("status").categories == ("A11", "A12", "A13", "A14")
        assert schema.column("amount").bounds == (0, 20_000)
        assert {column.source for column in schema.used} == {Source.DATA}

    def test_adult(self) -> None:
        schema = draft_schema(open_table(public_table("adult-train.csv")), "income").schema
        assert schema.missing_values == ("?",)
        assert schema.column("native_country").missing == "category"
        assert schema.column("age").bounds == (10, 90)
        assert len(schema.column("education").categories) == 16


def test_numbers_with_a_decimal_comma_are_told_apart_from_texts(tmp_path):
    rows = [f"{i},5;{i % 7};{'ab'[i % 2]}" for i in range(300)]
    path = tmp_path / "comma.csv"
    path.write_text("\n".join(["weight;n;y", *rows]))
    draft = draft_schema(open_table(path), "y")
    assert draft.warnings == (
        'column "weight" has numbers with a decimal comma, and is ignored in the draft: write them'
        " with a point",
    )
    with pytest.raises(DpvdError, match="decimal comma: write them with a point"):
        draft_schema(open_table(path), "weight")
