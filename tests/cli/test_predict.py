"""``dpvd predict``: from files of numbers to classes, or to one line that says what is wrong with
them.
"""

import csv
import io

import numpy as np
import pytest

from dpvd.data import load
from tests.cli.program import assert_refused, call, contents


@pytest.fixture(scope="module")
def examples() -> np.ndarray:
    return load("digits").test_x[:20].numpy()


def write_csv(path, rows, header=None):
    lines = [",".join(map(repr, map(float, row))) for row in rows]
    path.write_text("\n".join(([header] if header else []) + lines) + "\n")
    return path


def test_csv_with_and_without_header_and_npy_give_the_same(run, examples, tmp_path):
    np.save(tmp_path / "x.npy", examples)
    header = ",".join(f"pixel{i}" for i in range(64))
    files = [
        tmp_path / "x.npy",
        write_csv(tmp_path / "plain.csv", examples),
        write_csv(tmp_path / "headed.csv", examples, header),
    ]
    answers = [call("predict", run, file, "--json").json for file in files]
    assert len(answers[0]) == 20
    assert answers[0] == answers[1] == answers[2]
    for row in answers[0]:
        assert row["class"] in range(10)
        assert 0.1 <= row["probability"] <= 1
        assert 0 <= row["spread"] < 1
    assert any(row["spread"] > 0 for row in answers[0])  # the weights are random


def test_predictions_agree_with_the_recorded_accuracy(finished, tmp_path):
    folder, outcome = finished
    data = load("digits")
    np.save(tmp_path / "x.npy", data.test_x.numpy())
    rows = call("predict", folder, tmp_path / "x.npy", "--json").json
    right = np.mean([row["class"] for row in rows] == data.test_y.numpy())
    assert right == pytest.approx(outcome.json["test_accuracy"], abs=1e-12)


def test_csv_goes_to_stdout_or_into_a_file(run, examples, tmp_path):
    np.save(tmp_path / "x.npy", examples)
    shown = call("predict", run, tmp_path / "x.npy").out
    written = call("predict", run, tmp_path / "x.npy", "--out", tmp_path / "y.csv")
    assert written.code == 0
    assert written.out == ""
    assert (tmp_path / "y.csv").read_text().splitlines() == shown.splitlines()
    rows = list(csv.DictReader(io.StringIO(shown)))
    assert [int(row["row"]) for row in rows] == list(range(20))
    assert list(rows[0]) == ["row", "class", "probability", "spread"]


def test_a_byte_order_mark_costs_no_row(run, examples, tmp_path):
    file = write_csv(tmp_path / "x.csv", examples)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert len(call("predict", run, file, "--json").json) == 20


def test_images_are_flattened(run, examples, tmp_path):
    np.save(tmp_path / "flat.npy", examples)
    np.save(tmp_path / "images.npy", examples.reshape(-1, 8, 8))
    flat, images = (
        call("predict", run, tmp_path / name, "--json").json for name in ("flat.npy", "images.npy")
    )
    assert flat == images


NAN = np.ones((3, 64))
NAN[1, 5] = np.nan


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.ones((3, 63)), ["64 features", "got 63"]),
        (NAN, ["1 of 3 rows", "NaN", "first row 1"]),
        (np.full((3, 64), 1e300), ["3 of 3 rows", "infinity"]),
        (np.ones((0, 64)), ["no examples"]),
        (np.ones(64), ["one example per row", "(64,)"]),
        (np.ones((2, 64)) * 1j, ["numbers"]),
        (np.full((2, 64), "x"), ["numbers"]),
    ],
)
def test_arrays_that_are_no_examples_are_refused(run, tmp_path, array, words):
    np.save(tmp_path / "x.npy", array)
    assert_refused(call("predict", run, tmp_path / "x.npy"), *words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["no examples"]),
        ("a,b,c\n", ["no examples"]),
        ("1,2\n1,2,3\n", ["different lengths"]),
        ("1,2\n1,x\n", ["'x'"]),
        ("x,2\n1,2\n", ["'x'"]),  # a row with a number in it is no header: it is not dropped
        ("1,nan\n", ["NaN"]),
        ("\udcff\n", ["cannot be read"]),
    ],
)
def test_text_that_is_no_table_of_numbers_is_refused(run, tmp_path, text, words):
    (tmp_path / "x.csv").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert_refused(call("predict", run, tmp_path / "x.csv"), *words)


@pytest.mark.parametrize(
    "stored", [b"", b"\x93NUMPY\x01\x00", b"PK\x03\x04 no zip either", b"\x80\x04N."]
)
def test_damaged_arrays_are_refused(run, tmp_path, stored):
    (tmp_path / "x.npy").write_bytes(stored)
    assert_refused(call("predict", run, tmp_path / "x.npy"), "cannot be read as numbers")


def test_missing_files_and_places_are_refused(run, tmp_path, examples):
    np.save(tmp_path / "x.npy", examples)
    assert_refused(call("predict", run, tmp_path / "nothing.csv"), "no file")
    assert_refused(call("predict", tmp_path, tmp_path / "x.npy"), "no finished run")
    assert_refused(
        call("predict", run, tmp_path / "x.npy", "--out", tmp_path / "none" / "y.csv"),
        "cannot write",
    )
    assert_refused(call("predict", run, tmp_path / "x.npy", "--samples", 0), "samples")
    assert_refused(
        call("predict", run, tmp_path / "x.npy", "--json", "--out", tmp_path / "y.csv"), "not both"
    )


def test_an_existing_file_is_not_overwritten(run, tmp_path, examples):
    np.save(tmp_path / "x.npy", examples)
    (tmp_path / "y.csv").write_text("precious")
    before = contents(tmp_path)
    assert_refused(
        call("predict", run, tmp_path / "x.npy", "--out", tmp_path / "y.csv"), "exists already"
    )
    assert contents(tmp_path) == before
