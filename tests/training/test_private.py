"""make_private: the loader and the step of an existing loop in one line."""

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import dpvd
from dpvd.errors import DpvdError

EXAMPLES = 60
DATA = TensorDataset(torch.randn(EXAMPLES, 4), torch.randint(3, (EXAMPLES,)))


def private(data, **options):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    settings = {"epsilon": 2.0, "delta": 1e-3, "epochs": 3, "clip_norm": 0.5} | options
    return dpvd.make_private(model, optimizer, data, **settings)


def train(loader, step, epochs=3):
    for _ in range(epochs):
        for batch in loader:
            step(batch)


def collate(examples):
    x, y = zip(*examples, strict=True)
    return {"x": torch.stack(x), "labels": torch.stack(y)}


class TestALoader:
    @pytest.mark.parametrize("shuffle", [True, False])
    def test_is_read_as_before_and_drawn_anew(self, shuffle):
        loader, step = private(DataLoader(DATA, batch_size=12, shuffle=shuffle, drop_last=True))
        assert loader.dataset is DATA
        assert (step.plan.batch_size, step.plan.examples, step.plan.steps) == (12, EXAMPLES, 15)
        assert step.plan.clipping == dpvd.Clipping("flat", clip_norm=0.5)
        train(loader, step)
        guarantee = step.guarantee(1e-3)
        assert 1.99 < guarantee.epsilon <= 2.0
        assert guarantee.steps == 15

    def test_keeps_its_collate_function_and_workers(self):
        source = DataLoader(
            DATA, 12, collate_fn=collate, num_workers=1, prefetch_factor=3, persistent_workers=True
        )
        loader, step = private(
            source,
            loss_fn=lambda m, b: nn.functional.cross_entropy(
                m(b["x"]), b["labels"], reduction="none"
            ),
        )
        assert (loader.num_workers, loader.prefetch_factor) == (1, 3)
        assert loader.persistent_workers
        train(loader, step, epochs=1)
        assert step.taken == 5

    def test_another_batch_size_may_be_asked_for(self):
        _, step = private(DataLoader(DATA, batch_size=12), batch_size=20)
        assert step.plan.batch_size == 20


class TestADataSet:
    def test_needs_a_batch_size(self):
        with pytest.raises(DpvdError, match="give batch_size"):
            private(DATA)

    def test_is_enough_otherwise(self):
        loader, step = private(
            DATA,
            batch_size=12,
            loss_fn=nn.CrossEntropyLoss(reduction="none"),
            micro_batch=4,
            kept_mb=2,
        )
        train(loader, step)
        assert step.taken == 15
        assert step.micro_batch == 4
        assert step.kept_mb == 2

    def test_may_be_tensors(self):
        loader, step = private(DATA.tensors, batch_size=12)
        train(loader, step)
        assert step.taken == 15


SAMPLERS = {
    "weights": lambda: DataLoader(DATA, 12, sampler=WeightedRandomSampler(torch.ones(60), 60)),
    "subset": lambda: DataLoader(DATA, 12, sampler=SubsetRandomSampler(range(30))),
    "replacement": lambda: DataLoader(DATA, 12, sampler=RandomSampler(DATA, replacement=True)),
    "some": lambda: DataLoader(DATA, 12, sampler=RandomSampler(DATA, num_samples=30)),
}


class TestRefusals:
    @pytest.mark.parametrize("name", SAMPLERS)
    def test_samplers_that_prefer_some_examples(self, name):
        with pytest.raises(DpvdError, match="with the same probability"):
            private(SAMPLERS[name]())

    def test_a_share_of_the_data(self):
        sampler = DistributedSampler(DATA, num_replicas=2, rank=0)
        with pytest.raises(DpvdError, match="train in one process"):
            private(DataLoader(DATA, 12, sampler=sampler))

    def test_a_batch_sampler_of_its_own(self):
        batches = BatchSampler(SequentialSampler(DATA), 12, drop_last=False)
        with pytest.raises(DpvdError, match="batch sampler of its own"):
            private(DataLoader(DATA, batch_sampler=batches))

    def test_a_loader_that_has_a_plan(self):
        loader, _ = private(DATA, batch_size=12)
        with pytest.raises(DpvdError, match="has a plan already"):
            private(loader)

    def test_a_criterion_that_reduces(self):
        with pytest.raises(DpvdError, match="reduction='none'"):
            private(DATA, batch_size=12, loss_fn=nn.CrossEntropyLoss())

    def test_a_step_beyond_the_plan(self):
        loader, step = private(DATA, batch_size=12)
        train(loader, step, epochs=5)  # the loader has no batch in the fourth
        assert step.taken == 15
        with pytest.raises(DpvdError, match="15 steps are used up"):
            step(DATA.tensors)
