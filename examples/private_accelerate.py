"""LoRA adapters (PEFT) on a small BERT, trained privately in a loop of Accelerate.

The loop is the usual one, with ``private_step`` in place of backward pass and optimizer step. The
tracker gets ε and the accuracy on held-out texts, and nothing of training. Half-way the state is
saved; it could be loaded into a new program, which would go on counting.

The texts are made up: the label says whether one of two marked words occurs. The model is built
from a configuration, nothing is downloaded; the frozen weights are random, so this shows the
machinery, not what a pretrained model would reach.

    python examples/private_accelerate.py --epsilon 8
"""

import argparse
import os
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here is to be looked up

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

with warnings.catch_warnings():  # of the libraries about themselves
    warnings.simplefilter("ignore")
    from accelerate.tracking import GeneralTracker, on_main_process
    from peft import LoraConfig, get_peft_model
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        default_data_collator,
        get_linear_schedule_with_warmup,
    )

from dpvd.accelerate import PrivateAccelerator

DELTA = 1e-4
WORDS, LENGTH = 40, 8
MARKED = 5


class Printer(GeneralTracker):
    """Prints what it is given, where TensorBoard, MLflow or W&B would send it on."""

    name = "printer"
    requires_logging_directory = False

    @on_main_process
    def log(self, values: dict, step: int | None = None, **options: object) -> None:
        print(f"step {step}:", ", ".join(f"{name} {values[name]:.3f}" for name in sorted(values)))

    @property
    def tracker(self) -> None:
        return None

    def store_init_configuration(self, values: dict) -> None: ...


def texts(count: int, generator: torch.Generator) -> list[dict[str, Tensor]]:
    """Words [LENGTH], and whether a marked one is among them."""
    words = torch.randint(MARKED + 1, WORDS, (count, LENGTH), generator=generator)
    labels = torch.randint(2, (count,), generator=generator)
    places = torch.randint(LENGTH, (count,), generator=generator)
    rows = labels.nonzero().squeeze(1)
    words[rows, places[rows]] = MARKED
    return [{"input_ids": row, "labels": label} for row, label in zip(words, labels, strict=True)]


def classifier() -> nn.Module:
    """A small BERT with adapters on its attention; only they and the head are trained."""
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        initializer_range=0.3,
    )
    adapters = LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"])
    return get_peft_model(BertForSequenceClassification(config), adapters)


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    right = [
        (model(input_ids=batch["input_ids"]).logits.argmax(1) == batch["labels"]).double()
        for batch in loader
    ]
    return torch.cat(right).mean().item()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=4)
    given = parser.parse_args(arguments)

    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    train = DataLoader(
        texts(given.examples, generator),
        batch_size=given.examples // 5,
        shuffle=True,
        collate_fn=default_data_collator,
    )
    held_out = DataLoader(texts(500, generator), batch_size=100, collate_fn=default_data_collator)
    model = classifier()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.02)
    scheduler = get_linear_schedule_with_warmup(optimizer, 2, 5 * given.epochs)

    accelerator = PrivateAccelerator(
        epsilon=given.epsilon, delta=DELTA, epochs=given.epochs, cpu=True, log_with=Printer()
    )
    accelerator.init_trackers("private")
    model, optimizer, train, scheduler = accelerator.prepare_private(
        model, optimizer, train, scheduler
    )
    held_out = accelerator.prepare(held_out)
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(given.epochs):
            for batch in train:
                accelerator.private_step(batch)
                scheduler.step()
            accelerator.log(
                {"eval_accuracy": accuracy(model, held_out)}, step=accelerator.private.taken
            )
            if epoch == given.epochs // 2:
                accelerator.save_state(folder)
                print("saved:", ", ".join(sorted(path.name for path in Path(folder).iterdir())))
    print(accelerator.guarantee().sentence())
    print(f"test accuracy {accuracy(model, held_out):.3f}")


if __name__ == "__main__":
    main()
