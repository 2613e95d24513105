"""Parameters without a batch dimension: per-example gradients from where they meet the batch."""

import logging

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

import dpvd
from dpvd.errors import DpvdError
from dpvd.grads import Clipping, GradientClipper, clipped_grad
from dpvd.grads.batch import Batch, as_batch
from dpvd.grads.clipping import ClippingMode, Grouping
from dpvd.grads.factored import ModelLayout
from dpvd.grads.factored.layout import IRREGULAR, batch_dim, split_batch
from dpvd.grads.isolation import Subject, look_around
from dpvd.grads.isolation.runs import undisturbed
from dpvd.grads.isolation.trial import Trial

FEATURES, LENGTH, WIDTH, CLASSES = 4, 6, 8, 3


class Network(nn.Module):
    """A head over what a subclass makes of a batch of sequences [B, T, features]."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(FEATURES, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(self.into(x))).mean(1))

    def body(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class Positions(Network):
    """Learned positions, one way for each place a batch dimension can be missing in."""

    def __init__(self) -> None:
        super().__init__()
        self.bare = nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.with_batch_of_one = nn.Parameter(torch.randn(1, LENGTH, WIDTH))
        self.table = nn.Embedding(LENGTH, WIDTH)
        self.other = nn.Embedding(LENGTH, WIDTH)

    def body(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        x = x * self.bare + self.with_batch_of_one
        x += self.table(places)  # [T, d], written over the batch
        return torch.sin(x) - self.other(places.unsqueeze(0)) + self.table(places.flip(0))


class Tokens(Network):
    """A class token by expand, another by repeat, a mask token by where, one written in."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("first", "last", "masked", "written"):
            setattr(self, name, nn.Parameter(torch.randn(1, 1, WIDTH)))

    def body(self, x: Tensor) -> Tensor:
        hidden = (x.sum(-1, keepdim=True) > 0).detach()
        x = torch.where(hidden, self.masked, x)
        parts = [self.first.expand(len(x), -1, -1), x, self.last.repeat(len(x), 1, 1)]
        x = torch.cat(parts, 1)
        x = torch.sin(x)
        x[:, 2] = self.written[0, 0]
        return x


class RelativeBias(Network):
    """A bias for each distance, computed once and used by two attentions."""

    def __init__(self) -> None:
        super().__init__()
        self.distances = nn.Embedding(2 * LENGTH, 2)
        self.maps = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.register_buffer("apart", torch.arange(LENGTH)[:, None] - torch.arange(LENGTH) + LENGTH)

    def body(self, x: Tensor) -> Tensor:
        bias = self.distances(self.apart).permute(2, 0, 1).unsqueeze(0)  # [1, heads, T, T]
        for into in self.maps:
            shape = (len(x), LENGTH, 2, -1)
            q, k, v = (part.reshape(shape).transpose(1, 2) for part in into(x).chunk(3, -1))
            weights = (q @ k.mT + bias).softmax(-1)
            fused = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            x = x + (weights @ v + fused).transpose(1, 2).reshape(x.shape)
        return x


class SequenceFirst(Network):
    """The batch is second, as torch's own transformer has it by default."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(LENGTH, 1, WIDTH))
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def body(self, x: Tensor) -> Tensor:
        across = x.transpose(0, 1) * self.places
        return self.norm(self.inner(across)).transpose(0, 1)


class Flattened(Network):
    """Examples and positions in one dimension, in layers with and without a rule for it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.gain = nn.Parameter(torch.randn(WIDTH))
        self.conv = nn.Conv1d(1, 2, 3, padding=1)
        self.norm = nn.GroupNorm(1, 2)

    def body(self, x: Tensor) -> Tensor:
        flat = self.inner(x.flatten(0, 1)) * self.gain  # [B T, d]
        seen = self.norm(self.conv(flat.unsqueeze(1)))  # [B T, 2, d]
        return seen.sum(1).view(x.shape)


class Products(Network):
    """Weights that are no layer's: by matmul, linear, addmm, transposed, and looked up."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("right", "left", "turned", "added"):
            setattr(self, name, nn.Parameter(torch.randn(WIDTH, WIDTH) / 3))
        self.shift = nn.Parameter(torch.randn(WIDTH))
        self.rows = nn.Parameter(torch.randn(5, WIDTH))

    def body(self, x: Tensor) -> Tensor:
        chosen = (x[..., 0].detach() > 0).long() * 3
        x = torch.tanh(x @ self.right + F.linear(x, self.left, self.shift))
        x = torch.tanh(x @ self.turned.T) + self.rows[chosen]
        x = x + F.embedding(chosen + 1, self.rows, padding_idx=1)
        flat = torch.addmm(self.shift, x.view(-1, WIDTH), self.added)
        return flat.view(x.shape)


class Shared(Network):
    """A network that makes weights for another, from a vector that it learns."""

    def __init__(self) -> None:
        super().__init__()
        self.code = nn.Parameter(torch.randn(3))
        self.maker = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, WIDTH * WIDTH))

    def body(self, x: Tensor) -> Tensor:
        return F.linear(x, self.maker(self.code).view(WIDTH, WIDTH))


class TwoWays(Network):
    """A vector that meets the batch twice, once as it is and once after a function of it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(WIDTH))

    def body(self, x: Tensor) -> Tensor:
        return torch.sin(x * self.scale) + self.scale.exp()


class UsedFromOutside(Network):
    """A head tied by hand, and a table that is read without being called."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Embedding(LENGTH, WIDTH)

    def body(self, x: Tensor) -> Tensor:
        asked = self.queries.weight.unsqueeze(1).repeat(1, len(x), 1)  # [T, B, d]
        back = F.linear(x, self.into.weight.T)
        return x * asked.transpose(0, 1) + self.into(back)


class Parametrised(Network):
    """Weights that are computed from others."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = weight_norm(nn.Linear(WIDTH, WIDTH))
        self.conv = weight_norm(nn.Conv1d(WIDTH, WIDTH, 3, padding=1))

    def body(self, x: Tensor) -> Tensor:
        return self.conv(torch.tanh(self.dense(x)).mT).mT


class Checkpointed(Network):
    """A block that is computed again in the backward pass."""

    def __init__(self, reentrant: bool = False) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.reentrant = reentrant

    def body(self, x: Tensor) -> Tensor:
        def block(x: Tensor) -> Tensor:
            return torch.tanh(self.inner(x * self.places))

        return checkpoint(block, x, use_reentrant=self.reentrant)


class RecurrentCell(Network):
    """A cell of the user's own in a loop over positions, from a state that is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(WIDTH, WIDTH)
        self.start = nn.Parameter(torch.randn(WIDTH))

    def body(self, x: Tensor) -> Tensor:
        state = self.start.expand(len(x), WIDTH)
        states = []
        for part in x.unbind(1):
            state = self.cell(part, state)
            states.append(state)
        return torch.stack(states, 1)


NETWORKS = [
    Positions,
    Tokens,
    RelativeBias,
    SequenceFirst,
    Flattened,
    Products,
    Shared,
    TwoWays,
    UsedFromOutside,
    Parametrised,
    Checkpointed,
    RecurrentCell,
]


def make_batch(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, LENGTH, FEATURES, generator=generator, dtype=torch.float64)
    return x, torch.randint(CLASSES, (count,), generator=generator)


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def assert_equals_loop(model: nn.Module, loss, batch, mode: str = "flat") -> None:
    clipping = Clipping(mode, clip_norm=0.7)
    clipper = GradientClipper(model, loss, clipping=clipping)
    (ours,) = clipper(batch)
    assert clipper.engine == "factored", clipper.passed_over
    truth = clipped_grad(model, loss, batch, clipping=clipping, engine="loop")
    torch.testing.assert_close(ours.norms, truth.norms, rtol=1e-10, atol=1e-10)
    totals = {name: torch.zeros_like(total) for name, total in truth.grads.items()}
    ours.add_to(totals)
    torch.testing.assert_close(totals, truth.grads, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("mode", ["flat", "per-layer"])
@pytest.mark.parametrize("make", NETWORKS)
def test_what_examples_share_gets_the_gradients_of_the_loop(make, mode, generator):
    """With as many examples as positions, and with fewer."""
    model = make().double()
    for count in (LENGTH, 3):
        assert_equals_loop(model, cross_entropy, make_batch(count, generator), mode)


def test_micro_batches_of_any_size(generator):
    model = Tokens().double()
    batch = make_batch(7, generator)
    truth = clipped_grad(model, cross_entropy, batch, clipping=Clipping(), engine="loop")
    for size in (1, 2, 3, 6):
        ours = clipped_grad(
            model, cross_entropy, batch, clipping=Clipping(), engine="factored", micro_batch=size
        )
        torch.testing.assert_close(ours.norms, truth.norms, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(ours.grads, truth.grads, rtol=1e-10, atol=1e-10)


def test_a_penalty_on_weights_inside_the_loss_is_part_of_every_gradient(generator):
    """However small: it is found in the graph, not by comparing numbers."""

    def penalised(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, x, y) + 1e-9 * model.into.weight.square().sum()

    model = Positions().double()
    batch = make_batch(5, generator)
    assert_equals_loop(model, penalised, batch)
    ours = clipped_grad(model, penalised, batch, clipping=Clipping(), engine="factored")
    without = clipped_grad(model, cross_entropy, batch, clipping=Clipping(), engine="factored")
    assert not torch.equal(ours.grads["into.weight"], without.grads["into.weight"])


def test_a_penalty_on_weights_that_the_loss_holds_itself_is_left_to_another_engine(generator):
    model = Positions().double()
    held = list(model.parameters())

    def penalised(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, x, y) + 0.1 * sum(p.square().sum() for p in held)

    batch = make_batch(5, generator)
    with pytest.raises(DpvdError, match="reaches the loss on a way that could not be followed"):
        clipped_grad(model, penalised, batch, clipping=Clipping(), engine="factored")
    ours = clipped_grad(model, penalised, batch, clipping=Clipping())
    truth = clipped_grad(model, penalised, batch, clipping=Clipping(), engine="loop")
    torch.testing.assert_close(ours.norms, truth.norms, rtol=1e-10, atol=1e-10)


def test_reentrant_checkpoints_are_refused_with_a_remedy(generator):
    model = Checkpointed(reentrant=True).double()
    batch = make_batch(4, generator)
    with pytest.raises(DpvdError, match="use_reentrant=False"):
        clipped_grad(model, cross_entropy, batch, clipping=Clipping())


class MixesThroughItsParameter(Network):
    """Positions that are shifted by the mean of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH))

    def body(self, x: Tensor) -> Tensor:
        return x + self.places * x.mean(0)


def test_mixing_where_a_parameter_meets_the_batch_is_refused(generator):
    with pytest.raises(DpvdError, match="mixes examples"):
        clipped_grad(
            MixesThroughItsParameter().double(),
            cross_entropy,
            make_batch(5, generator),
            clipping=Clipping(),
        )


def test_a_parameter_that_appears_in_a_new_place_is_not_forgotten(generator):
    """What was never surveyed is not guessed: the next engine takes that batch."""

    class Sometimes(Network):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.randn(WIDTH))

        def body(self, x: Tensor) -> Tensor:
            x = x * self.gain
            return x if x.shape[1] < 5 else torch.maximum(x, self.gain)

    model = Sometimes().double()
    clipper = GradientClipper(model, cross_entropy, clipping=Clipping())
    for length in (4, 6):
        x, y = make_batch(5, generator)
        batch = x[:, :length], y
        (ours,) = clipper(batch)
        truth = clipped_grad(model, cross_entropy, batch, clipping=Clipping(), engine="loop")
        torch.testing.assert_close(ours.norms, truth.norms, rtol=1e-10, atol=1e-10)


class Routed(Network):
    """Tokens sorted by what they hold, as experts get them, before a weight that hardly counts."""

    def __init__(self) -> None:
        super().__init__()
        self.expert = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def body(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)  # [B T, d]
        order = tokens[:, 0].argsort()
        routed = tokens[order] @ self.expert
        return x + 1e-3 * routed[order.argsort()].view(x.shape)


def test_rows_of_others_in_a_small_part_of_the_network_are_noticed(generator, caplog):
    model = Routed()
    x, y = make_batch(6, generator)
    with caplog.at_level(logging.INFO, logger="dpvd"):
        ours = clipped_grad(model, cross_entropy, (x.float(), y), clipping=Clipping())
    assert "per-example norms differ from those of the oracle" in caplog.text
    truth = clipped_grad(model, cross_entropy, (x.float(), y), clipping=Clipping(), engine="loop")
    torch.testing.assert_close(ours.norms, truth.norms)


def test_children_of_a_module_that_owns_a_parameter_keep_their_rules(generator, caplog):
    model = Positions()
    with caplog.at_level(logging.INFO, logger="dpvd"):
        found = dpvd.check(model.double(), make_batch(4, generator), cross_entropy)
    ways = {report.module: report.engine for report in found.modules}
    assert ways[""] == "followed to the batch"
    assert ways["into"] == ways["table"] == ways["head"] == "rule"
    assert sum(report.share for report in found.modules) == pytest.approx(1)
    assert "cannot take" not in caplog.text


@pytest.mark.parametrize(
    ("few", "more", "expected"),
    [
        ((3, 7), (4, 7), 0),
        ((7, 3), (7, 4), 1),
        ((21, 2), (28, 2), 0),
        ((1, 7), (1, 7), None),
        ((3, 3), (4, 4), IRREGULAR),
        ((4, 2), (5, 2), IRREGULAR),
        ((3,), (4, 1), IRREGULAR),
    ],
)
def test_the_batch_is_what_grows_with_the_examples(few, more, expected):
    assert batch_dim(torch.Size(few), torch.Size(more), (3, 4)) == expected


def test_rows_of_one_example_stand_together():
    flattened = torch.tensor([[10, 11], [20, 21], [30, 31]]).flatten()
    assert split_batch(flattened, 0, 3).tolist() == [[10, 11], [20, 21], [30, 31]]


class BatchSecond(nn.Module):
    """Looks up words with the positions first: as many as there are examples."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        found: Tensor = self.table(words.T)  # [T, B, 3]
        return found.sum(0)


def test_rows_of_others_with_the_same_norm_are_noticed():
    model = BatchSecond().double()
    grouping = Grouping.of(model, ClippingMode.FLAT, ModelLayout.of(model))
    subject = Subject(model, lambda network, words: network(words).sum(1), grouping)
    words = as_batch((torch.tensor([[0, 1], [2, 3]]),))
    # Not surveyed: time steps are taken for examples, and every norm is right all the same.
    assert "point elsewhere" in _asked(subject, words)
    look_around(subject, words, None)
    assert _asked(subject, words) == ""


def _asked(subject: Subject, batch: Batch) -> str:
    """Why the oracle is against the factored engine."""
    with undisturbed(subject) as start:
        trial = Trial(subject, batch, start)
        trial.ask_oracle(4)
        return trial.why_not
