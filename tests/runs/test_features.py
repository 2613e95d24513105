"""Runs whose network is a linear head on features that need no data."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpvd.data import Dataset, load
from dpvd.errors import DpvdError
from dpvd.export import export_model
from dpvd.plan import PrivacyPlan
from dpvd.runs import (
    NetworkKind,
    NetworkSpec,
    RunOptions,
    RunRecord,
    TrainedRun,
    execute,
    load_images,
    prepare_run,
    private_recipe,
)
from dpvd.runs.recipes import Linear

QUICK = RunOptions(delta=1e-5, epsilon=1.0, epochs=4.0)
RECORDS = Path(__file__).parents[2] / "reproduction" / "defaults.jsonl"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, RunRecord]:
    folder = tmp_path_factory.mktemp("features") / "run"
    seen: list[tuple[int, int]] = []
    prepared = prepare_run(QUICK, load("digits"))
    record = execute(prepared, folder, on_features=lambda *counts: seen.append(counts))
    assert seen[-1] == (1437, 1437)
    return folder, record


def test_images_get_features_and_a_linear_head_by_default(run):
    _, record = run
    network = NetworkSpec.from_dict(record.model["network"])
    assert network.kind is NetworkKind.LINEAR
    assert network.front is not None
    assert record.model["parameters"] == network.front.outputs * 10
    assert record.plan["batch_size"] == record.plan["examples"] == 1437
    assert record.model["layers"] == [
        "features: scatter 64→128, not trained",
        "0: AdditiveLinear 128→10",
    ]
    assert "made-up shapes (no real image)" in record.dataset["preprocessing"]
    assert 0.99 < record.epsilon <= 1


def test_the_features_are_saved_with_the_model(run):
    folder, record = run
    state = load_file(folder / "model.safetensors")
    assert {"features.whitening.directions", "head.0.weight"} <= set(state)
    data = load("digits")
    probabilities, spread = TrainedRun(folder).predict_dist(data.test_x, record.test["samples"])
    accuracy = (probabilities.argmax(1) == data.test_y).double().mean().item()
    assert accuracy == record.test["accuracy"] > 0.8
    assert (spread > 0).any()  # the head is variational


@pytest.mark.parametrize("format", ["torch", "onnx"])
def test_a_run_with_features_is_exported_whole(format, run, tmp_path):
    if format == "onnx":
        pytest.importorskip("onnxruntime")
    folder, _ = run
    exported = export_model(TrainedRun(folder), tmp_path / "model", format=format)
    assert exported.input_shape == (64,)
    assert exported.largest_difference <= 1e-5


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path):
    options = replace(QUICK, seeded_noise=True, epochs=20.0)

    def interrupt(progress):
        if progress.step == 11:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(prepare_run(options, load("digits")), tmp_path / "a", on_step=interrupt)
    execute(prepare_run(options, load("digits")), tmp_path / "a", resume=True)
    execute(prepare_run(options, load("digits")), tmp_path / "b")
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    for name, value in first.items():
        torch.testing.assert_close(value, second[name])


def test_training_leaves_features_and_data_as_they_were(run):
    folder, record = run
    fresh = NetworkSpec.from_dict(record.model["network"]).build()
    state = load_file(folder / "model.safetensors")
    for name, value in fresh.get_submodule("features").state_dict().items():
        torch.testing.assert_close(state[f"features.{name}"], value)


@pytest.mark.parametrize("method", ["svi", "dpsgd", "none"])
def test_every_method_trains_a_head(method, tmp_path):
    options = RunOptions(delta=1e-5, epsilon=10.0 if method != "none" else None, method=method)
    record = execute(prepare_run(options, load("digits")), tmp_path / method)
    assert record.model["layers"][1] == "0: Linear 128→10"
    assert record.test["accuracy"] > 0.95


@pytest.mark.parametrize("kind", ["hog", "random"])
def test_other_features_can_be_chosen(kind, tmp_path):
    options = replace(QUICK, epsilon=10.0, features=kind)
    record = execute(prepare_run(options, load("digits")), tmp_path / kind)
    assert record.model["network"]["front"]["kind"] == kind
    assert record.test["accuracy"] > 0.8


def colours(folder: Path, shape: tuple[int, ...]) -> Path:
    """Images of two classes: a bright upper or lower half."""
    source = np.random.default_rng(0)
    x = source.integers(0, 60, (120, *shape), dtype=np.uint8)
    y = source.integers(0, 2, 120)
    half = shape[0] // 2
    x[y == 0, :half] += 150
    x[y == 1, half:] += 150
    np.savez(folder / "images.npz", x=x, y=y)
    return folder / "images.npz"


@pytest.mark.parametrize("shape", [(10, 12, 3), (7, 9)])
def test_own_images_of_any_size_and_colour_are_learnt(shape, tmp_path):
    path = colours(tmp_path, shape)
    images = load_images(path, test_fraction=0.3, key=b"0" * 32)
    options = RunOptions(delta=1e-3, epsilon=20.0)
    prepared = prepare_run(options, images.dataset, checksum_key=b"0" * 32)
    record = execute(prepared, tmp_path / "run")
    assert record.model["network"]["front"]["image"] == list(shape)
    assert record.test["accuracy"] > 0.9
    loaded = TrainedRun(tmp_path / "run")
    assert loaded.predict_dist(images.dataset.test_x)[0].shape[1] == 2
    with pytest.raises(DpvdError, match="features for each example, got"):
        loaded.predict_dist(torch.zeros(2, 5))


def test_images_that_are_too_small_or_have_many_channels_take_the_dense_network():
    for shape in ((4, 20), (8, 8, 6)):
        x = torch.rand(30, *shape)
        y = torch.arange(30) % 2
        data = Dataset("own", x, y, x[:0], y[:0], 2, "none", pixels=True)
        network = prepare_run(QUICK, data).network
        assert network.front is None
        assert network.kind is NetworkKind.MLP
        with pytest.raises(DpvdError, match="features are made of images"):
            prepare_run(replace(QUICK, features="scatter"), data)


def test_the_papers_network_stays_within_reach():
    for options in (
        RunOptions(delta=1e-5, epsilon=1.0, recipe="paper"),
        RunOptions(delta=1e-5, epsilon=1.0, features="none"),
        RunOptions(delta=1e-5, epsilon=1.0, network="mlp"),
        RunOptions(delta=1e-5, epsilon=1.0, hidden=1000),
    ):
        prepared = prepare_run(options, load("digits"))
        assert prepared.network.front is None
        assert (prepared.network.kind, prepared.network.hidden) == (NetworkKind.MLP, 1000)
        assert prepared.plan.steps == 100
        assert prepared.recipe.momentum == 0.9


def test_a_linear_network_takes_pixels_if_asked_to():
    options = RunOptions(delta=1e-5, epsilon=1.0, network="linear", features="none")
    network = prepare_run(options, load("digits")).network
    assert network.front is None
    assert network.parameters == 640


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"recipe": "paper", "features": "hog"}, "--recipe paper takes pixels"),
        ({"features": "scatter", "network": "mlp"}, "goes with a linear network, not with mlp"),
        ({"features": "scatter", "hidden": 5}, "goes with a linear network, not with mlp"),
        ({"network": "linear", "hidden": 5}, "no hidden units"),
        ({"features": "wavelets"}, "features must be one of"),
    ],
)
def test_choices_that_contradict_each_other_are_refused(choices, words):
    with pytest.raises(DpvdError, match=words):
        prepare_run(RunOptions(delta=1e-5, epsilon=1.0, **choices), load("digits"))


@pytest.mark.parametrize(("examples", "epsilon"), [(1437, 1.0), (60_000, 0.1), (60_000, 3.0)])
def test_the_heads_steps_together_leave_the_same_noise_in_an_output(examples, epsilon):
    rule = Linear(1000, 0, 10).rule()
    plan = PrivacyPlan(examples, examples, steps=rule.full_batch_steps).calibrate(epsilon, 1e-5)
    assert plan.noise_multiplier is not None
    left = private_recipe(plan, rule).learning_rate * plan.noise_multiplier / examples
    signal = examples * math.sqrt(plan.steps) / plan.noise_multiplier
    expected = rule.weight_noise * min(1, math.sqrt(signal / 400))
    assert left * math.sqrt(plan.steps) == pytest.approx(expected)


def records() -> list[dict]:
    return [json.loads(line) for line in RECORDS.read_text(encoding="utf-8").splitlines()]


def test_every_epsilon_of_the_recorded_runs_follows_from_its_record():
    checked = {}
    for record in records():
        plan = PrivacyPlan.from_dict(record["plan"])
        key = plan.fingerprint
        if key not in checked:  # seeds share a plan
            checked[key] = plan.epsilon(record["delta"])
        assert record["epsilon"] == pytest.approx(checked[key], rel=1e-9)
        assert record["epsilon"] <= record["asked"]
        assert plan.sampling_prob == 1
        assert record["noise_source"] == "the system's cryptographic generator"
    assert len(checked) == 8


def test_the_recorded_runs_are_what_the_default_command_does_now():
    """Records of another recipe than today's would prove nothing about it."""
    digits = load("digits")
    for record in records():
        if record["dataset"] == "digits" and record["seed"] == 0:
            options = RunOptions(delta=record["delta"], epsilon=record["asked"])
            prepared = prepare_run(options, digits)
            assert prepared.plan.to_dict() == record["plan"]
            assert prepared.recipe.to_dict() == record["recipe"]
            assert prepared.network.to_dict() == record["network"]
