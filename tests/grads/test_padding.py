"""Examples are padded to the longest of their batch: no model may notice by how much."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification

import dpvd
from dpvd.grads import Padding, as_batch, rows
from dpvd.losses import cross_entropy, from_logits, token_cross_entropy

EXAMPLES = [(torch.arange(1, 3 + i * 7 % 9), i % 2) for i in range(60)]


def collate(examples: list[Any], longest: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    words = [row for row, _ in examples]
    lengths = torch.tensor([len(row) for row in words])
    padded = pad_sequence(words, batch_first=True)
    if longest is not None:
        padded = nn.functional.pad(padded, (0, longest - padded.shape[1]))
    return padded, lengths, torch.tensor([label for _, label in examples])


def text(examples: list[Any], left: bool = False, masked: bool = True) -> dict[str, Tensor]:
    words, lengths, labels = collate(examples)
    mask = (torch.arange(words.shape[1]) < lengths[:, None]).long()
    if left:
        words, mask = (
            torch.stack([torch.roll(row, int(mask[i].sum()) * -1) for i, row in enumerate(both)])
            for both in (words, mask)
        )
    batch = {"input_ids": words, "labels": labels}
    return batch | {"attention_mask": mask} if masked else batch


def random_words(examples: list[Any]) -> dict[str, Tensor]:
    """As a collator for language models does: some words are hidden, at random."""
    batch = text(examples)
    hidden = (torch.rand(batch["input_ids"].shape) < 0.3) & (batch["attention_mask"] > 0)
    labels = torch.where(hidden, batch["input_ids"], -100)
    return batch | {"labels": labels, "input_ids": torch.where(hidden, 12, batch["input_ids"])}


class Reader(nn.Module):
    """Reads words by an LSTM, and tells by its state at the last word, or at the last position."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 4)
        self.lstm = nn.LSTM(4, 4, batch_first=True)
        self.head = nn.Linear(4, 2)
        self.masked = masked

    def forward(self, words, lengths):
        states, _ = self.lstm(self.words(words))
        if self.masked:
            return self.head(states[torch.arange(len(states)), lengths - 1])
        return self.head(states[:, -1])


def bert(kind: Any = BertForSequenceClassification, positions: int = 200) -> Any:
    config = BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=positions,
        initializer_range=0.2,
    )
    return kind(config).train()


def train(model: nn.Module, loss_fn: Any, collate_fn: Any, **options: Any) -> dpvd.PrivateStep:
    plan = dpvd.PrivacyPlan(examples=60, batch_size=20, epochs=1).calibrate(3, 1e-3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = dpvd.PrivateStep(model, loss_fn, plan, optimizer, **options)
    for batch in plan.loader(EXAMPLES, collate_fn=collate_fn):
        step(batch)
    return step


CRITERION = nn.CrossEntropyLoss(reduction="none")


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("isolation", ["checked", "vmap"])
def test_a_model_that_looks_at_padding_is_refused(isolation):
    with pytest.raises(dpvd.DpvdError, match="padded to a greater length"):
        train(Reader(masked=False), CRITERION, collate, isolation=isolation)
    step = train(Reader(masked=True), CRITERION, collate, isolation=isolation)
    assert step.taken == 3
    fixed = partial(collate, longest=20)
    assert train(Reader(masked=False), CRITERION, fixed, isolation=isolation).taken == 3


def test_masks_of_transformers():
    assert train(bert(), cross_entropy, text).taken == 3
    by_token = from_logits(token_cross_entropy)
    assert train(bert(BertForMaskedLM), by_token, random_words).taken == 3
    with pytest.raises(dpvd.DpvdError, match="padded to a greater length"):
        train(bert(), cross_entropy, partial(text, masked=False))


def test_a_model_that_takes_nothing_longer_is_taken_with_a_warning(caplog):
    assert train(bert(positions=10), cross_entropy, text).taken == 3
    assert "whether the model looks at padding cannot be tried out" in caplog.text


@pytest.mark.parametrize("left", [False, True])
def test_padding_is_learnt_from_a_longer_neighbour(left):
    short, long = (torch.tensor([1, 2]), 0), (torch.tensor([3, 4, 5]), 1)
    alone = as_batch(text([short], left))
    both = as_batch(text([short, long], left))
    found = Padding.between(alone, rows(both, slice(0, 1)))
    assert found is not None
    longer = found.on(alone, times=2).packed()
    expected = [0, 0, 1, 2] if left else [1, 2, 0, 0]
    assert longer["input_ids"].tolist() == [expected]
    assert longer["attention_mask"].tolist() == [[int(word > 0) for word in expected]]
    assert longer["labels"].tolist() == [0]
    assert found.fits(both)
    assert not found.fits(as_batch(collate([short])))


def test_what_is_no_padding_is_not_taken_for_it():
    alone = as_batch(torch.tensor([[1, 2]]))
    for beside in ([[1, 2, 3, 4]], [[5, 6, 0, 0]], [[1]]):
        assert Padding.between(alone, as_batch(torch.tensor(beside))) is None


def test_collating_some_examples_alone_leaves_random_streams_as_they_were():
    def draws(collate_fn: Any) -> list[Tensor]:
        torch.manual_seed(0)
        plan = dpvd.PrivacyPlan(
            examples=60, batch_size=20, steps=2, noise="seeded", seed=1, noise_multiplier=1.0
        )
        return [batch["labels"] for batch in plan.loader(EXAMPLES, collate_fn=collate_fn)]

    class Once:
        """Refuses single examples, so that nothing can be tried."""

        def __call__(self, examples: list[Any]) -> Any:
            if len(examples) == 1:
                raise ValueError("one is not enough")
            return random_words(examples)

    tried = draws(random_words)
    untried = draws(Once())
    assert all(map(torch.equal, tried, untried))
