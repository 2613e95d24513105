"""The one record of a run: what it must hold, and what is read out of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from dpvd.errors import DpvdError
from dpvd.runs import RECORD, RunRecord

OLD = Path(__file__).parent / "old_runs" / "finished"
OPTIONAL = ("alpha", "sparsity")
OF_SOME = ("table", "releases", "declared", "prediction_sets")


@pytest.fixture
def values() -> dict[str, Any]:
    """A record as JSON holds it."""
    found: dict[str, Any] = json.loads((OLD / RECORD).read_text(encoding="utf-8"))
    return found


FIELDS = sorted(set(RunRecord.__dataclass_fields__) - {*OPTIONAL, *OF_SOME, "format"})


@pytest.mark.parametrize("name", FIELDS)
def test_a_record_without_a_part_is_refused(name, values):
    del values[name]
    with pytest.raises(DpvdError, match=f"the part '{name}' is missing"):
        RunRecord.from_dict(values)


@pytest.mark.parametrize("name", FIELDS)
def test_a_part_that_is_null_is_refused(name, values):
    values[name] = None
    with pytest.raises(DpvdError, match=f"the part '{name}' is not what"):
        RunRecord.from_dict(values)


@pytest.mark.parametrize(
    ("part", "name"), [("guarantee", "sentence"), ("guarantee", "epsilon"), ("test", "accuracy")]
)
def test_a_record_without_what_readers_need_is_refused(part, name, values):
    del values[part][name]
    with pytest.raises(DpvdError, match=f"the part '{part}' is missing or incomplete"):
        RunRecord.from_dict(values)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ([], "a record is a mapping from names to values, got list"),
        ({}, "a record of format 1 is needed, got None"),
        ({"format": 2}, "a record of format 1 is needed, got 2"),
    ],
)
def test_what_is_no_record_is_refused(bad, words):
    with pytest.raises(DpvdError, match=words):
        RunRecord.from_dict(bad)


def test_point_weights_have_neither_histograms_nor_pruning(values):
    for name in OPTIONAL:
        del values[name]
    record = RunRecord.from_dict(values)
    assert record.alpha_histograms() == []
    assert record.sparsity == {}


def test_what_later_versions_add_is_skipped(values):
    later = values | {"carbon": 3}
    later["test"] = later["test"] | {"f1": 0.5}
    record = RunRecord.from_dict(later)
    assert "carbon" not in record.to_dict()
    assert record.test["f1"] == 0.5


def test_a_folder_without_a_record_is_no_finished_run(tmp_path):
    with pytest.raises(DpvdError, match="holds no finished run"):
        RunRecord.read(tmp_path)
    (tmp_path / RECORD).write_text("{")
    with pytest.raises(DpvdError, match="cannot be read"):
        RunRecord.read(tmp_path)


def test_a_series_skips_what_is_not_finite(values):
    values["history"] = [
        {"epoch": 1.0, "test_loss": 2.0},
        {"epoch": 2.0, "test_loss": None},
        {"epoch": None, "test_loss": 1.0},
        {"epoch": 4.0, "test_loss": 0.5},
    ]
    assert RunRecord.from_dict(values).series("test_loss") == ([1.0, 4.0], [2.0, 0.5])


def test_layers_are_named_as_in_the_summary(values):
    record = RunRecord.from_dict(values)
    assert record.layer_name("2") == record.model["layers"][2]
    assert record.layer_name("77") == "layer 77"
