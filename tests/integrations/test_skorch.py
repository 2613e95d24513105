"""The nets of skorch: what ran is what is stated, and nothing of training is recorded."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from skorch.callbacks import (
    Callback,
    Checkpoint,
    EarlyStopping,
    EpochScoring,
    Freezer,
    GradientNormClipping,
    LRScheduler,
)
from skorch.dataset import Dataset, ValidSplit
from skorch.helper import predefined_split
from torch import nn

import dpvd
from dpvd.skorch import PrivateBinaryClassifier, PrivateClassifier, PrivateNet, PrivateRegressor

DELTA = 1e-3
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(60, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
VALID = Dataset(X[:10], Y[:10])


class Network(nn.Module):
    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        self.first = nn.Linear(4, 5)
        self.drop = nn.Dropout(0.1)
        self.last = nn.Linear(5, outputs)

    def forward(self, X):
        return self.last(self.drop(self.first(X).relu()))


class Flat(Network):
    def forward(self, X):
        return super().forward(X)[:, 0]


def net(kind: Any = PrivateClassifier, module: Any = Network, **options: Any) -> Any:
    defaults: dict[str, Any] = {
        "epsilon": 3,
        "delta": DELTA,
        "max_epochs": 2,
        "batch_size": 20,
        "lr": 0.5,
        "verbose": 0,
    }
    if kind is PrivateClassifier:
        defaults["criterion"] = nn.CrossEntropyLoss
    return kind(module, **defaults | options)


class Recorder(Callback):
    """A logger: keeps what skorch would hand to TensorBoard, W&B or MLflow."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []
        self.epochs: list[dict[str, Any]] = []

    def on_batch_end(self, net, batch=None, training=False, **values):
        self.batches.append({"training": training, **values, **net.history[-1, "batches", -1]})

    def on_epoch_end(self, net, **values):
        self.epochs.append(dict(net.history[-1]))


def test_the_statement_is_of_what_ran_and_training_values_are_not_recorded():
    recorder = Recorder()
    private = net(callbacks=[recorder], train_split=predefined_split(VALID))
    private.fit(X, Y)
    statement = private.guarantee()
    step = private.step_
    assert step.taken == step.charged == statement.steps == private.plan_.steps == 6
    (entry,) = step.state_dict()["account"]["entries"].values()
    assert [one["drawn"] for one in entry["seen"].values()] == [6]
    assert entry["not_covered"] == []
    assert statement.epsilon <= 3
    kept = private.history  # what files and loggers are made of
    assert {name for epoch in kept for name in epoch} == {
        "batches",
        "dur",
        "epoch",
        "epsilon",
        "train_batch_count",
        "valid_acc",
        "valid_acc_best",
        "valid_batch_count",
        "valid_loss",
        "valid_loss_best",
    }
    of_training = [batch for batch in recorder.batches if batch.pop("training")]
    assert of_training == [{"loss": torch.tensor(0.0), "y_pred": None}] * 6
    assert kept[-1]["epsilon"] == pytest.approx(statement.epsilon)
    assert all("epsilon" in epoch for epoch in recorder.epochs)


def test_habits_of_scikit_learn():
    pipeline = make_pipeline(Normalizer(), net(max_epochs=1))
    pipeline.fit(X, Y)
    probabilities = pipeline.predict_proba(X)
    assert probabilities.shape == (60, 2)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    assert set(pipeline.predict(X)) <= {0, 1}
    copy = clone(net(epsilon=2, clip_norm=0.5, micro_batch=7, kept_mb=8))
    assert (copy.epsilon, copy.clip_norm, copy.plan_) == (2, 0.5, None)
    step = copy.fit(X, Y).step_
    assert (step.micro_batch, step.kept_mb) == (7, 8)
    assert copy.set_params(epsilon=1).get_params()["epsilon"] == 1
    assert len(cross_val_score(net(max_epochs=1), X, Y, cv=2)) == 2


def test_a_new_fit_has_a_new_account_and_goes_no_further_than_the_budget(caplog):
    private = net(epochs=1.5, max_epochs=1).fit(X, Y)
    assert private.step_.taken == 3
    private.partial_fit(X, Y)
    assert private.step_.taken == private.plan_.steps == 5
    private.partial_fit(X, Y)
    assert private.step_.taken == 5
    assert len(private.history) == 2
    assert "the budget is spent" in caplog.text
    with pytest.raises(dpvd.DpvdError, match="20 of 60 examples, got 20 of 30"):
        private.partial_fit(X[:30], Y[:30])
    assert private.fit(X, Y).guarantee().steps == 3


def test_pickled_nets_and_saved_parameters_keep_the_account(tmp_path):
    first = net(epochs=3, max_epochs=1).fit(X, Y)
    stored = pickle.loads(pickle.dumps(first))
    assert stored.guarantee() == first.guarantee()
    stored.partial_fit(X, Y)
    assert stored.step_.charged == stored.guarantee().steps == 6
    first.save_params(f_params=tmp_path / "weights.pt", f_optimizer=tmp_path / "optimizer.pt")
    second = net(epochs=3, max_epochs=10).initialize()
    second.load_params(f_params=tmp_path / "weights.pt", f_optimizer=tmp_path / "optimizer.pt")
    second.partial_fit(X, Y)
    assert second.plan_ == first.plan_
    assert second.guarantee().steps == second.plan_.steps == 9
    assert len(second.history) == 2
    first.save_params(f_params=tmp_path / "weights.safetensors", use_safetensors=True)
    bare = net().initialize()
    with pytest.raises(dpvd.DpvdError, match="hold no account"):
        bare.load_params(f_params=tmp_path / "weights.safetensors", use_safetensors=True)


@pytest.mark.parametrize(
    "callback",
    [
        lambda folder: Checkpoint(dirname=folder, load_best=True),
        lambda folder: EarlyStopping(patience=1, threshold=10.0, load_best=True),
        lambda folder: Freezer("first.*"),
        lambda folder: LRScheduler(policy="StepLR", step_size=1, gamma=0.5),
    ],
    ids=["checkpoint", "early stopping", "freezer", "scheduler"],
)
def test_callbacks_leave_nothing_uncovered(tmp_path: Path, callback: Any):
    private = net(
        callbacks=[callback(str(tmp_path))], train_split=predefined_split(VALID), max_epochs=3
    )
    private.fit(X, Y)
    assert "Not covered" not in private.guarantee().sentence()
    assert private.step_.taken == private.guarantee().steps == 3 * len(private.history)


def test_weights_that_other_code_changed_are_named():
    class Vandal(Callback):
        def on_epoch_end(self, net, **values):
            net.module_.last.bias.data += 1.0

    private = net(callbacks=[Vandal()]).fit(X, Y)
    assert "Not covered: changes that other code made" in private.guarantee().sentence()


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 2)
        self.two = nn.Linear(2, 2)

    def forward(self, one, two):
        return self.one(one) + self.two(two)


@pytest.mark.parametrize(
    ("private", "x", "y"),
    [
        (net(PrivateBinaryClassifier, Flat), X, Y.astype(np.float32)),
        (net(PrivateRegressor, Network, module__outputs=3), X, X[:, :3]),
        (net(module=Two), {"one": X, "two": X[:, :2]}, Y),
        (net(criterion=nn.CrossEntropyLoss(label_smoothing=0.1)), X, Y),
        (net(optimizer=torch.optim.Adam, lr=0.1, batch_size=-1), X, Y),
    ],
    ids=["binary", "several outputs", "dictionary", "criterion object", "all rows"],
)
def test_other_nets(private, x, y):
    private.fit(x, y)
    assert private.guarantee().steps == private.plan_.steps
    assert "Not covered" not in private.guarantee().sentence()
    assert len(private.predict(x)) == 60


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"train_split": ValidSplit(5)}, "holds 12 of 60 rows out"),
        ({"criterion__reduction": "mean"}, "one number of the whole batch"),
        ({"callbacks": [GradientNormClipping(1.0)]}, "bounds no example"),
        ({"callbacks": [EpochScoring("accuracy", on_train=True)]}, "scores training data"),
        ({"callbacks": [LRScheduler("ReduceLROnPlateau")]}, "monitors 'train_loss'"),
        ({"epsilon": -1}, "epsilon must be"),
        ({"batch_size": 100}, "at most the number of examples"),
        ({"iterator_train": lambda *args, **options: []}, "a torch DataLoader, got list"),
    ],
)
def test_what_would_void_the_account_is_refused(options, words):
    with pytest.raises(dpvd.DpvdError, match=words):
        net(**options).fit(X, Y)


def test_losses_of_a_whole_batch_and_of_all_pairs_are_refused():
    def mean(outputs: Any, targets: Any) -> Any:
        return nn.functional.cross_entropy(outputs, targets)

    private = net(criterion=lambda: mean)
    with pytest.raises(dpvd.DpvdError, match="reduction='none'"):
        private.fit(X, Y)
    assert private.step_.charged == 0
    with (
        pytest.warns(UserWarning, match="target size"),
        pytest.raises(dpvd.DpvdError, match="every output would be compared with every target"),
    ):
        net(PrivateRegressor, module__outputs=1).fit(X, X[:, 0])
    with pytest.raises(dpvd.DpvdError, match="fit was given mask"):
        net().fit(X, Y, mask=1)


def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(dpvd.DpvdError, match="2 processes: a net of skorch trains in one"):
        net().fit(X, Y)


def test_there_is_no_statement_before_a_fit():
    with pytest.raises(dpvd.DpvdError, match="nothing was trained yet"):
        net().guarantee()
    assert issubclass(PrivateClassifier, PrivateNet)
