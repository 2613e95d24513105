"""Runs with convolutions go the way of all runs: from options to a folder and back, and on after an
interruption.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dpvd.data import Dataset, load
from dpvd.errors import DpvdError
from dpvd.report import write_report
from dpvd.runs import RunOptions, RunRecord, TrainedRun, execute, prepare_run

SMALL = RunOptions(delta=1e-5, epsilon=8.0, network="cnn", hidden=8, batch_size=150, epochs=10.0)


@pytest.fixture(scope="module")
def images() -> Dataset:
    """Noise with a bright half: on the left in one class, on the right in the other."""
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(400) % 2
    x = torch.rand(400, 14, 16, generator=generator)
    x[y == 0, :, :8] += 0.5
    x[y == 1, :, 8:] += 0.5
    parts = (x[:300], y[:300], x[300:], y[300:])
    return Dataset("halves", *parts, classes=2, preprocessing="none", pixels=True)


def trained(data: Dataset, folder: Path, **changes) -> RunRecord:
    return execute(prepare_run(replace(SMALL, **changes), data), folder)


@pytest.fixture(scope="module")
def run(images, tmp_path_factory) -> tuple[Path, RunRecord]:
    folder = tmp_path_factory.mktemp("run")
    return folder, trained(images, folder)


def test_convolutions_learn_within_the_budget(run):
    _, record = run
    assert record.test["accuracy"] > 0.9
    assert 7.2 < record.epsilon <= 8
    assert record.guarantee["tuned"] is None


def test_the_model_on_disk_reproduces_the_recorded_accuracy(run, images):
    folder, record = run
    trained_run = TrainedRun(folder)
    for x in (images.test_x, images.test_x.flatten(1)):  # flat, too: as a CSV file has them
        probabilities, spread = trained_run.predict_dist(x, samples=record.test["samples"])
        assert (probabilities.argmax(1) == images.test_y).double().mean().item() == record.test[
            "accuracy"
        ]
        assert (
            spread > 0
        ).any()  # where the model is sure, the spread is below what floats can tell


def test_the_record_says_what_was_trained(run):
    folder, record = run
    assert RunRecord.read(folder) == record
    assert record.model["network"]["kind"] == "cnn"
    assert record.model["network"]["image"] == [14, 16]
    assert "4: AdditiveConv2d 16→32 of 4×4" in record.model["layers"]
    assert set(record.alpha) == set(record.sparsity["layers"]) == {"1", "4", "8", "10"}
    assert "scaled to L2 norm 14.9666" in record.dataset["preprocessing"]


def test_there_is_a_page(run):
    folder, record = run
    assert "AdditiveConv2d" in write_report(record, folder).read_text(encoding="utf-8")


@pytest.mark.parametrize("scale", ["learned", "fixed", "none"])
def test_every_scale_costs_the_same(scale, run, images, tmp_path):
    record = trained(images, tmp_path, scale=scale)
    assert record.epsilon == run[1].epsilon
    assert TrainedRun(tmp_path).record == record


@pytest.mark.parametrize("method", ["svi", "dpsgd", "none"])
def test_every_method_takes_convolutions(method, images, tmp_path):
    assert trained(images, tmp_path, method=method).test["accuracy"] > 0.9


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(images, tmp_path):
    def interrupt(progress):
        if progress.step == 8:
            raise KeyboardInterrupt

    prepared = prepare_run(replace(SMALL, seeded_noise=True), images)
    execute(prepared, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        execute(prepared, tmp_path / "broken", on_step=interrupt)
    execute(prepared, tmp_path / "broken", resume=True)
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "broken")]
    assert models[0] == models[1]


def test_examples_that_are_no_images_are_refused():
    with pytest.raises(DpvdError, match=r"got 64 features of shape \(64,\): use the mlp"):
        prepare_run(SMALL, load("digits"))
    table = Dataset(
        "table",
        *(torch.ones(20, 16, 16), torch.arange(20) % 2) * 2,
        classes=2,
        preprocessing="none",
    )
    with pytest.raises(DpvdError, match="got 256 features: use the mlp"):
        prepare_run(SMALL, table)
    colour = torch.ones(20, 3, 16, 16)
    coloured = Dataset(
        "colour", *(colour, table.train_y) * 2, classes=2, preprocessing="none", pixels=True
    )
    with pytest.raises(DpvdError, match=r"of shape \(3, 16, 16\): use the mlp"):
        prepare_run(SMALL, coloured)


@pytest.mark.parametrize(("network", "hidden"), [("mlp", 1000), ("cnn", 32)])
def test_each_network_has_a_width_of_its_own(network, hidden, images):
    assert (
        prepare_run(replace(SMALL, network=network, hidden=None), images).network.hidden == hidden
    )
