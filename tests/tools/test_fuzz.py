"""Readers of damaged files raise one exception type; ``make fuzz`` reads a million of them."""

import json
import shutil
import zipfile

import numpy as np
import pytest
from tools.fuzz import (
    RECORD,
    Reader,
    change_json,
    fuzz,
    pack,
    read_folder,
    readers,
    renewed,
    unpack,
    with_plan,
)

from dpvd.data import load_arrays, read_array, read_schema
from dpvd.errors import DpvdError, is_finite_number
from dpvd.grads import Clipping
from dpvd.privacy import Ledger
from dpvd.runs import RunRecord, verify_run
from dpvd.runs.draw import known_starts
from dpvd.runs.manifest import read_manifest
from dpvd.runs.run_dir import reopen_run_dir
from dpvd.training.checkpoint import FORMAT, Checkpoint

NAMES = [
    "table.csv",
    "table.parquet",
    "arrays.npz",
    "schema.toml",
    "plan.json",
    "record.json",
    "ledger.jsonl",
    "model.safetensors",
    "checkpoint.safetensors",
    "manifest.json",
    "account",
    "account.json",
    "options.json",
    "signed/officer.key",
    "signed/officer.pub",
    "signed/signature.txt",
    "array.npy",
    "table.arrow",
    "digits.idx",
    "images.zip",
    "table.zip",
]


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """A folder, and the readers of files in it by name."""
    place = tmp_path_factory.mktemp("fuzz")
    return place, {reader.name: reader for reader in readers(place)}


@pytest.mark.parametrize("name", NAMES)
def test_damaged_files_are_read_or_refused(known, name):
    place, by_name = known
    reader = by_name[name]
    path = place / name
    path.write_bytes(reader.valid)
    reader.read(path)  # as it is, it is read
    inputs = 60 if reader.share == 1 else 8
    assert fuzz(reader, inputs, seed=2, place=place) == []


def test_all_readers_are_here(known):
    assert list(known[1]) == NAMES


@pytest.mark.parametrize("name", ["images.zip", "table.zip"])
def test_a_folder_whose_checksums_were_made_anew_holds(known, name):
    place, by_name = known
    members = unpack(by_name[name].valid)
    record = json.loads(members["record.json"])
    record["seed"] = 77
    members["record.json"] = json.dumps(record).encode()
    (place / "run").mkdir(exist_ok=True)
    for file, content in renewed(members).items():
        (place / "run" / file).write_bytes(content)
    assert verify_run(place / "run").problems == []
    shutil.rmtree(place / "run")


def test_a_reader_that_lets_another_exception_out_is_found(tmp_path):
    reader = Reader("a.json", b'{"a": 1}', lambda path: 1 / 0, (change_json,))
    (found,) = fuzz(reader, 5, seed=1, place=tmp_path)
    assert "ZeroDivisionError" in found


# What fuzzing has found.


def test_a_header_of_an_array_that_never_ends_is_refused(tmp_path):
    header = b"{'descr': (((" + b" " * 51 + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(DpvdError, match="is damaged"):
        read_array(tmp_path / "x.npy")


def test_an_integer_beyond_floating_point_is_no_finite_number():
    assert not is_finite_number(10**400)


@pytest.mark.parametrize("fields", [1, "flat", [["mode", "flat"]], None])
def test_clipping_of_another_type_is_refused(fields):
    with pytest.raises(DpvdError, match="not a description of clipping"):
        Clipping.from_dict(fields)


@pytest.mark.parametrize("text", ["[" * 100_000, "a = " + "9" * 5000])
def test_a_schema_without_end_is_refused(tmp_path, text):
    (tmp_path / "schema.toml").write_text(text)
    with pytest.raises(DpvdError, match="is no TOML"):
        read_schema(tmp_path / "schema.toml")


@pytest.mark.parametrize("line", [b"[" * 100_000, b"9" * 5000])
def test_a_ledger_without_end_is_refused(tmp_path, line):
    (tmp_path / "ledger.jsonl").write_bytes(line + b"\n")
    with pytest.raises(DpvdError, match="does not begin like a ledger"):
        Ledger.open(tmp_path / "ledger.jsonl")


def test_options_and_starts_without_end_are_refused(tmp_path):
    (tmp_path / "options.json").write_text("[" * 100_000)
    with pytest.raises(DpvdError, match="cannot be read"):
        reopen_run_dir(tmp_path, {})
    (tmp_path / "account.json").write_text("[" * 100_000)
    with pytest.raises(DpvdError, match="cannot be read"):
        known_starts(tmp_path)


@pytest.mark.parametrize("noise", [1e-300, 1e300])
def test_plans_that_nobody_can_account_for_are_not_verified(known, noise):
    place, by_name = known
    members = unpack(by_name["images.zip"].valid)
    record = json.loads(members["record.json"])
    plan = {**record["plan"], "noise_multiplier": noise}
    members["ledger.jsonl"] = with_plan(members["ledger.jsonl"], record["plan"], plan)
    members["record.json"] = json.dumps({**record, "plan": plan}).encode()
    (place / "run.zip").write_bytes(pack(renewed(members)))
    read_folder(place / "run.zip")
    assert not verify_run(place / "run").holds


@pytest.mark.parametrize(
    ("part", "name", "value"), [("model", "layers", [[1]]), ("dataset", "train", "many")]
)
def test_a_record_that_cannot_be_shown_is_refused(known, part, name, value):
    place, by_name = known
    members = unpack(by_name["images.zip"].valid)
    record = json.loads(members["record.json"])
    record[part][name] = value
    members["record.json"] = json.dumps(record).encode()
    (place / "run.zip").write_bytes(pack(renewed(members)))
    with pytest.raises(DpvdError, match="is damaged"):
        read_folder(place / "run.zip")


@pytest.mark.parametrize("part", ["files", "heads"])
def test_a_manifest_of_other_types_is_refused(tmp_path, part):
    content = {"files": {}, "format": 1, "heads": {}} | {part: 0.5}
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(DpvdError, match="is damaged"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("facts", ["[" * 100_000, "9" * 5000])
def test_facts_of_a_checkpoint_without_end_are_refused(tmp_path, facts):
    header = json.dumps({"__metadata__": {"format": FORMAT, "facts": facts}}).encode()
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(DpvdError, match="is damaged"):
        Checkpoint.load(path)


def test_a_member_of_an_archive_that_is_no_array_is_refused(tmp_path):
    path = tmp_path / "arrays.npz"
    np.savez(path, x=np.ones((4, 2)))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("y.npy", b"print(1)")
    with pytest.raises(DpvdError, match="y is no array"):
        load_arrays(path)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [("test", "reliability", [1]), ("test", "confusion", [[1], [1, 2]]), ("alpha", "0", 0.5)],
)
def test_parts_of_a_record_that_make_no_sense_are_skipped(part, name, value):
    values = json.loads(RECORD.read_text())
    values[part] = {**values[part], name: value}
    record = RunRecord.from_dict(values)
    assert record.reliability_bins() == [] or name != "reliability"
    assert record.confusion_matrix() is None or name != "confusion"
    assert name not in [key for key, _, _ in record.alpha_histograms()]


@pytest.mark.parametrize("epsilon", ["1", None, [], True, 10**400])
def test_a_record_whose_epsilon_is_no_number_is_not_private(epsilon):
    values = json.loads(RECORD.read_text())
    values["guarantee"]["epsilon"] = epsilon
    record = RunRecord.from_dict(values)
    assert record.epsilon is None
    assert not record.is_private
