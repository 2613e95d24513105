"""The plan's draws through a DataLoader: the same draws, whatever reads them."""

import logging
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

import dpvd
from dpvd.errors import DpvdError
from dpvd.mechanisms import DrawnBatch, carry, draw_of
from dpvd.plan import PrivacyPlan

EXAMPLES = 60
PLAN = PrivacyPlan(EXAMPLES, 12, epochs=3, noise_multiplier=2.0)
SEEDED = replace(PLAN, noise="seeded", seed=7)
RARE = PrivacyPlan(EXAMPLES, 1, steps=30, noise_multiplier=2.0)  # a third of the draws is empty


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Rows that tell their number."""
    numbers = torch.arange(EXAMPLES)
    return numbers[:, None] * torch.ones(4), numbers % 3


class Rows(Dataset):
    def __init__(self) -> None:
        self.x, self.y = data()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "labels": int(self.y[i])}


class Ragged(Dataset):
    """Sequences of different lengths."""

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, i):
        return torch.full((1 + i % 5,), float(i)), i % 3


def padded(examples):
    sequences, labels = zip(*examples, strict=True)
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    return {
        "x": pad_sequence(sequences, batch_first=True),
        "lengths": lengths,
        "labels": torch.tensor(labels),
    }


def loss_of_rows(model, batch):
    return nn.functional.cross_entropy(model(batch["x"]), batch["labels"], reduction="none")


def make_step(plan=PLAN, loss_fn=loss_of_rows, **options):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return dpvd.PrivateStep(model, loss_fn, plan, optimizer, **options)


def numbers_in(batch) -> list[int]:
    x = batch["x"] if isinstance(batch, dict) else batch[0]
    return x[:, 0].long().tolist()


def draws_of(plan) -> list[list[int]]:
    return [numbers_in(batch) for batch in plan.batches(data())]


class TestDraws:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_they_are_those_of_the_plan_in_order(self, workers):
        loader = SEEDED.loader(Rows(), num_workers=workers, persistent_workers=workers > 0)
        assert isinstance(loader, DataLoader)
        found = []
        for _ in range(3):
            assert len(loader) == 5
            for batch in loader:
                draw = draw_of(batch)
                assert (draw.step, draw.plan) == (len(found), SEEDED.fingerprint)
                assert draw.size == len(batch["labels"])
                found.append(numbers_in(batch))
        assert found == draws_of(SEEDED)
        assert loader.position == SEEDED.steps

    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_pass_that_was_left_early_goes_on(self, workers):
        """What workers had read ahead is drawn again."""
        loader = SEEDED.loader(Rows(), num_workers=workers)
        found = []
        for batch in loader:
            found.append(numbers_in(batch))
            if len(found) == 2:
                break
        for _ in range(3):
            found += [numbers_in(batch) for batch in loader]
        assert found == draws_of(SEEDED)

    def test_a_run_goes_on_where_it_stopped(self):
        loader = SEEDED.loader(Rows(), start=7)
        found = [numbers_in(batch) for _ in range(2) for batch in loader]
        assert found == draws_of(SEEDED)[7:]

    def test_secret_draws_are_not_repeated(self):
        loader = PLAN.loader(Rows())
        passes = [[numbers_in(batch) for batch in loader] for _ in range(3)]
        assert passes[0] != passes[1] != passes[2]
        assert [numbers_in(batch) for batch in PLAN.loader(Rows())] != passes[0]

    def test_all_epochs_are_all_steps(self):
        plan = PrivacyPlan(100, 30, epochs=4, noise_multiplier=1.0)  # 3.3 batches a pass
        loader = plan.loader(list(range(100)))
        lengths = [sum(1 for _ in loader) for _ in range(4)]
        assert lengths == [4, 3, 3, 4]
        assert sum(lengths) == plan.steps

    def test_after_the_last_step_there_is_nothing(self, caplog):
        loader = PLAN.loader(Rows())
        for _ in range(3):
            list(loader)
        with caplog.at_level(logging.WARNING):
            assert list(loader) == []
        assert "15 steps have all been drawn" in caplog.text

    def test_fixed_size(self):
        plan = replace(PLAN, sampling="fixed-size", relation="replace-one")
        assert {len(batch["labels"]) for batch in plan.loader(Rows())} == {12}

    @pytest.mark.parametrize("start", [-1, 16, True, "1"])
    def test_a_start_outside_the_plan_is_refused(self, start):
        with pytest.raises(DpvdError, match="start must be a whole number"):
            PLAN.loader(Rows(), start=start)


class TestTraining:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_dictionaries(self, workers):
        step = make_step()
        loader = PLAN.loader(Rows(), num_workers=workers)
        for _ in range(3):
            for batch in loader:
                step(batch)
        assert step.taken == step.charged == 15
        assert "every batch drawn by the plan's sampler" in step.guarantee(1e-5).sentence()

    def test_tuples_of_a_criterion(self):
        step = make_step(loss_fn=nn.CrossEntropyLoss(reduction="none"))
        for batch in PLAN.loader(TensorDataset(*data())):
            assert isinstance(batch, DrawnBatch)
            x, y = batch
            step((x, y))
        assert step.taken == 5

    def test_ragged_sequences(self):
        model = nn.Embedding(EXAMPLES, 3)

        def loss_fn(model, batch):
            mask = torch.arange(batch["x"].shape[1]) < batch["lengths"][:, None]
            scores = (model(batch["x"].long()) * mask[..., None]).sum(1)
            return nn.functional.cross_entropy(scores, batch["labels"], reduction="none")

        step = dpvd.PrivateStep(model, loss_fn, PLAN, torch.optim.SGD(model.parameters(), 0.1))
        for batch in PLAN.loader(Ragged(), collate_fn=padded):
            step(batch)
        assert step.taken == 5

    def test_without_noise_too(self):
        plan = PLAN.calibrate(float("inf"), 1e-5)
        step = make_step(plan)
        for batch in plan.loader(Rows()):
            step(batch)
        assert step.taken == 5


class TestEmptyDraws:
    @pytest.mark.parametrize("workers", [0, 1])
    def test_they_are_batches_without_rows_and_steps_like_any_other(self, workers):
        step = make_step(RARE)
        loader = RARE.loader(Rows(), num_workers=workers)
        sizes = []
        for batch in loader:
            assert list(batch) == ["x", "labels"]
            assert batch["x"].shape[1:] == (4,)
            assert batch["labels"].dtype is torch.int64
            sizes.append(len(batch["labels"]))
            before = step.model.weight.detach().clone()
            step(batch)
            assert not torch.equal(step.model.weight, before)  # noise, whatever was drawn
        assert 0 in sizes
        assert step.charged == len(sizes) == 30

    def test_no_value_of_an_example_is_in_them(self):
        empty, _ = RARE.loader(Ragged(), collate_fn=padded).collate_fn([])
        assert [tensor.numel() for tensor in empty.values()] == [0, 0, 0]
        for batch in RARE.loader(Ragged(), collate_fn=padded):
            if draw_of(batch).size == 0:
                assert [tensor.numel() for tensor in batch.values()] == [0, 0, 0]

    def test_columns_have_them_of_their_own(self):
        shapes = {tuple(batch[0].shape[1:]) for batch in RARE.loader(data())}
        assert shapes == {(4,)}


class TestData:
    def test_arrays_and_memory_maps(self, tmp_path):
        x, y = (tensor.numpy() for tensor in data())
        path = tmp_path / "x.npy"
        np.save(path, x)
        mapped = np.load(path, mmap_mode="r")
        for columns in ((x, y), (mapped, y), {"x": mapped, "labels": y}):
            found = [numbers_in(batch) for batch in SEEDED.loader(columns)]
            assert found == draws_of(SEEDED)[:5]
            assert [numbers_in(batch) for batch in SEEDED.batches(columns)] == draws_of(SEEDED)

    def test_arrays_of_other_byte_order(self):
        x, y = (tensor.numpy() for tensor in data())
        swapped = x.astype(x.dtype.newbyteorder())
        assert [numbers_in(batch) for batch in SEEDED.batches((swapped, y))] == draws_of(SEEDED)

    def test_columns_with_a_collate_function(self):
        def halved(examples):
            x, y = default_collate(examples)
            return x / 2, y

        (first, *_) = SEEDED.loader(data(), collate_fn=halved)
        assert (2 * first[0][:, 0]).long().tolist() == draws_of(SEEDED)[0]

    def test_columns_in_a_dataclass(self):
        @dataclass
        class Table:
            x: torch.Tensor
            y: torch.Tensor

        (first, *_) = SEEDED.loader(Table(*data()))
        assert isinstance(first, Table)
        assert numbers_in((first.x,)) == draws_of(SEEDED)[0]

    def test_hugging_face_datasets(self):
        datasets = pytest.importorskip("datasets")
        x, y = data()
        dataset = datasets.Dataset.from_dict({"x": x.tolist(), "labels": y.tolist()})
        plan = replace(SEEDED, batch_size=1, steps=20)
        found = [numbers_in(batch) for batch in plan.loader(dataset.with_format("torch"))]
        assert found == draws_of(plan)
        assert [] in found

    def test_a_list_of_examples(self):
        x, y = data()
        examples = [{"x": a, "labels": b} for a, b in zip(x, y, strict=True)]
        assert [numbers_in(b) for b in SEEDED.loader(examples)] == draws_of(SEEDED)[:5]

    def test_data_of_another_length_are_refused(self):
        with pytest.raises(DpvdError, match="the plan is for 60 examples, the data have 59"):
            PLAN.loader(list(range(59)))

    def test_data_that_grow_are_refused(self):
        examples = list(range(EXAMPLES))
        loader = PLAN.loader(examples)
        list(loader)
        examples.append(0)
        with pytest.raises(DpvdError, match="the data have 61"):
            list(loader)

    def test_what_has_no_examples_by_number_is_refused(self):
        class Stream(IterableDataset):
            def __iter__(self):
                return iter(range(EXAMPLES))

        for stream in (Stream(), iter(range(EXAMPLES)), {1, 2}, "words", 3, None):
            with pytest.raises(DpvdError, match="cannot be asked for an example by its number"):
                PLAN.loader(stream)

    def test_a_stream_of_hugging_face_is_refused(self):
        datasets = pytest.importorskip("datasets")
        dataset = datasets.Dataset.from_dict({"x": list(range(EXAMPLES))})
        with pytest.raises(DpvdError, match="cannot be asked for an example by its number"):
            PLAN.loader(dataset.to_iterable_dataset())
        with pytest.raises(DpvdError, match=r"data\['train'\] is of type Dataset"):
            PLAN.loader(datasets.DatasetDict({"train": dataset}))

    def test_a_loader_is_refused(self):
        with pytest.raises(DpvdError, match=r"plan.loader\(loader.dataset"):
            PLAN.loader(DataLoader(Rows(), shuffle=True))
        with pytest.raises(DpvdError, match="give a Dataset, or a list of examples, to plan"):
            PLAN.batches(DataLoader(Rows(), shuffle=True))

    def test_frames_are_refused(self):
        columns = {"a": range(EXAMPLES)}
        for frame in (pd.DataFrame(columns), pl.DataFrame(columns)):
            with pytest.raises(DpvdError, match="columns by name"):
                PLAN.loader(frame)

    def test_words_in_arrays_are_refused(self):
        with pytest.raises(DpvdError, match="array of type <U1"):
            PLAN.loader(np.array(["a"] * EXAMPLES))


class TestCollation:
    def test_a_row_for_each_example(self):
        def drops_one(examples):
            return default_collate(examples[1:])

        def time_first(examples):
            return pad_sequence([sequence for sequence, _ in examples])

        for dataset, collate in ((Rows(), drops_one), (Ragged(), time_first)):
            plan = replace(PLAN, batch_size=30, steps=1)
            with pytest.raises(DpvdError, match="must make one row of each example"):
                list(plan.loader(dataset, collate_fn=collate))

    def test_words_are_refused_before_the_first_step(self):
        def with_text(examples):
            return {"x": torch.zeros(len(examples), 4), "text": ["word"] * len(examples)}

        plan = replace(PLAN, batch_size=30, steps=1)
        with pytest.raises(DpvdError, match=r"batch\['text'\] is a list of str"):
            list(plan.loader(Rows(), collate_fn=with_text))

    def test_what_workers_refuse_is_said_here(self):
        def no_batch(examples):
            return "words"

        with pytest.raises(DpvdError, match="a batch must be a tensor"):
            list(RARE.loader(Rows(), collate_fn=no_batch, num_workers=1))


class TestRecognition:
    """Moved to another device tensors are new ones: their values tell what they are."""

    def test_moved_batches_are_recognised(self):
        step = make_step()
        batches = iter(PLAN.loader(Rows()))
        step({key: value.clone() for key, value in next(batches).items()})
        batch = next(batches)
        labels = batch.pop("labels").clone()
        step({"labels": labels, "x": batch["x"].clone()})
        assert step.taken == 2

    def test_tuples_too_and_other_types(self):
        step = make_step(loss_fn=nn.CrossEntropyLoss(reduction="none"))
        batches = PLAN.batches(data())
        x, y = next(batches)
        step((x.clone(), y.clone()))
        x, y = next(batches)
        step((x.double().float(), y.to(torch.int32).long()))
        step(next(batches).to("cpu"))
        assert step.taken == 3

    def test_containers_made_by_other_libraries_are_tuples(self):
        step = make_step(loss_fn=nn.CrossEntropyLoss(reduction="none"))
        for batch in PLAN.loader(data()):
            copy = type(batch)(tensor.clone() for tensor in batch)
            assert type(copy) is tuple
            step(copy)
        assert step.taken == 5

    @pytest.mark.parametrize(
        "change",
        [
            lambda b: b | {"x": b["x"].clone() / 2},
            lambda b: b | {"x": b["x"].flip(0)},
            lambda b: b | {"more": torch.zeros(len(b["x"]))},
            lambda b: {key: value[1:].clone() for key, value in b.items()},
        ],
    )
    def test_other_values_are_not(self, change):
        step = make_step(replace(PLAN, batch_size=30, steps=5))
        batches = iter(step.plan.loader(Rows()))  # kept: only then its last batch is remembered
        batch = next(batches)
        with pytest.raises(DpvdError, match="not drawn by"):
            step(change(batch))
        assert step.charged == 0

    def test_a_copy_of_what_was_written_to_is_not(self):
        step = make_step()
        batches = iter(PLAN.loader(Rows()))
        batch = next(batches)
        batch["x"] -= batch["x"].mean(0)
        with pytest.raises(DpvdError, match="written to in place"):
            step(batch)
        with pytest.raises(DpvdError, match="not drawn by"):
            step({key: value.clone() for key, value in batch.items()})

    def test_a_copy_is_used_once(self):
        step = make_step()
        batches = iter(PLAN.loader(Rows()))
        batch = next(batches)
        copy = {key: value.clone() for key, value in batch.items()}
        step(copy)
        with pytest.raises(DpvdError, match="not drawn by"):
            step(copy)
        next(batches)
        with pytest.raises(DpvdError, match="not drawn by"):
            step(copy)

    def test_a_replaced_entry_is_seen(self):
        step = make_step()
        batches = iter(PLAN.loader(Rows()))
        batch = next(batches)
        batch["x"] = batch["x"] + batch["x"].mean(0)
        with pytest.raises(DpvdError, match="not drawn by"):
            step(batch)

    def test_what_was_made_of_a_dictionary_may_be_carried(self):
        step = make_step()
        batch = next(iter(PLAN.loader(Rows())))
        step(carry(batch, {"x": batch["x"] / 2, "labels": batch["labels"]}))
        assert step.taken == 1

    def test_only_draws_can_be_carried(self):
        with pytest.raises(DpvdError, match="has no draw"):
            carry({"x": torch.zeros(2)}, {"x": torch.zeros(2)})
        batch = next(iter(PLAN.loader(Rows())))
        with pytest.raises(DpvdError, match="carry the same examples"):
            carry(batch, {"x": torch.zeros(61)})
