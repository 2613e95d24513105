"""Examples that reach into each other are refused, sound models are not, and keep the fast
engine.
"""

import functools
import logging
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.errors import DpvdError
from dpvd.grads import Clipping, Engine, GradientClipper, Isolation, clipped_grad
from dpvd.grads.isolation import Finding
from dpvd.nn import AdditiveLinear
from tests.grads.models import CLASSES, FEATURES, cross_entropy, make_batch

HIDDEN = 7


class Between(nn.Module):
    """A function between two layers, as a module."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def network(*between) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        middle = [part if isinstance(part, nn.Module) else Between(part) for part in between]
        return nn.Sequential(
            nn.Linear(FEATURES, HIDDEN), *middle, nn.Tanh(), nn.Linear(HIDDEN, CLASSES)
        ).double()


def losses_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def sorted_and_back(x: Tensor) -> Tensor:
    order = x.norm(dim=1).argsort()
    return x[order].tanh()[order.argsort()]


# Losses on a sound model


def mixup(model, x, y):
    partner = torch.randperm(len(x))
    logits = model(0.7 * x + 0.3 * x[partner])
    return 0.7 * F.cross_entropy(logits, y, reduction="none") + 0.3 * F.cross_entropy(
        logits, y[partner], reduction="none"
    )


def per_positive(model, x, y):
    return losses_of(model, x, y) / (y == 0).sum().clamp_min(1)


def hardest(model, x, y):
    losses = losses_of(model, x, y)
    return losses * (losses >= losses.topk(max(1, len(x) // 4)).values.min())


def contrastive(model, x, y):
    out = F.normalize(model(x), dim=1)
    return F.cross_entropy(out @ out.T, torch.arange(len(x)), reduction="none")


def smoothed_by_frequencies(model, x, y):
    frequencies = F.one_hot(y, CLASSES).double().mean(0)
    targets = 0.9 * F.one_hot(y, CLASSES) + 0.1 * frequencies
    return F.cross_entropy(model(x), targets, reduction="none")


def distances_to_others(model, x, y):
    return losses_of(model, x, y) + torch.cdist(model(x), model(x)).mean(1)


def without_duplicates(model, x, y):
    _, inverse, counts = x.unique(dim=0, return_inverse=True, return_counts=True)
    return losses_of(model, x, y) / counts[inverse]


def drawn_without_replacement(model, x, y):
    negatives = torch.randperm(len(x))
    return losses_of(model, x, y) + (model(x) * model(x[negatives])).sum(1)


MIXING_LOSSES = [
    mixup,
    per_positive,
    hardest,
    contrastive,
    smoothed_by_frequencies,
    distances_to_others,
    without_duplicates,
    drawn_without_replacement,
]

MIXING_LAYERS = {
    "batch statistics behind a dropout": (nn.Dropout(0.5), lambda x: x - x.mean(0)),
    "batch statistics behind noise": (lambda x: x + torch.randn_like(x), lambda x: x - x.mean(0)),
    "a little of the mean": (lambda x: x - 1e-3 * x.mean(0),),
    "a thousandth of a normaliser": (lambda x: x / (0.999 + 1e-3 * x.abs().mean()),),
    "running sum": (lambda x: x + 0.01 * x.cumsum(0),),
    "neighbour": (lambda x: x + 0.1 * x.roll(1, 0),),
    "softmax over the batch": (lambda x: x + x.softmax(0),),
    "normalised over all": (lambda x: F.layer_norm(x, x.shape),),
    "largest of the batch": (lambda x: x / x.abs().amax(),),
}

DRAWN_PARTNERS = {
    "each another": lambda x: x + 0.1 * x[torch.randint(len(x), (len(x),))],
    "all the same": lambda x: x + 0.1 * x[torch.randint(len(x), (1,))],
    "by sorting": lambda x: x + 0.1 * x[torch.rand(len(x)).argsort()],
    "by numpy": lambda x: x + 0.1 * x[np.random.permutation(len(x))],  # noqa: NPY002
    "by Python": lambda x: x + 0.1 * x[random.randrange(len(x))],
}


@pytest.mark.parametrize("count", [8, 60])
@pytest.mark.parametrize("loss", MIXING_LOSSES)
def test_a_loss_that_mixes_examples_is_refused(loss, count, generator):
    # few rows that were permuted may all have met rows that were kept: then their number shows it
    with pytest.raises(DpvdError, match=r"(mixes examples|how many examples).*isolation='vmap'"):
        clipped_grad(network(), loss, make_batch(count, generator), clipping=Clipping())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("engine", ["auto", "factored"])
@pytest.mark.parametrize("case", MIXING_LAYERS)
def test_a_layer_that_mixes_examples_is_refused(case, engine, dtype, generator):
    x, y = make_batch(40, generator)
    with pytest.raises(DpvdError, match="mixes examples"):
        clipped_grad(
            network(*MIXING_LAYERS[case]).to(dtype),
            losses_of,
            (x.to(dtype), y),
            clipping=Clipping(),
            engine=engine,
        )


@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 2e-7), (torch.float64, 1e-12)])
def test_the_least_mixing_that_is_noticed(dtype, share, generator):
    """Little of the others is enough, since they are enlarged; ten times the rounding of a loss is
    seen.
    """
    x, y = make_batch(40, generator)
    model = network(lambda x: x - share * x.mean(0)).to(dtype)
    with pytest.raises(DpvdError, match="mixes examples"):
        clipped_grad(model, losses_of, (x.to(dtype), y), clipping=Clipping())


@pytest.mark.parametrize("dtype", [torch.long, torch.float64, torch.bool])
def test_a_division_by_the_number_of_a_rare_class_is_found_without_it(dtype, generator):
    """The batch that is tried out has no positive example; one that has two would halve every
    gradient.
    """

    def per_positive(model, x, y):
        losses = F.binary_cross_entropy_with_logits(model(x)[:, 0], y.double(), reduction="none")
        return losses / y.sum().clamp(min=1)

    x, _ = make_batch(40, generator)
    with pytest.raises(DpvdError, match="mixes examples"):
        clipped_grad(
            network(), per_positive, (x, torch.zeros(40, dtype=dtype)), clipping=Clipping()
        )


@pytest.mark.parametrize("case", DRAWN_PARTNERS)
def test_partners_drawn_at_random_are_refused_or_gradients_formed_alone(case, generator):
    clipper = GradientClipper(network(DRAWN_PARTNERS[case]), losses_of, clipping=Clipping())
    refused = ""
    try:
        list(clipper(make_batch(40, generator)))
    except DpvdError as error:
        refused = str(error)
    if refused:
        assert "mixes examples" in refused or "how many examples" in refused
    else:
        assert clipper.describe_isolation().startswith("each example's gradient formed alone")


def distance(model, loss, batch, changed, **options) -> float:
    """How far the clipped sum moves, in clip norms, with the same random numbers."""
    sums = []
    for data in (batch, changed):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            sums.append(
                clipped_grad(model, loss, data, clipping=Clipping("flat", 0.1), **options).grads
            )
    return (
        float(torch.cat([(sums[0][name] - sums[1][name]).flatten() for name in sums[0]]).norm())
        / 0.1
    )


def centred(model, x, y):
    return losses_of(model, x - x.mean(0), y)


def by_outliers(model, x, y):
    return losses_of(model, x, y) * (1e-3 if (x.abs() > 100).any() else 1.0)


@pytest.mark.parametrize("loss", [mixup, centred, by_outliers])
def test_what_mixing_would_have_moved_and_what_gradients_formed_alone_do(
    loss, generator, monkeypatch
):
    """One example that is replaced may move the sum by 2 C. The refused path moves it further, the
    other does not.
    """
    monkeypatch.setattr("dpvd.grads.clipper.examine", accept_all)
    x, y = make_batch(30, generator)
    another = x.clone()
    another[0] = 5000.0
    labels = y.clone()
    labels[0] = (labels[0] + 1) % CLASSES
    model = network()
    assert distance(model, loss, (x, y), (another, labels)) > 2.2
    assert distance(model, loss, (x, y), (another, labels), isolation="vmap") <= 2 + 1e-9


def accept_all(subject, batch, *, thorough, is_random):
    return Finding("", made=True, is_random=False, settled=frozenset())


@pytest.mark.parametrize(
    "loss",
    [
        lambda m, x, y: losses_of(m, x, y) / len(x),
        lambda m, x, y: losses_of(m, x, y) + 1e-2 * len(x),
        lambda m, x, y: F.cross_entropy(m(x + torch.randn_like(x)), y, reduction="none") / len(x),
    ],
)
def test_a_loss_that_depends_on_the_size_of_the_batch_is_refused(loss, generator):
    with pytest.raises(DpvdError, match=r"how many examples.*plan's batch size"):
        clipped_grad(network(), loss, make_batch(20, generator), clipping=Clipping())


class Remembers(nn.Module):
    """Keeps an average of what it saw, in one of several ways."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.items = [torch.zeros((), dtype=torch.float64)]
        self.number = 0.0
        if where == "buffer":
            self.register_buffer("average", torch.zeros((), dtype=torch.float64))
        else:
            self.average = torch.zeros((), dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        seen = x.detach().mean()
        if self.where == "list":
            shift = self.items[0]
            self.items[0] = 0.9 * shift + 0.1 * seen
        elif self.where == "number":
            shift = torch.tensor(self.number)
            self.number = 0.9 * self.number + 0.1 * float(seen)
        else:
            shift = self.average.clone()
            if self.where == "attribute in place":
                self.average.mul_(0.9).add_(0.1 * seen)
            else:
                self.average = 0.9 * self.average + 0.1 * seen
        return x + shift


@pytest.mark.parametrize("engine", Engine)
@pytest.mark.parametrize("where", ["buffer", "attribute", "attribute in place", "list", "number"])
def test_averages_that_are_kept_are_refused(where, engine, generator):
    message = "buffer '1.average'" if where == "buffer" else "batches that came before"
    if where == "number" and engine is Engine.VMAP:
        pytest.skip("torch.func itself refuses")
    with pytest.raises(DpvdError, match=message):
        clipped_grad(
            network(Remembers(where)),
            losses_of,
            make_batch(8, generator),
            clipping=Clipping(),
            engine=engine,
        )


def test_an_average_in_a_variable_of_the_loss_is_refused(generator):
    kept = [0.0]

    def loss(model, x, y):
        losses = losses_of(model, x, y) + kept[0]
        kept[0] = 0.9 * kept[0] + 0.1 * float(losses.detach().mean())
        return losses

    with pytest.raises(DpvdError, match="batches that came before"):
        clipped_grad(network(), loss, make_batch(8, generator), clipping=Clipping())
    assert kept == [0.0]


def test_an_average_in_a_buffer_of_the_loss_is_refused(generator):
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("centre", torch.zeros(CLASSES, dtype=torch.float64))

        def forward(self, logits, y):
            self.centre.mul_(0.9).add_(0.1 * logits.detach().mean(0))
            return F.cross_entropy(logits, y, reduction="none")

    criterion = Centred()
    loss = functools.partial(lambda criterion, model, x, y: criterion(model(x), y), criterion)
    with pytest.raises(DpvdError, match="centre"):
        clipped_grad(network(), loss, make_batch(8, generator), clipping=Clipping())
    assert not criterion.centre.any()


class Queue(nn.Module):
    """A memory bank as in contrastive learning: the last examples' features."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bank", torch.zeros(16, HIDDEN, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        out = x + 1e-3 * self.bank.mean(0)
        self.bank = torch.cat([x.detach(), self.bank])[:16]
        return out


def test_a_memory_bank_is_refused_by_name_and_left_empty(generator):
    model = network(Queue())
    with pytest.raises(DpvdError, match=r"buffer '1.bank' keeps something of the data"):
        clipped_grad(model, losses_of, make_batch(8, generator), clipping=Clipping())
    assert not model[1].bank.any()


def test_a_buffer_that_begins_to_change_later_is_refused(generator):
    class Later(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("largest", torch.zeros((), dtype=torch.float64))
            self.limit = 1e9

        def forward(self, x: Tensor) -> Tensor:
            if self.limit < 1:
                self.largest.copy_(x.detach().abs().amax())
            return x

    model = network(Later())
    clipper = GradientClipper(model, losses_of, clipping=Clipping())
    list(clipper(make_batch(8, generator)))
    model[1].limit = 0.0
    with pytest.raises(DpvdError, match=r"buffer '1.largest'"):
        list(clipper(make_batch(8, generator), step=3))


def test_a_parameter_that_the_forward_pass_changes_is_refused(generator):
    model = network()

    def loss(model, x, y):
        with torch.no_grad():
            model[0].bias.add_(x.mean())
        return losses_of(model, x, y)

    with pytest.raises(DpvdError, match=r"parameter '0.bias' is changed by the forward pass"):
        clipped_grad(model, loss, make_batch(8, generator), clipping=Clipping(), engine="loop")


@pytest.mark.parametrize("isolation", Isolation)
@pytest.mark.parametrize("trained", [True, False])
def test_a_codebook_that_follows_the_data_through_its_data_is_refused(
    trained, isolation, generator
):
    """torch does not count writes through ``.data``."""

    class Codebook(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.codes = nn.Parameter(torch.zeros(7, dtype=torch.float64), requires_grad=trained)

        def forward(self, x: Tensor) -> Tensor:
            self.codes.data.copy_(x.detach().mean(0))
            return x

    model = network(Codebook())
    with pytest.raises(DpvdError, match=r"parameter '1.codes' is changed by the forward pass"):
        clipped_grad(
            model, losses_of, make_batch(8, generator), clipping=Clipping(), isolation=isolation
        )


# Sound ones


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.seen = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen = x.detach()  # kept, but no later loss depends on it
        return x


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(FEATURES, 4)
        self.decoder = nn.Linear(2, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        mean, log_scale = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + log_scale.exp() * torch.randn_like(mean))


class Attends(nn.Module):
    """Attention inside an example, with dropout in torch's function, over the positions that are
    not padding.
    """

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.maps = nn.Linear(FEATURES, 3 * 4)
        self.head = nn.Linear(4, CLASSES)
        self.dropout = dropout

    def forward(
        self, x: Tensor
    ) -> Tensor:  # [B, T, features]; the number of positions is in the first entry
        lengths = (x[:, 0, 0].abs() * 10).long() % x.shape[1] + 1
        longest = int(lengths.max())
        x = x[:, :longest]
        mask = torch.arange(longest) < lengths[:, None]
        query, key, value = self.maps(x).chunk(3, -1)
        out = F.scaled_dot_product_attention(
            query, key, value, mask[:, None, :], dropout_p=self.dropout
        )
        return self.head((out * mask[..., None]).sum(1))


def reconstruction(model, x, y):
    return (model(x) - x).square().sum(1)


def augmented(model, x, y):
    return losses_of(model, x + 0.1 * torch.rand(len(x), FEATURES, dtype=x.dtype), y)


def flipped(model, x, y):
    signs = 2.0 * torch.bernoulli(torch.full((len(x), 1), 0.5, dtype=x.dtype)) - 1
    return losses_of(model, x * signs, y)


def drawn_class(model, x, y):
    with torch.no_grad():
        drawn = torch.multinomial(model(x).softmax(1), 1).squeeze(1)
    return losses_of(model, x, drawn)


def frozen_batch_norm() -> nn.Module:
    model = network(nn.BatchNorm1d(HIDDEN))
    model[1].eval()
    return model


def with_reparametrised(wrap) -> nn.Module:
    model = network()
    wrap(model[3] if len(model) > 3 else model[2])
    return model


SOUND = {
    "plain": (network, losses_of),
    "dropout": (lambda: network(nn.Dropout(0.5)), losses_of),
    "functional dropout": (lambda: network(lambda x: F.dropout(x, 0.5)), losses_of),
    "rrelu": (lambda: network(nn.RReLU()), losses_of),
    "noise": (lambda: network(lambda x: x + torch.randn_like(x)), losses_of),
    "numpy noise": (
        lambda: network(lambda x: x + torch.tensor(np.random.rand(*x.shape))),  # noqa: NPY002
        losses_of,
    ),
    "autoencoder": (Autoencoder, reconstruction),
    "augmentation": (network, augmented),
    "flips": (network, flipped),
    "draws": (network, drawn_class),
    "batch norm in eval mode": (frozen_batch_norm, losses_of),
    "group norm": (lambda: network(lambda x: F.group_norm(x[..., None], 1)[..., 0]), losses_of),
    "counter": (lambda: network(Counter()), losses_of),
    "variational": (lambda: network(AdditiveLinear(HIDDEN, HIDDEN)), losses_of),
    "bound arguments": (network, functools.partial(losses_of)),
}


@pytest.mark.parametrize("count", [2, 3, 24])
@pytest.mark.parametrize("case", SOUND)
def test_sound_models_keep_the_fast_engine(case, count, generator, caplog):
    make, loss = SOUND[case]
    if case == "numpy noise":
        pytest.skip("see below: its size cannot be changed under the same draws")
    check_fast(make().double(), loss, make_batch(count, generator), caplog)


def check_fast(model, loss, batch, caplog) -> GradientClipper:
    clipper = GradientClipper(model, loss, clipping=Clipping())
    with caplog.at_level(logging.INFO, logger="dpvd"):
        for _ in range(4):
            list(clipper(batch))
    assert "cannot" not in caplog.text
    assert clipper.describe_isolation() == "examples' isolation checked on 3 of 4 batches"
    return clipper


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_and_padding_to_the_longest_keep_the_fast_engine(dropout, generator, caplog):
    check_fast(Attends(dropout).double(), losses_of, make_batch(24, generator, 6), caplog)


def test_weights_of_spectral_norm_are_taken_although_their_buffers_change(generator):
    model = with_reparametrised(nn.utils.parametrizations.spectral_norm)
    clipper = GradientClipper(model, losses_of, clipping=Clipping())
    for _ in range(40):  # as many checks, each of which changes another thing
        list(clipper(make_batch(8, generator), step=2))
    list(clipper(make_batch(1, generator)))


@pytest.mark.filterwarnings(
    "ignore:There is a performance drop"
)  # torch.func has no fast way for weight_norm
def test_weight_norm_is_taken(generator):
    model = with_reparametrised(nn.utils.parametrizations.weight_norm)
    result = clipped_grad(model, losses_of, make_batch(8, generator), clipping=Clipping())
    truth = clipped_grad(
        model, losses_of, make_batch(8, generator), clipping=Clipping(), engine="loop"
    )
    assert set(result.grads) == set(truth.grads)


def test_noise_that_cannot_be_replayed_is_left_to_the_safe_engines(generator, caplog):
    """NumPy's draws cannot be made the same for every example, so another size cannot be
    compared.
    """
    make, loss = SOUND["numpy noise"]
    clipper = GradientClipper(make(), loss, clipping=Clipping())
    with caplog.at_level(logging.WARNING, logger="dpvd"):
        list(clipper(make_batch(8, generator)))
        list(clipper(make_batch(8, generator)))
    assert caplog.text.count("cannot be tried out") == 1
    assert "formed alone" in clipper.describe_isolation()


# Rows that are moved, gradients that mix where losses do not


def detached(model, x, y):
    out = model(x)
    mean = out.mean(0)
    return F.cross_entropy(out + mean - mean.detach(), y, reduction="none")


@pytest.mark.parametrize(("between", "loss"), [(sorted_and_back, losses_of), (None, detached)])
def test_gradients_that_mix_where_losses_do_not_are_formed_alone(between, loss, generator, caplog):
    if between is None:
        model = network()
    else:
        model = nn.Sequential(
            Between(lambda x: x), RowsSorted(), nn.Linear(FEATURES, CLASSES)
        ).double()
    with caplog.at_level(logging.INFO, logger="dpvd"):
        clipper = GradientClipper(model, loss, clipping=Clipping())
        (found,) = clipper(make_batch(30, generator))
    assert "the factored engine cannot take" in caplog.text
    (truth,) = GradientClipper(model, loss, clipping=Clipping(), engine="loop")(
        make_batch(30, generator)
    )
    assert found.norms.shape == truth.norms.shape
    assert clipper.describe_isolation().startswith("each example's gradient formed alone")


class RowsSorted(nn.Module):
    """A layer that sees its rows sorted, as packed sequences are, and puts them back."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        order = x.norm(dim=1).argsort()
        return self.layer(x[order])[order.argsort()]


# When it is checked


class Bert(nn.Module):
    """Positions are looked up once for all examples: their embedding does not have the batch
    first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.places = nn.Embedding(5, 6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        places = self.places(torch.arange(x.shape[1]).unsqueeze(0))
        return self.head(F.dropout(self.words(x) + places, 0.1).mean(1))


def test_a_model_with_shared_positions_and_dropout_is_taken_by_the_fast_engine(generator, caplog):
    x = torch.randint(11, (6, 5), generator=generator)
    y = torch.randint(CLASSES, (6,), generator=generator)
    with caplog.at_level(logging.INFO, logger="dpvd"):
        result = clipped_grad(Bert(), losses_of, (x, y), clipping=Clipping())
    assert "cannot take" not in caplog.text
    assert result.grads["places.weight"].abs().max() > 0


def test_auto_falls_back_on_a_later_batch_too(generator):
    class Sometimes(nn.Module):
        """Returns a pair for long sequences only."""

        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(FEATURES, CLASSES))

        def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
            out = x.sum(1) @ self.w
            return (out, out) if x.shape[1] > 3 else out

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Sometimes()

        def forward(self, x: Tensor) -> Tensor:
            out = self.inner(x)
            return out[0] if isinstance(out, tuple) else out

    model = Outer().double()
    clipper = GradientClipper(model, losses_of, clipping=Clipping(), micro_batch=4)
    list(clipper(make_batch(6, generator, 3)))
    batch = make_batch(6, generator, 5)
    found = torch.cat([part.norms for part in clipper(batch, step=3)])
    truth = clipped_grad(model, losses_of, batch, clipping=Clipping(), engine="loop")
    torch.testing.assert_close(found, truth.norms)


def test_a_batch_of_one_example_settles_nothing(generator):
    model = network(lambda x: x - x.mean(0))
    clipper = GradientClipper(model, losses_of, clipping=Clipping())
    list(clipper(make_batch(1, generator)))
    assert (
        clipper.describe_isolation()
        == "each example's gradient formed alone (one backward pass each)"
    )
    with pytest.raises(DpvdError, match="mixes examples"):
        list(clipper(make_batch(8, generator), step=3))  # at which no check would be due


class Swapped:
    """A loss whose parts are exchanged between two batches."""

    def __init__(self) -> None:
        self.function = losses_of
        self.mixes = False
        self.weight = 1.0

    def __call__(self, model, x, y):
        losses = self.function(model, x, y)
        return self.weight * (losses - losses.mean() if self.mixes else losses)

    def method(self, model, x, y):
        return self(model, x, y)


def exchange_function(clipper, model, loss):
    loss.function = hardest


def exchange_flag(clipper, model, loss):
    loss.mixes = True


def exchange_loss(clipper, model, loss):
    clipper.loss_fn = hardest


def exchange_module(clipper, model, loss):
    model[1] = Between(lambda x: x - x.mean(0))


@pytest.mark.parametrize("how", ["object", "method", "partial", "closure"])
@pytest.mark.parametrize(
    "exchange", [exchange_function, exchange_flag, exchange_loss, exchange_module]
)
def test_a_change_is_seen_at_the_next_batch(exchange, how, generator):
    model = network(lambda x: x)
    loss = Swapped()

    def closure(model, x, y):
        return loss(model, x, y)

    loss_fn = {
        "object": loss,
        "method": loss.method,
        "partial": functools.partial(loss.method),
        "closure": closure,
    }
    clipper = GradientClipper(model, loss_fn[how], clipping=Clipping())
    for step in (1, 3, 5):
        list(clipper(make_batch(40, generator), step=step))
    exchange(clipper, model, loss)
    with pytest.raises(DpvdError, match="mixes examples"):
        list(clipper(make_batch(40, generator), step=7))


def test_a_variable_that_the_loss_closes_over_is_watched(generator):
    inner = losses_of

    def loss(model, x, y):
        return inner(model, x, y)

    clipper = GradientClipper(network(), loss, clipping=Clipping())
    list(clipper(make_batch(40, generator)))
    inner = contrastive
    with pytest.raises(DpvdError, match="mixes examples"):
        list(clipper(make_batch(40, generator), step=3))


def test_a_verdict_is_not_carried_over_to_another_loss_of_the_same_code(generator):
    def make(function):
        return lambda model, x, y: function(model, x, y)

    model = network()
    batch = make_batch(40, generator)
    clipped_grad(model, make(losses_of), batch, clipping=Clipping())
    with pytest.raises(DpvdError, match="mixes examples"):
        clipped_grad(model, make(hardest), batch, clipping=Clipping())


def test_the_mode_of_a_module_in_the_loss_is_watched(generator):
    norm = nn.BatchNorm1d(CLASSES, affine=False).double().eval()

    def loss(model, x, y):
        return F.cross_entropy(norm(model(x)), y, reduction="none")

    clipper = GradientClipper(network(), loss, clipping=Clipping())
    list(clipper(make_batch(8, generator)))
    norm.train()
    with pytest.raises(DpvdError, match=r"mixes examples|running_mean"):
        list(clipper(make_batch(8, generator), step=3))


def test_mixing_that_begins_unseen_is_found_by_the_next_check(generator):
    """A number that changes is not watched: a schedule changes it in every step."""
    loss = Swapped()
    strength = [0.0]
    loss.function = lambda model, x, y: losses_of(model, x, y) * (1 + strength[0] * x.mean())
    clipper = GradientClipper(network(), loss, clipping=Clipping())
    list(clipper(make_batch(40, generator), step=1))
    strength[0] = 1.0
    list(clipper(make_batch(40, generator), step=3))
    # a later check replaces the others, or takes fewer of them: either shows it
    with pytest.raises(DpvdError, match=r"mixes examples|how many examples"):
        list(clipper(make_batch(40, generator), step=4))


def test_checks_are_spread_over_the_run(generator, monkeypatch):
    checked = []

    def note(subject, batch, *, thorough, is_random):
        checked.append((len(batch.tensors[0]), thorough))
        return accept_all(subject, batch, thorough=thorough, is_random=is_random)

    monkeypatch.setattr("dpvd.grads.clipper.examine", note)
    clipper = GradientClipper(network(), losses_of, clipping=Clipping())
    batch = make_batch(50, generator)
    for step in range(1, 601):
        list(clipper(batch, step=step))
    assert checked == [(50, True)] + [(32, False)] * 9  # at 2, 4, ..., 256 and 512
    assert clipper.describe_isolation() == "examples' isolation checked on 10 of 600 batches"


def test_gradients_formed_alone_take_what_mixes(generator):
    model = network()
    batch = make_batch(12, generator)
    clipper = GradientClipper(model, mixup, clipping=Clipping(), isolation=Isolation.VMAP)
    (found,) = clipper(batch)
    truth = clipped_grad(model, losses_of, batch, clipping=Clipping(), engine="loop")
    torch.testing.assert_close(found.norms, truth.norms)  # alone, an example is its own partner
    assert clipper.describe_isolation() == "each example's gradient formed alone (torch.func)"
    with pytest.raises(DpvdError, match="leave the engine to 'auto'"):
        GradientClipper(model, mixup, clipping=Clipping(), isolation="vmap", engine="factored")


@pytest.mark.parametrize("engine", ["vmap", "loop"])
def test_gradients_formed_alone_do_not_see_what_a_loss_writes_into_the_batch(engine, generator):
    def shifted(model, x, y):
        x += 10 * x.mean(0)
        return losses_of(model, x, y)

    model = network()
    x, y = make_batch(12, generator)
    x[0] += 1000
    clipping = Clipping("flat", clip_norm=1.0)
    sums = [
        clipped_grad(
            model,
            shifted,
            (x[first:].clone(), y[first:]),
            clipping=clipping,
            engine=engine,
            isolation="vmap",
        )
        for first in (0, 1)
    ]
    moved = sum(
        (sums[0].grads[name] - sums[1].grads[name]).square().sum() for name in sums[0].grads
    )
    assert float(moved) <= 1.0


def test_nothing_is_left_changed_by_a_check(generator):
    private = torch.Generator().manual_seed(5)
    model = network(Counter(), lambda x: x + torch.randn(x.shape, generator=private, dtype=x.dtype))
    batch = make_batch(8, generator)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    before = model[1].calls.clone()
    own = private.get_state()
    clipper = GradientClipper(model, losses_of, clipping=Clipping())
    with torch.no_grad():
        clipper.current_grouping()
    list(clipper(batch))
    assert model[1].calls == before + 1
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1]  # noqa: NPY002
    assert torch.equal(states[0], after[0])
    assert states[1] == after[1]
    assert (states[2] == after[2]).all()
    private.set_state(own)
    torch.testing.assert_close(batch[0], make_batch(8, torch.Generator().manual_seed(20170))[0])


def test_the_sensitivity_follows_a_layer_that_is_unfrozen(generator):
    model = network()
    model[0].requires_grad_(False)
    clipper = GradientClipper(model, cross_entropy, clipping=Clipping("per-layer", 1.0))
    assert clipper.sensitivity("add-or-remove") == pytest.approx(1.0)
    list(clipper(make_batch(4, generator)))
    model[0].requires_grad_(True)
    assert clipper.sensitivity("add-or-remove") == pytest.approx(2**0.5)
    (found,) = clipper(make_batch(4, generator))
    assert found.norms.shape == (4, 2)
