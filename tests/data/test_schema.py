"""Schemas: what they accept, what they refuse, and the way to TOML and JSON and back."""

import json
import tomllib
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpvd.data import Column, Schema, Target, read_schema, schema_text
from dpvd.errors import DpvdError
from tests.data.table_cases import one_number, schema

GOOD_TARGET = Target("t", classes=("a", "b"), source="public")
GOOD = {"kind": "numeric", "bounds": [0, 1], "source": "public"}


class TestColumn:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"kind": "number"}, ["kind", '"numeric", "categorical"', "'number'"]),
            ({"kind": None}, ["kind must be one of", "got nothing"]),
            ({"bounds": [1, 0]}, ["bounds", "lower number first", "[1, 0]"]),
            ({"bounds": [0, 0]}, ["bounds", "lower number first"]),
            ({"bounds": [0, float("inf")]}, ["bounds", "finite"]),
            ({"bounds": [-1e308, 1e308]}, ["bounds"]),
            ({"bounds": [0, 10**400]}, ["bounds", "finite"]),
            ({"bounds": [0, True]}, ["bounds", "two finite numbers"]),
            ({"bounds": "0-1"}, ["bounds", "two finite numbers", "'0-1'"]),
            ({"bounds": None}, ["bounds = [0, 120]", 'source = "private"']),
            ({"source": None}, ["source", '"public", "data", "private"', "got nothing"]),
            ({"source": "me"}, ["source", "'me'"]),
            ({"missing": "category"}, ["missing", '"refuse" or "indicator"', '"category"']),
            ({"missing": "mean"}, ["missing must be one of", "'mean'"]),
            ({"edges": [0.5, 0.2]}, ["edges", "increase"]),
            ({"edges": [0.5, 1.0]}, ["edges", "strictly between"]),
            ({"categories": ["a"]}, ["categories does not belong", '"numeric"']),
            ({"colour": "red"}, ["unknown entry 'colour'", "bounds"]),
            ({"kind": "boolean"}, ["bounds does not belong", '"boolean"']),
            ({"kind": "ignore"}, ["does not belong", '"ignore"']),
            ({"kind": "date"}, ["bounds", "two dates", "2000-01-01"]),
            ({"kind": "categorical", "bounds": None}, ['categories = ["a", "b"]']),
            (
                {"kind": "categorical", "bounds": None, "categories": ["a", "a "]},
                ["'a' twice"],
            ),
            ({"kind": "categorical", "bounds": None, "categories": [""]}, ["not empty"]),
            ({"kind": "categorical", "bounds": None, "categories": "ab"}, ["must be a list"]),
            (
                {
                    "kind": "categorical",
                    "bounds": None,
                    "categories": ["?"],
                    "missing_values": ["?"],
                },
                ["a category and a missing value"],
            ),
        ],
        ids=str,
    )
    def test_bad_entries_are_refused_by_name(self, changes: dict, words: list[str]) -> None:
        values = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
        with pytest.raises(DpvdError) as caught:
            Column.from_dict("age", values)
        for word in ['column "age"', *words]:
            assert word in str(caught.value)

    def test_a_column_of_booleans_declares_nothing_and_needs_no_source(self) -> None:
        assert Column("smoker", "boolean").source == "public"
        assert Column("notes", "ignore").source is None

    def test_private_bounds_may_be_left_open(self) -> None:
        assert not Column("age", "numeric", source="private").is_complete
        assert Column("age", "numeric", bounds=(0, 1), source="private").is_complete

    def test_numbers_and_booleans_are_categories_by_their_text(self) -> None:
        column = Column("c", "categorical", categories=(1, 2.0, True), source="public")
        assert column.categories == ("1", "2", "true")


class TestTarget:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({}, "needs classes"),
            ({"classes": ["a"]}, "two or more"),
            ({"classes": ["a", "b"], "bounds": [0, 1]}, r"classes \(classification\) or bounds"),
            ({"classes": ["a", "b"], "unit": "days"}, "unit belongs to a number"),
            ({"bounds": [2, 1]}, "lower number first"),
            ({"bounds": [0, 1], "unit": 3}, "unit must be words"),
            ({"bounds": [0, 1], "source": "guess"}, "source must be one of"),
        ],
        ids=str,
    )
    def test_bad_entries_are_refused(self, changes: dict, words: str) -> None:
        with pytest.raises(DpvdError, match=words):
            Target.from_dict({"name": "t", "source": "public", **changes})

    def test_classes_and_bounds_tell_classification_and_regression_apart(self) -> None:
        assert GOOD_TARGET.is_classification
        assert not Target("t", bounds=(0, 90), unit="days", source="public").is_classification


class TestSchema:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"columns": ()}, "no column is used"),
            ({"columns": (Column("a", "boolean"), Column("a", "ignore"))}, '"a" is declared twice'),
            ({"columns": (Column("outcome", "boolean"),)}, '"outcome" is the target'),
            (
                {"columns": (Column("p", "boolean"),), "id": "p", "rows_per_unit": 1},
                '"p" is the id',
            ),
            ({"id": "outcome", "rows_per_unit": 1}, "target and id at once"),
            ({"id": "p"}, "needs rows_per_unit"),
            ({"id": "p", "rows_per_unit": 0}, "rows_per_unit must be an integer of at least 1"),
            ({"rows_per_unit": 3}, "needs an id column"),
            ({"unit": 3}, "unit must be words"),
            ({"missing_values": ("red",)}, '"red" is declared and also one of missing_values'),
            ({"missing_values": ("ill",)}, '"ill" is declared and also one of missing_values'),
            ({"missing_values": "?"}, "missing_values must be a list"),
        ],
        ids=str,
    )
    def test_contradictions_are_refused(self, changes: dict, words: str) -> None:
        with pytest.raises(DpvdError, match=words):
            schema(**changes)

    @pytest.mark.parametrize(
        ("values", "words"),
        [
            ([], "schema must be a table"),
            ({}, r"no \[target\]"),
            ({"target": GOOD_TARGET.to_dict()}, r"no \[columns\]"),
            ({"target": GOOD_TARGET.to_dict(), "columns": []}, r"\[columns.age\]"),
            ({"target": GOOD_TARGET.to_dict(), "columns": {"a": 3}}, 'column "a" must be a table'),
            ({"tarjet": {}}, "unknown entry 'tarjet'"),
        ],
        ids=str,
    )
    def test_what_is_no_schema_is_refused(self, values: object, words: str) -> None:
        with pytest.raises(DpvdError, match=words):
            Schema.from_dict(values)

    def test_facts_are_named_by_where_they_come_from(self) -> None:
        private = Column("weight", "numeric", source="private")
        mixed = schema(columns=(*schema().columns, private))
        assert mixed.not_covered() == ("categories of colour",)
        assert mixed.public_facts() == (
            "bounds of age",
            "values of smoker",
            "date range of seen",
            "classes of outcome",
        )
        assert mixed.to_estimate() == (private,)

    def test_a_column_can_be_completed_and_an_unknown_one_cannot(self) -> None:
        left_open = one_number(bounds=None, source="private")
        done = left_open.with_column(Column("x", "numeric", bounds=(1, 2), source="private"))
        assert done.to_estimate() == ()
        with pytest.raises(DpvdError, match='no column "z"'):
            done.with_column(Column("z", "boolean"))

    def test_the_unit_is_a_row_unless_something_else_is_said(self) -> None:
        assert schema().unit_words == "row"
        assert schema(unit="patient").unit_words == "patient"
        by_age = schema().by_unit("age", 3)
        assert by_age.unit_words == "value of age"
        assert "age" not in [column.name for column in by_age.columns]


ANY_TEXT = st.text(min_size=1, max_size=8).filter(lambda text: text.strip() == text)


class TestFiles:
    def test_toml_gives_back_the_same_schema(self, tmp_path) -> None:
        whole = schema(id="p", rows_per_unit=4, unit="patient")
        path = tmp_path / "schema.toml"
        path.write_text(schema_text(whole, header="by hand\n\nand eye"), encoding="utf-8")
        assert read_schema(path) == whole
        assert "2020-01-11]" in path.read_text()

    def test_json_gives_back_the_same_schema(self) -> None:
        assert Schema.from_dict(json.loads(json.dumps(schema().to_dict()))) == schema()

    @given(st.lists(ANY_TEXT, min_size=3, max_size=20, unique=True), st.floats(-1e9, 1e9))
    def test_any_name_and_number_survives_toml(self, texts: list[str], lower: float) -> None:
        name, target, *categories = texts
        columns = (
            Column(name, "categorical", categories=categories, source="public"),
            Column(name + "2", "numeric", bounds=(lower, lower + 1), source="data"),
            Column(name + "3", "date", bounds=(date(1, 1, 1), date(9999, 1, 1)), source="data"),
        )
        made = Schema(columns, Target(target + "4", classes=("x", "y"), source="public"))
        assert Schema.from_dict(tomllib.loads(schema_text(made))) == made

    def test_comments_stand_above_their_entries(self) -> None:
        text = schema_text(one_number(), notes={"columns.x.bounds": "seen", "target.classes": "t"})
        assert "# seen\nbounds = [0, 10]\n" in text
        assert "# t\nclasses =" in text

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"[target\n", "is no TOML.*line 1"),
            (b"\xff\xfe\x00", "is no TOML"),
            (b"[columns.a]\nkind = 'numeric'\n", r"schema.toml: schema: there is no \[target\]"),
        ],
    )
    def test_bad_files_are_refused(self, content: bytes, words: str, tmp_path) -> None:
        path = tmp_path / "schema.toml"
        path.write_bytes(content)
        with pytest.raises(DpvdError, match=words):
            read_schema(path)

    def test_no_file_and_a_folder_are_refused(self, tmp_path) -> None:
        for path in (tmp_path, tmp_path / "nothing.toml"):
            with pytest.raises(DpvdError, match="cannot be read"):
                read_schema(path)
