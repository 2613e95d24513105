"""Prediction sets: kept examples, what they cost, the ledgers, and the sets themselves."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from dp_accounting import ComposedDpEvent

from dpvd.data import Dataset, load
from dpvd.errors import DpvdError
from dpvd.privacy import Ledger, epsilon
from dpvd.runs import RunOptions, RunRecord, TrainedRun, execute, prepare_run, verify_run
from dpvd.runs.charged import charged_in
from dpvd.runs.prediction_sets import PredictionSets, class_scores, keep_for_calibration
from tests.cli.program import assert_refused, call

OPTIONS = RunOptions(delta=1e-4, epsilon=8.0, epochs=4.0, prediction_sets=0.3)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, RunRecord]:
    folder = tmp_path_factory.mktemp("sets") / "run"
    return folder, execute(prepare_run(OPTIONS, load("digits")), folder)


def without(data: Dataset, place: int) -> Dataset:
    rest = torch.arange(len(data.train_y)) != place
    return replace(data, train_x=data.train_x[rest], train_y=data.train_y[rest])


@pytest.mark.parametrize("place", [0, 17, 700, 1436])
def test_leaving_out_an_example_moves_no_other(place):
    data = load("digits")
    train, x, y = keep_for_calibration(data, 0.3, b"key")
    other, other_x, other_y = keep_for_calibration(without(data, place), 0.3, b"key")
    assert len(train.train_y) + len(y) == len(data.train_y)
    lost_of_train = len(train.train_y) - len(other.train_y)
    assert lost_of_train + len(y) - len(other_y) == 1
    if lost_of_train:
        assert torch.equal(x, other_x)
    else:
        assert torch.equal(train.train_x, other.train_x)


def test_the_same_input_is_never_in_both_parts():
    data = load("digits")
    twice = replace(
        data,
        train_x=data.train_x.repeat(2, 1),
        train_y=torch.cat([data.train_y, data.train_y.flip(0)]),
    )
    train, x, _ = keep_for_calibration(twice, 0.3, b"key")
    assert not {row.numpy().tobytes() for row in x} & {r.numpy().tobytes() for r in train.train_x}


def test_keys_choose_other_examples_and_about_the_share():
    data = load("digits")
    _, one, _ = keep_for_calibration(data, 0.3, b"key")
    _, other, _ = keep_for_calibration(data, 0.3, b"other")
    assert not torch.equal(one, other[: len(one)])
    for kept in (one, other):
        assert len(kept) / len(data.train_y) == pytest.approx(0.3, abs=0.06)


def test_the_statement_is_the_composed_account_of_training_and_release(run):
    folder, record = run
    parts = charged_in(folder).plans
    assert sorted(taken for _, taken in parts) == [1, 4]
    event = ComposedDpEvent([plan.event(taken) for plan, taken in parts])
    assert record.epsilon == pytest.approx(epsilon(event, 1e-4), rel=1e-9)
    assert 0.99 * 8 < record.epsilon <= 8
    assert record.guarantee["steps"] == 5
    training = next(plan for plan, taken in parts if taken == 4)
    assert training.epsilon(1e-4) < 0.97 * 8
    sizes = [plan.examples for plan, _ in parts]
    assert sum(sizes) == 1437
    assert record.dataset["train"] + record.dataset["calibration"] == 1437
    assert "one step is a release of scores for prediction sets" in record.guarantee["sentence"]


def test_the_folder_holds_and_the_model_remembers_both(run):
    folder, record = run
    found = verify_run(folder)
    assert found.holds, found.problems
    assert [entry["steps"] for entry in record.releases] == [4, 1]
    trained = TrainedRun(folder)
    assert trained.record == record


def test_the_kept_examples_take_no_part_in_training():
    prepared = prepare_run(OPTIONS, load("digits"))
    assert prepared.kept is not None
    rows = {row.numpy().tobytes() for row in prepared.dataset.train_x}
    assert not rows & {row.numpy().tobytes() for row in prepared.kept.x}
    assert prepared.plan.examples == len(prepared.dataset.train_y)


def test_a_run_that_was_killed_before_its_record_pays_for_the_release_once(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    for name in ("record.json", "model.safetensors", "manifest.json"):
        (folder / name).unlink()
    record = execute(prepare_run(OPTIONS, load("digits")), folder, resume=True)
    assert record.prediction_sets == run[1].prediction_sets
    assert record.guarantee == run[1].guarantee
    assert Ledger.open(folder / "ledger-prediction-sets.jsonl").charged == 1
    assert verify_run(folder).holds


def test_sets_cover_new_examples_about_as_often_as_asked_for(run):
    folder, record = run
    data = load("digits")
    trained = TrainedRun(folder)
    lost = record.prediction_sets["coverage_lost"]
    assert 0 < lost < 0.1
    sizes = []
    for coverage in (0.5, 0.9):
        sets = trained.predict_sets(data.test_x, coverage)
        covered = sets.gather(1, data.test_y[:, None]).double().mean().item()
        assert coverage - lost - 0.08 < covered < coverage + 0.12  # 360 examples
        sizes.append(sets.sum().item())
    assert sizes[0] < sizes[1]


def test_scores_of_an_example_do_not_depend_on_the_others(run):
    trained = TrainedRun(run[0])
    head = trained.network.trained(trained.model)
    x = trained.network.head_inputs(trained.model, load("digits").test_x[:50])
    assert torch.allclose(class_scores(head, x)[1:], class_scores(head, x[1:]), atol=1e-5)


def test_the_record_gives_back_the_sets_and_damage_is_found(run):
    values = run[1].prediction_sets
    assert PredictionSets.from_dict(values).to_dict() == values
    for damage in ({"counts": []}, {"counts": ["a"] * 640}, {"examples": 0}, {"lowest": 1.0}):
        with pytest.raises(DpvdError, match="prediction sets of the record are damaged"):
            PredictionSets.from_dict(values | damage)


def test_predict_writes_a_column_of_sets(run, tmp_path):
    np.save(tmp_path / "x.npy", load("digits").test_x[:30].numpy())
    rows = call("predict", run[0], tmp_path / "x.npy", "--coverage", 0.9, "--json").json
    assert all(isinstance(row["set"], list) for row in rows)
    assert any(row["class"] in row["set"] for row in rows)
    shown = call("predict", run[0], tmp_path / "x.npy", "--coverage", 0.99).out.splitlines()
    assert shown[0] == "row,class,probability,spread,set"
    refused = call("predict", run[0], tmp_path / "x.npy", "--coverage", 1)
    assert_refused(refused, "coverage must lie strictly between 0 and 1")


def test_a_run_without_the_release_says_what_to_do(tmp_path):
    execute(prepare_run(replace(OPTIONS, prediction_sets=None), load("digits")), tmp_path / "run")
    np.save(tmp_path / "x.npy", load("digits").test_x[:3].numpy())
    refused = call("predict", tmp_path / "run", tmp_path / "x.npy", "--coverage", 0.9)
    assert_refused(refused, "train with --prediction-sets 0.1")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "none", "epsilon": None}, "method none has none"),
        ({"relation": "replace-one"}, "for --relation add-or-remove"),
        ({"prediction_sets": 0.6}, "at most 0.5"),
        ({"prediction_sets": 0.0}, "strictly between 0 and 1"),
    ],
)
def test_what_cannot_be_kept_is_refused(changes, words):
    with pytest.raises(DpvdError, match=words):
        replace(OPTIONS, **changes)


def test_too_few_examples_are_refused_before_anything_is_charged():
    with pytest.raises(DpvdError, match=r"may lose .* of their coverage to noise"):
        prepare_run(replace(OPTIONS, epsilon=1.0, prediction_sets=0.1), load("digits"))
