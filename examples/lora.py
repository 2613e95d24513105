"""Variational LoRA adapters on a small GPT-2, trained privately, that know when they do not know.

The body of the model stays frozen, as a pretrained one would. Its adapters (PEFT) and its head are
made variational with ``dpvd.variational(model, only=...)``: under ``--scale privacy`` their noise
is tied to the noise that protects the data (Algorithm 1), under ``--scale learned`` it is trained.
``dpvd.predict_dist`` then averages over weight samples.

The texts are made up: words of one of two topics among filler words. Garbage is made of words that
no training text has. The model is built from a configuration, nothing is downloaded; the frozen
weights are random, so this shows the machinery, not what a pretrained model would reach.

Learning rate and steps are guesses: nothing was tuned.

    python examples/lora.py --epsilon 8 --scale privacy
"""

import argparse
import os
import warnings
from collections.abc import Sequence

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here is to be looked up

import torch
from torch import Tensor, nn

import dpvd

with warnings.catch_warnings():  # of the libraries about themselves
    warnings.simplefilter("ignore")
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2ForSequenceClassification

DELTA = 1e-5
WORDS, LENGTH, WIDTH = 64, 12, 32
TOPICS = torch.tensor([[4, 16], [16, 28]])  # first and last + 1 word of each topic
FILLER, UNKNOWN = (28, 44), (44, 64)
LEARNING_RATES = {"privacy": 0.5, "learned": 0.02}


def texts(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Words [count, LENGTH], a third of them filler, and which topic the others are of [count]."""
    topic = torch.randint(2, (count,), generator=generator)
    first = TOPICS[topic, :1]
    words = first + torch.randint(12, (count, LENGTH), generator=generator)
    filler = torch.randint(*FILLER, (count, LENGTH), generator=generator)
    is_filler = torch.rand(count, LENGTH, generator=generator) < 1 / 3
    return torch.where(is_filler, filler, words), topic


def classifier(seed: int) -> nn.Module:
    """A small GPT-2 with adapters on its attention; only they and the head are trained."""
    config = GPT2Config(
        vocab_size=WORDS,
        n_positions=LENGTH,
        n_embd=WIDTH,
        n_layer=2,
        n_head=4,
        num_labels=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.2,
    )
    adapters = LoraConfig(
        task_type="SEQ_CLS", r=4, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True
    )
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        return get_peft_model(GPT2ForSequenceClassification(config), adapters)


def loss_fn(model: nn.Module, words: Tensor, topic: Tensor) -> Tensor:
    logits = model(input_ids=words).logits
    return nn.functional.cross_entropy(logits, topic, reduction="none")


def entropy(probabilities: Tensor) -> Tensor:
    """Of each row, in nats: ln 2 = 0.69 is a guess between two classes."""
    return torch.special.entr(probabilities).sum(1)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--scale", choices=["privacy", "learned"], default="privacy")
    parser.add_argument("--examples", type=int, default=1500)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)

    noise = {"rates": "layer", "learned": False} if given.scale == "privacy" else {}
    model = dpvd.variational(classifier(given.seed), only=("lora", "score"), **noise)
    print(model.conversion)

    generator = torch.Generator().manual_seed(given.seed)
    train = texts(given.examples, generator)
    plan = dpvd.PrivacyPlan(
        examples=given.examples,
        batch_size=given.examples // 5,
        steps=given.steps,
        clipping=dpvd.Clipping("automatic"),
        unit="text",
        tuned=(),
        public=("the vocabulary", "the length of the texts"),
        initial_weights="random",
    ).calibrate(given.epsilon, DELTA)
    tied = given.scale == "privacy"
    recipe = dpvd.Recipe(
        learning_rate=LEARNING_RATES[given.scale],
        optimizer="sgd" if tied else "adamw",
        momentum=0.9,
        kl_weight=0.01,
        average=0.3,  # the posterior keeps the tied scale of these steps
    )
    result = dpvd.fit(
        model, train, plan, recipe, delta=DELTA, loss_fn=loss_fn, evaluations=1, generator=generator
    )
    print(result.guarantee.sentence())

    words, topic = texts(500, generator)
    garbage = torch.randint(*UNKNOWN, (500, LENGTH), generator=generator)
    known, spread = dpvd.predict_dist(model, {"input_ids": words})
    unknown, wider = dpvd.predict_dist(model, {"input_ids": garbage})
    accuracy = (known.argmax(1) == topic).double().mean().item()
    print(f"test accuracy {accuracy:.3f}")
    print(
        f"entropy: {entropy(known).mean():.3f} on texts, {entropy(unknown).mean():.3f} on garbage"
    )
    print(f"spread: {spread.mean():.4f} on texts, {wider.mean():.4f} on garbage")


if __name__ == "__main__":
    main()
