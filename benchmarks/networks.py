"""Networks as public libraries make them: a RoBERTa classifier, GPT-2 with LoRA, a ResNet.

The first two need transformers and peft, which every environment that times them has. Nothing is
downloaded: weights are random.
"""

import warnings
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

__all__ = ["decoder_with_lora", "encoder", "residual"]

GROUPS = 8  # of channels, for group norm


class Logits(nn.Module):
    """A classifier of transformers that is given tokens and returns its logits alone."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.classifier(input_ids=tokens).logits
        return logits


def encoder(width: int, layers: int, vocabulary: int, tokens: int, classes: int) -> nn.Module:
    """A RoBERTa classifier with dropout as its configuration has it."""
    from transformers import RobertaConfig, RobertaForSequenceClassification

    config = RobertaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=4 * width,
        max_position_embeddings=tokens + 2,
        num_labels=classes,
    )
    model = RobertaForSequenceClassification(config)
    return Logits(model.train())


def decoder_with_lora(
    width: int, layers: int, vocabulary: int, tokens: int, classes: int, rank: int
) -> nn.Module:
    """A GPT-2 classifier of which low-rank adapters and the head are trained, dropout included."""
    from peft import LoraConfig, TaskType, get_peft_model
    from transformers import GPT2Config, GPT2ForSequenceClassification

    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=tokens,
        n_embd=width,
        n_layer=layers,
        n_head=4,
        num_labels=classes,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
    )
    model = GPT2ForSequenceClassification(config)
    lora = LoraConfig(task_type=TaskType.SEQ_CLS, r=rank, fan_in_fan_out=True)
    with warnings.catch_warnings():  # peft asks transformers by a name that is going
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        adapted = get_peft_model(model, lora)
    return Logits(adapted.train())


class Block(nn.Module):
    """Two convolutions with group norm, and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.GroupNorm(GROUPS, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.GroupNorm(GROUPS, outputs),
        )
        self.around: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.around = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(GROUPS, outputs)
            )
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.activation(self.layers(x) + self.around(x))
        return total


def residual(widths: Sequence[int], classes: int) -> nn.Module:
    """A ResNet of two basic blocks for each width, like ResNet-18, with group norm."""
    first = widths[0]
    layers: list[nn.Module] = [
        nn.Conv2d(3, first, 7, stride=2, padding=3, bias=False),
        nn.GroupNorm(GROUPS, first),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        Block(first, first, 1),
        Block(first, first, 1),
    ]
    for inputs, outputs in pairwise(widths):
        layers += [Block(inputs, outputs, 2), Block(outputs, outputs, 1)]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))
    return nn.Sequential(*layers, *head)
