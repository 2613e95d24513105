"""The Lightning callback: what ran is what is stated, and nothing of training is logged."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    EMAWeightAveraging,
    LearningRateFinder,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger, Logger
from lightning.pytorch.tuner import Tuner
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import dpvd
import dpvd.lightning

pytestmark = [
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
]

DELTA = 1e-4


class Classifier(LightningModule):
    def __init__(self, reduction: str = "none") -> None:
        super().__init__()
        self.net = nn.Linear(4, 3)
        self.reduction = reduction

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        losses = F.cross_entropy(self(x), y, reduction=self.reduction)
        self.log("train_loss", losses.mean())
        self.log_dict({"train_top": losses.max()}, on_epoch=True)
        return losses

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


class Tunable(Classifier):
    """What the finders of Lightning look for is there."""

    def __init__(self) -> None:
        super().__init__()
        self.lr = 0.1
        self.batch_size = 20

    def train_dataloader(self):
        return data(batch_size=self.batch_size)


class Memory(Logger):
    """A logger that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, float]] = []

    name = "memory"
    version = 0

    def log_hyperparams(self, *args: Any, **options: Any) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.seen.append(metrics)

    def names(self) -> set[str]:
        return {name for metrics in self.seen for name in metrics}


def data(**options: Any) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator)
    dataset = TensorDataset(x, x.argmax(1).clamp_max(2))
    return DataLoader(dataset, **{"batch_size": 20, "shuffle": True} | options)


def trainer(*callbacks: Any, folder: Path | None = None, **options: Any) -> Trainer:
    defaults: dict[str, Any] = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": any(isinstance(one, ModelCheckpoint) for one in callbacks),
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
        "log_every_n_steps": 1,
    }
    return Trainer(callbacks=list(callbacks), **defaults | options)


def test_the_statement_is_of_what_ran_and_loggers_get_epsilon_alone(caplog):
    logger = Memory()
    private = dpvd.lightning.Private(epsilon=3, delta=DELTA)
    module = Classifier()
    before = module.net.weight.detach().clone()
    run = trainer(private, logger=logger)
    run.fit(module, data(), data(shuffle=False))
    statement = private.guarantee()
    assert private.step.taken == private.step.charged == statement.steps == run.global_step == 6
    assert statement.epsilon <= 3
    (run_seen,) = private.step.state_dict()["account"]["entries"].values()
    assert [one["drawn"] for one in run_seen["seen"].values()] == [6]
    assert run_seen["not_covered"] == []
    assert not torch.equal(module.net.weight, before)
    assert logger.names() == {"epsilon", "val_loss", "epoch"}
    assert logger.seen[-1]["epsilon"] == pytest.approx(statement.epsilon)
    assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.5**6)
    assert not {"train_loss", "train_top"} & set(run.callback_metrics)
    assert "'train_loss' is not logged" in caplog.text
    assert "training_step" not in vars(module)  # the module is the user's again


def test_the_file_of_a_logger_of_lightning_holds_no_training_values(tmp_path):
    private = dpvd.lightning.Private(epsilon=3, delta=DELTA)
    run = trainer(private, logger=CSVLogger(tmp_path))
    run.fit(Classifier(), data(), data(shuffle=False))
    header, *rows = next(tmp_path.rglob("metrics.csv")).read_text().splitlines()
    assert set(header.split(",")) == {"epoch", "step", "epsilon", "val_loss"}
    assert rows


def test_it_stops_at_the_budget_by_itself():
    private = dpvd.lightning.Private(epsilon=3, delta=DELTA, epochs=1.4, micro_batch=7, kept_mb=8)
    run = trainer(private, max_epochs=50)
    run.fit(Classifier(), data())
    assert (private.step.micro_batch, private.step.kept_mb) == (7, 8)
    assert run.global_step == private.step.taken == private.plan.steps == 5


def test_training_step_that_logs_nothing_and_a_loss_function_of_its_own():
    private = dpvd.lightning.Private(epsilon=3, delta=DELTA, loss_fn=dpvd.losses.cross_entropy)
    run = trainer(private, max_steps=2, max_epochs=-1)
    run.fit(Classifier(reduction="mean"), data())
    assert private.step.taken == private.plan.steps == 2


@pytest.mark.parametrize("every", [2, 3])
def test_a_resumed_fit_goes_on_counting(tmp_path, every):
    saver = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=every, save_top_k=-1)
    first = dpvd.lightning.Private(epsilon=3, delta=DELTA)
    trainer(first, saver, folder=tmp_path).fit(Classifier(), data())
    path = next(iter(tmp_path.glob(f"*step={every}.ckpt")))
    second = dpvd.lightning.Private(epsilon=3, delta=DELTA)
    resumed = trainer(second, folder=tmp_path)
    resumed.fit(Classifier(), data(), ckpt_path=path)
    assert second.plan == first.plan
    assert second.step.charged == second.step.taken == resumed.global_step == 6
    assert second.guarantee().epsilon == pytest.approx(first.guarantee().epsilon)
    changed = dpvd.lightning.Private(epsilon=30, delta=DELTA)
    with pytest.raises(dpvd.DpvdError, match="another plan, for ε = 3"):
        trainer(changed, folder=tmp_path).fit(Classifier(), data(), ckpt_path=path)


def test_weights_of_a_checkpoint_remember_their_steps(tmp_path):
    saver = ModelCheckpoint(dirpath=tmp_path, save_last=True)
    trainer(dpvd.lightning.Private(3, DELTA), saver, folder=tmp_path).fit(Classifier(), data())
    module = Classifier.load_from_checkpoint(tmp_path / "last.ckpt")
    again = dpvd.lightning.Private(3, DELTA, epochs=1)
    trainer(again).fit(module, data())
    assert again.guarantee().steps == 9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"accumulate_grad_batches": 2}, "accumulate_grad_batches"),
        ({"gradient_clip_val": 1.0}, "clip_norm"),
        ({"precision": "bf16-mixed"}, "precision"),
        ({"limit_train_batches": 2}, "limit_train_batches"),
        ({"overfit_batches": 2}, "overfit_batches"),
        ({"max_epochs": -1}, "without an end"),
    ],
)
def test_options_that_would_void_the_account_are_refused(options, words):
    with pytest.raises(dpvd.DpvdError, match=words):
        trainer(dpvd.lightning.Private(3, DELTA), **options).fit(Classifier(), data())


@pytest.mark.parametrize("finder", [BatchSizeFinder, LearningRateFinder])
def test_a_search_on_the_training_data_is_refused(finder):
    private = dpvd.lightning.Private(3, DELTA)
    with pytest.raises(dpvd.DpvdError, match="outside the account"):
        trainer(private, finder()).fit(Tunable())
    assert private.step is None


def test_the_tuner_is_refused():
    private = dpvd.lightning.Private(3, DELTA)
    with pytest.raises(dpvd.DpvdError, match="outside the account"):
        Tuner(trainer(private)).lr_find(Tunable(), data(), num_training=3)


@pytest.mark.filterwarnings("ignore:SWA is currently only supported every epoch")
@pytest.mark.filterwarnings("ignore:Swapping scheduler")
@pytest.mark.parametrize(
    "average",
    [StochasticWeightAveraging(swa_lrs=0.1, swa_epoch_start=1), EMAWeightAveraging(decay=0.9)],
    ids=["stochastic", "exponential"],
)
def test_averages_of_weights_are_named_as_not_covered(average):
    private = dpvd.lightning.Private(3, DELTA)
    trainer(private, average).fit(Classifier(), data())
    assert private.guarantee().steps == 6
    assert "changes that other code made to the weights" in private.guarantee().sentence()


def test_several_devices_are_refused():
    private = dpvd.lightning.Private(3, DELTA)
    with pytest.raises(dpvd.DpvdError, match="2 devices"):
        private.setup(trainer(private, devices=2), Classifier(), "fit")


def test_several_trainers_of_one_device_are_refused(monkeypatch):
    private = dpvd.lightning.Private(3, DELTA)
    one = trainer(private)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(dpvd.DpvdError, match="2 devices"):
        private.setup(one, Classifier(), "fit")


class Rows(Classifier):
    def training_step(self, batch, batch_idx):
        (x,) = batch
        return self(x).square().sum(1)


def test_batches_of_one_entry_reach_the_module_as_they_are():
    private = dpvd.lightning.Private(3, DELTA)
    trainer(private, max_steps=1).fit(Rows(), DataLoader(TensorDataset(torch.randn(8, 4)), 4))
    assert private.step.taken == 1


def test_a_mean_over_the_batch_is_refused_and_costs_nothing():
    private = dpvd.lightning.Private(3, DELTA)
    with pytest.raises(dpvd.DpvdError, match=r"one number for the batch.*reduction='none'"):
        trainer(private).fit(Classifier(reduction="mean"), data())
    assert private.step.charged == 0


class ByHand(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class OwnStep(Classifier):
    def optimizer_step(self, *args: Any, **options: Any) -> None: ...


@pytest.mark.parametrize(("kind", "words"), [(ByHand, "by hand"), (OwnStep, "own optimizer_step")])
def test_modules_with_a_loop_of_their_own_are_refused(kind, words):
    with pytest.raises(dpvd.DpvdError, match=words):
        trainer(dpvd.lightning.Private(3, DELTA)).fit(kind(), data())


def test_data_that_the_plan_cannot_draw_from_are_refused():
    weighted = data(shuffle=False, sampler=WeightedRandomSampler([1.0] * 60, 60))
    with pytest.raises(dpvd.DpvdError, match="WeightedRandomSampler"):
        trainer(dpvd.lightning.Private(3, DELTA)).fit(Classifier(), weighted)
    with pytest.raises(dpvd.DpvdError, match="one torch DataLoader, got dict"):
        trainer(dpvd.lightning.Private(3, DELTA)).fit(Classifier(), {"a": data(), "b": data()})


def test_there_is_no_statement_before_a_fit():
    with pytest.raises(dpvd.DpvdError, match="nothing was trained yet"):
        dpvd.lightning.Private(3, DELTA).guarantee()
