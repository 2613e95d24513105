"""The Hugging Face trainer: what ran is what is stated, and nothing of training is logged."""

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import dpvd
from dpvd.transformers import PrivateTrainer

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

DELTA = 1e-3


def model() -> Any:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=8,
    )
    return BertForSequenceClassification(config)


def data() -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(20, (24, 5), generator=generator)
    return [{"input_ids": row, "labels": int(row[0]) % 2} for row in rows]


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    defaults: dict[str, Any] = {
        "per_device_train_batch_size": 8,
        "num_train_epochs": 2,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    return TrainingArguments(str(folder), **defaults | options)


def trainer(folder: Path, network: Any = None, own: dict[str, Any] | None = None, **options: Any):
    return PrivateTrainer(
        model() if network is None else network,
        arguments(folder, **options),
        train_dataset=data(),
        eval_dataset=data(),
        **{"epsilon": 3, "delta": DELTA} | (own or {}),
    )


def test_the_statement_is_of_what_ran_and_training_values_are_not_logged(tmp_path):
    memory = {"micro_batch": 7, "kept_mb": 8}
    private = trainer(tmp_path, eval_strategy="epoch", own=memory)
    before = private.model.classifier.weight.detach().clone()
    result = private.train()
    assert (private.step.micro_batch, private.step.kept_mb) == (7, 8)
    statement = private.guarantee()
    steps = private.state.global_step
    assert private.step.taken == private.step.charged == statement.steps == steps == 6
    (entry,) = private.step.state_dict()["account"]["entries"].values()
    assert [one["drawn"] for one in entry["seen"].values()] == [6]
    assert entry["not_covered"] == []
    assert statement.epsilon <= 3
    assert not torch.equal(private.model.classifier.weight, before)
    logged = {name for line in private.state.log_history for name in line}
    assert not logged & {"loss", "grad_norm", "train_loss", "total_flos"}
    assert {"epsilon", "learning_rate", "eval_loss"} <= logged
    last = [line["epsilon"] for line in private.state.log_history if "epsilon" in line][-1]
    assert last == pytest.approx(statement.epsilon)
    assert result.training_loss == 0
    assert private.state.total_flos == 0
    assert set(private.lr_scheduler.get_last_lr()) == {0.0}  # linear decay reached its end


def test_it_stops_at_the_budget_by_itself(tmp_path):
    private = trainer(tmp_path, num_train_epochs=3)
    private.train_dataset = data()[:20]  # 2.5 batches an epoch, which the trainer takes for 3
    private.train()
    assert private.step.taken == private.plan.steps == private.state.global_step == 8
    assert private.state.max_steps == 9


def test_adapters_of_peft_are_trained_and_nothing_else(tmp_path):
    config = peft.LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS")
    network = peft.get_peft_model(model(), config)
    frozen = {n: p.clone() for n, p in network.named_parameters() if not p.requires_grad}
    private = trainer(tmp_path, network, max_steps=2)
    private.train()
    assert private.step.taken == private.plan.steps == 2
    assert any("lora" in name for name in private.step.parameters)
    now = dict(network.named_parameters())
    assert all(torch.equal(now[name], value) for name, value in frozen.items())


def test_a_resumed_training_goes_on_counting(tmp_path):
    first = trainer(tmp_path, save_strategy="steps", save_steps=2)
    first.train()
    second = trainer(tmp_path)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert second.plan == first.plan
    assert second.step.charged == second.step.taken == second.state.global_step == 6
    changed = trainer(tmp_path, own={"epsilon": 30})
    with pytest.raises(dpvd.DpvdError, match="another plan, for ε = 3"):
        changed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    (tmp_path / "checkpoint-2" / "dpvd_account.json").unlink()
    with pytest.raises(dpvd.DpvdError, match="how many private steps"):
        trainer(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps"),
        ({"bf16": True}, "float32"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
    ],
)
def test_options_that_would_void_the_account_are_refused(tmp_path, options, words):
    with pytest.raises(dpvd.DpvdError, match=words):
        trainer(tmp_path, **options)


def test_losses_of_a_whole_batch_are_refused(tmp_path):
    class Own(PrivateTrainer):
        def compute_loss(self, model: nn.Module, inputs: Any, **options: Any) -> Any:
            return model(**inputs).loss

    with pytest.raises(dpvd.DpvdError, match="give loss_fn"):
        Own(model(), arguments(tmp_path), train_dataset=data(), epsilon=3, delta=DELTA)
    mean = trainer(tmp_path, own={"loss_fn": lambda model, batch: model(**batch).loss})
    with pytest.raises(dpvd.DpvdError, match="reduction='none'"):
        mean.train()
    assert mean.step.charged == 0
    assert issubclass(PrivateTrainer, Trainer)
