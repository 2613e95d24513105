"""A folder from somebody else is opened within a memory limit, without a network, or refused."""

import json
import os
import resource
import shutil
import socket
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dpvd.data import load
from dpvd.errors import DpvdError
from dpvd.files import LARGEST_NOTE, read_within
from dpvd.runs import write_manifest
from tests.cli.program import assert_refused, call, train_line

OLD = Path(__file__).parent / "old_runs" / "finished"
SCHEMA = """[target]
name = "ill"
classes = ["no", "yes"]
source = "public"
[columns.age]
kind = "numeric"
bounds = [0, 120]
source = "public"
[columns.ward]
kind = "categorical"
categories = ["n", "s"]
source = "public"
"""
MEMORY = 1 << 30  # bytes more than before, of which a small network needs some millions


@contextmanager
def limited_memory():
    """An allocation that a file asks for fails, as it does on a small machine."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture
def folder(tmp_path):
    """A finished run that somebody sent, and numbers to predict from."""
    shutil.copytree(OLD, tmp_path / "run")
    write_manifest(tmp_path / "run")
    np.save(tmp_path / "x.npy", load("digits").test_x[:3].numpy())
    return tmp_path / "run"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A finished run on a table, which lies beside it."""
    place = tmp_path_factory.mktemp("table")
    rows = [f"{20 + i},{'ns'[i % 2]},{'yes' if i % 3 else 'no'}" for i in range(60)]
    (place / "table.csv").write_text("\n".join(["age,ward,ill", *rows]))
    (place / "schema.toml").write_text(SCHEMA)
    line = ["train", place / "table.csv", "--target", "ill", "--schema", place / "schema.toml"]
    made = call(*line, "--epsilon", 4, "--delta", 1e-5, "--out", place / "run")
    assert made.code == 0, made.err
    return place / "run"


def write_record(folder, change):
    path = folder / "record.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    write_manifest(folder)  # as whoever means harm would


@pytest.mark.parametrize("hidden", [10**9, 10**7, 10**30, 5])
def test_a_record_cannot_ask_for_memory_that_its_model_does_not_fill(folder, hidden):
    write_record(folder, lambda record: record["model"]["network"].update(hidden=hidden))
    call("predict", folder, "nothing.npy")  # what is loaded once is loaded
    with limited_memory():
        outcome = call("predict", folder, folder.parent / "x.npy")
    words = "fit into memory" if hidden == 10**30 else "does not fit the network in the record"
    assert_refused(outcome, words)


@pytest.mark.parametrize("name", ["features", "classes", "hidden"])
def test_a_record_of_a_table_cannot_either(table, tmp_path, name):
    shutil.copytree(table, tmp_path / "run")
    write_record(tmp_path / "run", lambda record: record["model"]["network"].update({name: 10**7}))
    with limited_memory():
        outcome = call("predict", tmp_path / "run", table.parent / "table.csv")
    words = "does not fit the network" if name == "hidden" else "the record is damaged"
    assert_refused(outcome, words)


# By name, how large the file is made, and the command that reads it.
TOO_LARGE = {
    "record.json": (65 << 20, ["show"]),
    "ledger.jsonl": (2 << 30, ["show"]),
    "model.safetensors": (5 << 30, ["predict", "x.npy"]),
    "options.json": (2 << 20, ["resume"]),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_files_that_are_larger_than_their_kind_are_refused(folder, name):
    size, (command, *rest) = TOO_LARGE[name]
    os.truncate(folder / name, size)  # a hole, which takes no place on disk
    if name == "ledger.jsonl":
        (folder / "record.json").unlink()  # of unfinished runs, show reads the ledger
    inputs = [folder.parent / each for each in rest]
    line = [command, folder, *inputs]
    if command == "resume":
        line = train_line(folder, resume=True)
    with limited_memory():
        outcome = call(*line)
    assert_refused(outcome, name, "a file of its kind has at most")


def test_what_is_no_file_is_not_waited_for(folder):
    (folder / "record.json").unlink()
    os.mkfifo(folder / "record.json")
    assert_refused(call("show", folder), "is no ordinary file")
    assert_refused(call("predict", folder, folder.parent / "x.npy"), "is no ordinary file")
    with pytest.raises(DpvdError, match="is no ordinary file"):
        read_within(Path("/dev/zero"), LARGEST_NOTE)


@pytest.mark.usefixtures("no_network")
def test_a_folder_is_shown_verified_and_predicted_from_without_a_network(table):
    with pytest.raises(AssertionError, match="the network was asked for"):
        socket.create_connection(("127.0.0.1", 9))
    assert call("verify", table).out.splitlines()[-1] == "verified"
    shown = call("show", table)
    assert (shown.code, shown.err) == (0, "")
    told = call("predict", table, table.parent / "table.csv", "--json")
    assert (told.code, len(told.json)) == (0, 60)


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("the network was asked for")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
