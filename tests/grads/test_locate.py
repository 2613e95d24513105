"""A refusal names the module in which examples reach each other."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.errors import DpvdError
from dpvd.grads import Clipping, clipped_grad
from tests.grads.models import CLASSES, FEATURES, make_batch
from tests.grads.test_isolation import Between, Remembers, losses_of, network
from tests.grads.test_padding import CRITERION, Reader, bert, collate, cross_entropy, text, train

LENGTH, WIDTH = 5, 6


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class CentredInPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sub_(x.mean(0))


class Halves(nn.Module):
    """Two layers, and the mixing between them: by neither, but by the module that holds them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(7, 7)
        self.second = nn.Linear(7, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).softmax(0))


class Flat(nn.Module):
    """Sequences with examples and positions in one dimension, or with the batch second."""

    def __init__(self, second: bool) -> None:
        super().__init__()
        self.into = nn.Linear(FEATURES, WIDTH)
        self.mix = Between(lambda x: x + 0.1 * x.roll(1, 1 if second else 0))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.second = second

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.into(x)  # [B, T, d]
        hidden = hidden.transpose(0, 1) if self.second else hidden.flatten(0, 1)
        hidden = self.mix(hidden.tanh())
        hidden = hidden.transpose(0, 1) if self.second else hidden.unflatten(0, (-1, LENGTH))
        return self.head(hidden.mean(1))


class Whole(nn.Module):
    """Mixes by itself what its only layer returns."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES).double()

    def forward(self, x: Tensor) -> Tensor:
        logits = self.layer(x)
        return logits - logits.mean(0)


class ByCount(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / len(x)


class ShiftedByLast(nn.Module):
    """Remembers in a list, where no watch of buffers sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.last: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        shift = sum(self.last) if self.last else 0.0
        self.last = [x.detach().mean()]
        return x + shift


def in_the_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(model, x, y) - F.softmax(model(x), 0).sum(1)


def before_the_model(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(model, x - x.mean(0), y)


def by_count_in_the_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(model, x, y) / len(x)


class Criterion(nn.Module):
    """A criterion that holds a module which mixes."""

    def __init__(self) -> None:
        super().__init__()
        self.centre = Centred()

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.centre(model(x)), y, reduction="none")


PLACES = {
    "a module": (partial(network, Centred()), losses_of, "module '1' (Centred) mixes"),
    "in place": (partial(network, CentredInPlace()), losses_of, "'1' (CentredInPlace) mixes"),
    "the first of two": (
        partial(network, nn.Tanh(), Centred(), Centred()),
        losses_of,
        "module '2' (Centred) mixes",
    ),
    "behind dropout": (
        partial(network, nn.Dropout(0.5), Centred()),
        losses_of,
        "module '2' (Centred) mixes",
    ),
    "behind noise": (
        partial(network, lambda x: x + torch.randn_like(x), Centred()),
        losses_of,
        "module '2' (Centred) mixes",
    ),
    "between the modules of one": (
        partial(network, nn.Tanh(), Halves()),
        losses_of,
        "module '2' (Halves) mixes",
    ),
    "the model itself": (Whole, losses_of, "the model itself (Whole) mixes"),
    "the loss": (network, in_the_loss, "replaced: the loss mixes"),
    "what the model is given": (network, before_the_model, "replaced: the loss mixes"),
    "a module of the loss": (network, Criterion(), "'loss.centre' (Centred) mixes"),
    "by the number": (
        partial(network, ByCount()),
        losses_of,
        "module '1' (ByCount) does that",
    ),
    "by the number in the loss": (network, by_count_in_the_loss, "the loss does that"),
    "by what was kept": (
        partial(network, ShiftedByLast()),
        losses_of,
        "module '1' (ShiftedByLast) keeps",
    ),
    "by an average": (
        partial(network, Remembers("list")),
        losses_of,
        "module '1' (Remembers) keeps",
    ),
}


@pytest.mark.parametrize("case", PLACES)
def test_a_refusal_says_where(case, generator):
    make, loss_fn, words = PLACES[case]
    model = make()
    with pytest.raises(DpvdError) as refusal:
        clipped_grad(model, loss_fn, make_batch(12, generator), clipping=Clipping())
    assert words in str(refusal.value)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("second", [False, True])
def test_the_batch_may_be_elsewhere(second, generator):
    with pytest.raises(DpvdError, match=r"module 'mix' \(Between\) mixes"):
        clipped_grad(
            Flat(second).double(),
            losses_of,
            make_batch(12, generator, LENGTH),
            clipping=Clipping(),
        )


def test_the_reader_of_padding_is_named():
    with pytest.raises(DpvdError, match=r"module 'lstm' \(LSTM\) looks at padding"):
        train(Reader(masked=False), CRITERION, collate)
    unmasked = partial(text, masked=False)
    with pytest.raises(DpvdError, match=r"attention.*\(BertSelfAttention\) looks at padding"):
        train(bert(), cross_entropy, unmasked)
    # Words move to other positions when padding comes before them.
    with pytest.raises(DpvdError, match=r"\(BertEmbeddings\) looks at padding"):
        train(bert(), cross_entropy, partial(text, left=True, masked=False))


def test_nothing_is_said_of_a_place_that_cannot_be_told():
    """The order in which modules are called may depend on the examples."""

    class Alternating(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            first = int(x.max() > 100)  # as the examples that replace others are
            return self.layers[first](x) + 2 * self.layers[1 - first](x)

    batch = torch.eye(2).repeat(8, 1), torch.zeros(16, dtype=torch.long)
    with pytest.raises(DpvdError, match="replaced: something in the model or the loss mixes"):
        clipped_grad(Alternating(), losses_of, batch, clipping=Clipping())
