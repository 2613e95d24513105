"""Collators of transformers behind the plan's loader, with a tokenizer made up here."""

from typing import Any

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
)

import dpvd
from dpvd.losses import cross_entropy, from_logits, token_cross_entropy

EXAMPLES = 40
SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
WORDS = ["a", "bee", "sees", "the", "sea", "and", "flies"]
VOCABULARY = {word: i for i, word in enumerate([*SPECIAL.values(), *WORDS])}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    inner = Tokenizer(WordLevel(VOCABULARY, unk_token="[UNK]"))
    inner.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, **SPECIAL)


def sentences(tokenizer: Any, by_token: bool = False) -> Dataset:
    """Of one to seven words; the rows are lists, as datasets of Hugging Face hold them."""
    texts = [" ".join(WORDS[: 1 + i % len(WORDS)]) for i in range(EXAMPLES)]
    encoded = tokenizer(texts, return_token_type_ids=False)
    ids = encoded["input_ids"]
    labels = [[word % 2 for word in row] if by_token else len(row) % 2 for row in ids]
    return Dataset.from_dict({**encoded, "labels": labels})


def bert(kind: Any) -> Any:
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    return kind(config).train()


BY_TOKEN = from_logits(token_cross_entropy)
KINDS = {
    "classes": (BertForSequenceClassification, DataCollatorWithPadding, cross_entropy),
    "tokens": (BertForTokenClassification, DataCollatorForTokenClassification, BY_TOKEN),
    "hidden words": (BertForMaskedLM, DataCollatorForLanguageModeling, BY_TOKEN),
}


def train(model: Any, dataset: Any, collator: Any, loss_fn: Any) -> tuple[Any, list[Any]]:
    # Some of these draws are empty, and some hold one sentence.
    plan = dpvd.PrivacyPlan(
        examples=EXAMPLES, batch_size=2, steps=16, noise_multiplier=1.0, noise="seeded", seed=7
    )
    step = dpvd.PrivateStep(model, loss_fn, plan, torch.optim.SGD(model.parameters(), lr=0.1))
    seen = []
    for batch in plan.loader(dataset, collate_fn=collator):
        seen.append({name: tuple(tensor.shape) for name, tensor in batch.items()})
        step(batch)
    return step, seen


@pytest.mark.parametrize("kind", KINDS)
def test_a_collator_of_transformers_pads_the_draws(kind, tokenizer, caplog):
    make, collator, loss_fn = KINDS[kind]
    dataset = sentences(tokenizer, by_token=kind == "tokens")
    if kind == "hidden words":
        dataset = dataset.remove_columns("labels")
    step, seen = train(bert(make), dataset, collator(tokenizer), loss_fn)
    assert step.taken == 16
    assert step.guarantee(1e-3).epsilon > 0
    assert "cannot be tried out" not in caplog.text
    assert {0, 1} <= {shapes["input_ids"][0] for shapes in seen}
    lengths = {shapes["input_ids"][1] for shapes in seen if shapes["input_ids"][0]}
    assert len(lengths) > 1, "each batch is as long as its longest sentence"
    assert all(shapes["input_ids"] == shapes["attention_mask"] for shapes in seen)


def test_a_model_without_the_mask_of_the_collator_is_refused(tokenizer):
    collator = DataCollatorWithPadding(tokenizer)

    def unmasked(examples: list[Any]) -> Any:
        batch = collator(examples)
        del batch["attention_mask"]
        return batch

    model = bert(BertForSequenceClassification)
    with pytest.raises(dpvd.DpvdError, match=r"\(BertSelfAttention\) looks at padding"):
        train(model, sentences(tokenizer), unmasked, cross_entropy)
