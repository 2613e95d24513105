"""The accelerator: what ran is what is stated, and nothing of training reaches a tracker."""

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from accelerate import debug_launcher
from accelerate.state import AcceleratorState
from accelerate.tracking import GeneralTracker, on_main_process
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler
from transformers import GPT2Config, GPT2ForSequenceClassification, default_data_collator

import dpvd
from dpvd.accelerate import PrivateAccelerator

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

DELTA = 1e-3


@pytest.fixture(autouse=True)
def _fresh_state():
    """Accelerate keeps the options of its first accelerator for all that follow."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


class Memory(GeneralTracker):
    """A tracker that keeps what it is given."""

    name = "memory"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, Any]] = []

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **options: Any) -> None:
        self.seen.append(values)

    @property
    def tracker(self) -> None:
        return None

    def store_init_configuration(self, values: dict[str, Any]) -> None: ...


def accelerator(**options: Any) -> PrivateAccelerator:
    defaults: dict[str, Any] = {"epsilon": 3, "delta": DELTA, "epochs": 2, "cpu": True}
    return PrivateAccelerator(**defaults | options)


def data(**options: Any) -> DataLoader[Any]:
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    dataset = TensorDataset(x, x.argmax(1).clamp_max(2))
    return DataLoader(dataset, **{"batch_size": 20, "shuffle": True} | options)


def prepared(**options: Any) -> tuple[Any, ...]:
    private = accelerator(**options)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    return private, *private.prepare_private(model, optimizer, data(), scheduler)


def train(private: Any, loader: Any, scheduler: Any, passes: int = 2) -> None:
    for _ in range(passes):
        for batch in loader:
            private.private_step(batch)
            scheduler.step()


def test_the_statement_is_of_what_ran_and_trackers_get_no_training_values(caplog):
    tracker = Memory()
    private, model, _, loader, scheduler = prepared(log_with=tracker)
    private.init_trackers("private")
    before = model.weight.detach().clone()
    train(private, loader, scheduler)
    private.log({"loss": 1.0, "grad_norm": 2.0, "eval_accuracy": 0.5, "lr": 0.1}, step=6)
    statement = private.guarantee()
    step = private.private
    assert step.taken == step.charged == statement.steps == private.plan.steps == 6
    (entry,) = step.state_dict()["account"]["entries"].values()
    assert [one["drawn"] for one in entry["seen"].values()] == [6]
    assert entry["not_covered"] == []
    assert statement.epsilon <= 3
    assert not torch.equal(model.weight, before)
    assert scheduler.get_last_lr() == [pytest.approx(0.5**6)]
    assert tracker.seen == [{"eval_accuracy": 0.5, "lr": 0.1, "epsilon": statement.epsilon}]
    assert "'loss' is not logged" in caplog.text
    assert "'grad_norm' is not logged" in caplog.text


def test_it_stops_at_the_budget_by_itself():
    private, _, _, loader, scheduler = prepared(epochs=1.5, micro_batch=7, kept_mb=8)
    train(private, loader, scheduler, passes=10)
    assert private.private.taken == private.plan.steps == 5
    assert (private.private.micro_batch, private.private.kept_mb) == (7, 8)


def test_a_loaded_state_goes_on_counting(tmp_path):
    first, _, _, loader, scheduler = prepared()
    for number, batch in enumerate(loader):
        first.private_step(batch)
        scheduler.step()
        if number == 1:
            first.save_state(str(tmp_path))
    second, _, _, loader, scheduler = prepared()
    second.load_state(str(tmp_path))
    assert second.private.position == 2
    assert scheduler.get_last_lr() == [0.25]
    train(second, loader, scheduler, passes=3)
    assert second.private.taken == second.guarantee().steps == 6
    assert "Not covered" not in second.guarantee().sentence()
    changed, *_ = prepared(epsilon=30)
    with pytest.raises(dpvd.DpvdError, match="another plan, for ε = 3"):
        changed.load_state(str(tmp_path))
    (tmp_path / "dpvd_account.json").unlink()
    third, model, *_ = prepared()
    before = model.weight.detach().clone()
    with pytest.raises(dpvd.DpvdError, match="how many private steps"):
        third.load_state(str(tmp_path))
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_adapters_of_peft_are_trained_and_nothing_else(precision):
    config = GPT2Config(vocab_size=20, n_positions=6, n_embd=8, n_layer=1, n_head=2, pad_token_id=0)
    lora = peft.LoraConfig(r=2, target_modules=["c_attn"], task_type="SEQ_CLS", fan_in_fan_out=True)
    model = peft.get_peft_model(GPT2ForSequenceClassification(config), lora)
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    rows = torch.randint(1, 20, (24, 5), generator=torch.Generator().manual_seed(0))
    texts = [{"input_ids": row, "labels": int(row[0]) % 2} for row in rows]
    loader = DataLoader(texts, batch_size=8, collate_fn=default_data_collator)  # type: ignore[arg-type]
    private = accelerator(epochs=1, mixed_precision=precision)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    model, _, loader = private.prepare_private(model, optimizer, loader)
    for batch in loader:
        private.private_step(batch)
    assert private.guarantee().steps == private.private.taken == 3
    now = dict(model.named_parameters())
    assert all(torch.equal(now[name], value) for name, value in frozen.items())
    assert all(p.dtype is torch.float32 for p in private.private.parameters.values())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps"),
        ({"mixed_precision": "fp16"}, "take 'bf16' or 'no'"),
        ({"dynamo_backend": "eager"}, "run eagerly"),
        ({"epsilon": 0}, "epsilon must be"),
    ],
)
def test_options_that_would_void_the_account_are_refused(options, words):
    with pytest.raises(dpvd.DpvdError, match=words):
        accelerator(**options)


def test_an_ordinary_loop_is_refused():
    private, model, _, loader, _ = prepared()
    x, y = next(iter(loader))
    with pytest.raises(dpvd.DpvdError, match=r"private_step\(batch\) in place of backward"):
        private.backward(nn.functional.cross_entropy(model(x), y))
    with pytest.raises(dpvd.DpvdError, match="bounds no example"):
        private.clip_grad_norm_(model.parameters(), 1.0)
    with pytest.raises(dpvd.DpvdError, match="one private training"):
        private.prepare_private(model, torch.optim.SGD(model.parameters(), lr=1.0), data())
    with pytest.raises(dpvd.DpvdError, match="prepare_private first"):
        accelerator().private_step((x, y))


def test_data_that_the_plan_cannot_draw_from_are_refused():
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    weighted = data(shuffle=False, sampler=WeightedRandomSampler([1.0] * 60, 60))
    with pytest.raises(dpvd.DpvdError, match="WeightedRandomSampler"):
        accelerator().prepare_private(model, optimizer, weighted)
    with pytest.raises(dpvd.DpvdError, match="a DataLoader, got TensorDataset"):
        accelerator().prepare_private(model, optimizer, data().dataset)


def _in_one_of_two(folder: str) -> None:
    try:
        accelerator()
    except dpvd.DpvdError as refusal:
        rank = torch.distributed.get_rank()
        (Path(folder) / str(rank)).write_text(str(refusal))


def test_several_processes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # Accelerate warns where it must choose a number
    debug_launcher(_in_one_of_two, (str(tmp_path),), num_processes=2)
    words = [(tmp_path / rank).read_text() for rank in ("0", "1")]
    assert words[0] == words[1]
    assert words[0].startswith("2 processes: each would train on the whole budget")
