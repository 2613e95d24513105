"""Losses per example: for logits behind keywords, for tokens, for what is padding."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dpvd import losses
from dpvd.errors import DpvdError
from dpvd.grads import Clipping, clipped_grad


class Keywords(nn.Module):
    """Called as models of Hugging Face are."""

    def __init__(self, tokens: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11 if tokens else 3)
        self.tokens = tokens
        self.double()

    def forward(self, input_ids, attention_mask=None, labels=None):
        hidden = self.embedding(input_ids)
        if not self.tokens:
            mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
            hidden = (hidden * mask).sum(1)
        logits = self.head(hidden)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits.flatten(0, -2), labels.flatten())
        return SimpleNamespace(logits=logits, loss=loss)


def batch(tokens: bool = False) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(11, (5, 4), generator=generator)
    mask = torch.ones(5, 4, dtype=torch.long)
    mask[0, 2:] = 0
    labels = torch.randint(3, (5,), generator=generator)
    if tokens:
        labels = torch.where(mask == 0, losses.IGNORED, ids)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def test_logits_behind_keywords():
    model, examples = Keywords(), batch()
    expected = F.cross_entropy(
        model(examples["input_ids"], examples["attention_mask"]).logits,
        examples["labels"],
        reduction="none",
    )
    for loss_fn in (losses.cross_entropy, losses.from_logits()):
        torch.testing.assert_close(loss_fn(model, examples), expected)
        assert clipped_grad(model, loss_fn, examples, clipping=Clipping()).count == 5


def test_a_criterion_with_smoothing():
    model, examples = Keywords(), batch()
    smooth = nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)
    found = losses.from_logits(smooth)(model, examples)
    logits = model(examples["input_ids"], examples["attention_mask"]).logits
    torch.testing.assert_close(found, smooth(logits, examples["labels"]))


def test_a_criterion_that_reduces_is_refused():
    with pytest.raises(DpvdError, match="reduction='none'"):
        losses.from_logits(nn.CrossEntropyLoss())


def test_tokens_are_averaged_in_each_example():
    model, examples = Keywords(tokens=True), batch(tokens=True)
    loss_fn = losses.from_logits(losses.token_cross_entropy)
    found = loss_fn(model, examples)
    logits = model(examples["input_ids"]).logits
    for i in range(5):
        own = F.cross_entropy(logits[i], examples["labels"][i], ignore_index=losses.IGNORED)
        torch.testing.assert_close(found[i], own)
    assert clipped_grad(model, loss_fn, examples, clipping=Clipping()).count == 5


def test_tokens_predicted_from_those_before():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 7, generator=generator)
    ids = torch.randint(7, (2, 5), generator=generator)
    found = losses.token_cross_entropy(logits, ids, shift=True)
    for i in range(2):
        torch.testing.assert_close(found[i], F.cross_entropy(logits[i, :-1], ids[i, 1:]))


def test_an_example_without_tokens_has_no_loss():
    logits = torch.randn(1, 2, 3, requires_grad=True)
    labels = torch.full((1, 2), losses.IGNORED)
    loss = losses.token_cross_entropy(logits, labels)
    assert loss.item() == 0
    assert not torch.autograd.grad(loss.sum(), logits)[0].any()


def test_padding_that_is_not_finite_is_left_out():
    values = torch.tensor([[1.0, float("nan")]])
    assert losses.token_mean(values, torch.tensor([[True, False]])).item() == 1.0


def test_labels_for_models_that_want_them():
    seen = []

    class Watching(Keywords):
        def forward(self, **inputs):
            seen.append("labels" in inputs)
            return super().forward(**inputs)

    for with_labels in (False, True):
        losses.from_logits(with_labels=with_labels)(Watching(), batch())
    assert seen == [False, True]


class TestRefusals:
    def test_the_loss_of_a_model_is_a_mean(self):
        with pytest.raises(DpvdError, match=r"\.loss of a Hugging Face model.*from_logits"):
            clipped_grad(Keywords(), lambda m, b: m(**b).loss, batch(), clipping=Clipping())

    def test_the_output_of_a_model_is_no_loss(self):
        with pytest.raises(DpvdError, match=r"output of a model.*from_logits"):
            clipped_grad(Keywords(), lambda m, b: m(**b), batch(), clipping=Clipping())

    def test_no_labels(self):
        without = {key: value for key, value in batch().items() if key != "labels"}
        with pytest.raises(DpvdError, match="labels under 'labels'"):
            losses.cross_entropy(Keywords(), without)

    def test_three_entries(self):
        with pytest.raises(DpvdError, match="got 3 entries"):
            losses.cross_entropy(Keywords(), 1, 2, 3)

    def test_tokens_without_a_criterion_for_them(self):
        with pytest.raises(DpvdError, match="token_cross_entropy"):
            losses.cross_entropy(Keywords(tokens=True), batch(tokens=True))

    def test_no_logits(self):
        model = nn.Identity()
        with pytest.raises(DpvdError, match="without logits"):
            losses.cross_entropy(model, (1, 2), torch.zeros(1))
