"""``dpvd schema``: the draft on stdout or in a file; bad input gets one line and writes nothing."""

import io
import json
import os
import zipfile
from pathlib import Path

import pytest

from dpvd.data import Schema, load_table, read_schema
from tests.cli.program import assert_refused, call, contents

TABLE = "patient_id;age;sex;diagnosis\n" + "".join(
    f"P{row % 40};{row % 70}.5;{'f' if row % 3 else 'm'};{'ill' if row % 4 else 'well'}\n"
    for row in range(200)
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "patients.csv"
    path.write_text(TABLE)
    return path


def test_the_draft_goes_to_stdout_and_warnings_to_stderr(table):
    outcome = call("schema", table, "--target", "diagnosis")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("# Draft of a schema")
    assert 'classes = ["ill", "well"]' in outcome.out
    assert 'warning: column "patient_id" looks like an identifier with repeats' in outcome.err
    assert contents(table.parent) == {"patients.csv": TABLE.encode()}


def test_a_draft_that_was_written_loads_its_table(table):
    out = table.parent / "schema.toml"
    line = ("schema", table, "--target", "diagnosis", "--id", "patient_id")
    outcome = call(*line, "--out", out)
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
    assert out.read_text() == call(*line).out
    loaded = load_table(table, read_schema(out)).train
    assert (loaded.units, loaded.rows) == (40, 200)


def test_json_holds_the_same_schema(table):
    printed = call("schema", table, "--target", "diagnosis", "--json").out
    assert Schema.from_dict(json.loads(printed)).target.classes == ("ill", "well")


@pytest.mark.parametrize("word", [";", "semicolon"])
def test_delimiter_and_encoding_can_be_given(word, table):
    table.write_bytes(TABLE.replace("sex", "größe").encode("latin-1"))
    line = ("schema", table, "--target", "diagnosis", "--delimiter", word)
    assert_refused(call(*line), "is not utf-8", "latin-1")
    outcome = call(*line, "--encoding", "latin-1")
    assert '[columns."größe"]' in outcome.out


def test_a_file_that_exists_is_left_as_it_is(table):
    out = table.parent / "schema.toml"
    out.write_text("precious")
    assert_refused(call("schema", table, "--target", "diagnosis", "--out", out), "--out", "exists")
    assert out.read_text() == "precious"


def zip_bomb() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("patients.csv", b"0" * 50_000_000)
    return buffer.getvalue()


BAD_FILES = {
    "nothing": (b"", ["is empty"]),
    "0 rows": (b"x,y\n", ["a header and no rows"]),
    "one row": (b"x,y\n1.5,0\n", ['column "y"', "in all rows"]),
    "one class": (b"x,y\n1.5,0\n2.5,0\n", ['column "y"', 'is "0" in all rows']),
    "duplicate columns": (b"x,x,y\n1,2,3\n", ['two columns named "x"']),
    "no target": (b"x,z\n1,2\n", ['has no column "y"; it has x, z']),
    "ragged": (b"x,y\n1,2\n1\n", ["line 3", "1 cell where the header has 2"]),
    "all missing": (b"x,y\n,0\n,1\n", ["no column to predict"]),
    "missing target": (b"x,y\n1,0\n2,\n", ["missing in 1 of 2 rows", "row 2"]),
    "NUL": (b"x,y\n1,\0\n", ["line 2", "NUL"]),
    "latin-1": (b"x,y\n\xe9,1\n", ["is not utf-8"]),
    "a line of 100 MB": (b"x,y\n" + b"1" * 100_000_000, ["line 2 is longer than"]),
    "zip bomb": (zip_bomb(), ["is a zip archive"]),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_refused_and_nothing_is_written(case, tmp_path):
    content, words = BAD_FILES[case]
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    out = tmp_path / "schema.toml"
    assert_refused(call("schema", path, "--target", "y", "--out", out), "table.csv", *words)
    assert not out.exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (("folder.csv", "--target", "y"), ["is a folder"]),
        (("none.csv", "--target", "y"), ["there is no file"]),
        (("patients.xlsx", "--target", "y"), ["must end with one of .csv"]),
        (("patients.csv",), ["Missing option", "--target"]),
        (("patients.csv", "--target", "age", "--id", "age"), ["target and the id"]),
        (("patients.csv", "--target", "sex", "--delimiter", ","), ["is the delimiter a semicolon"]),
        (("patients.csv", "--target", "sex", "--delimiter", "x"), ["delimiter must be one of"]),
        (("patients.csv", "--target", "sex", "--encoding", "x"), ["encoding must be one"]),
        (("patients.csv", "--target", "sex", "--out", "none/s.toml"), ["cannot be written"]),
        (("patients.csv", "--target", "sex", "--json", "--out", "s.toml"), ["--json", "one of"]),
    ],
    ids=str,
)
def test_bad_options_are_refused(line, words, table, monkeypatch):
    monkeypatch.chdir(table.parent)
    os.mkdir("folder.csv")
    Path("patients.xlsx").write_bytes(b"PK\x03\x04")
    before = contents(table.parent)
    assert_refused(call("schema", *line), *words)
    assert contents(table.parent) == before
