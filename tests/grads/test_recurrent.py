"""Recurrent layers through the factored engine equal the oracle, whatever their shape and use."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.errors import DpvdError
from dpvd.grads import Clipping, ClippingMode, Engine, clipped_grad
from dpvd.nn import AdditiveGRU, AdditiveLSTM, AdditiveRNN
from tests.grads.test_engines import assert_equal, run

KINDS = {
    "RNN": nn.RNN,
    "RNN relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
    "GRU": nn.GRU,
    "LSTM": nn.LSTM,
    "LSTM projected": lambda i, hidden, **options: nn.LSTM(
        i, hidden + 1, proj_size=hidden, **options
    ),
}
ADDITIVE = {"RNN": AdditiveRNN, "GRU": AdditiveGRU, "LSTM": AdditiveLSTM}
USES = ("outputs", "last state", "both")
INPUTS, CLASSES = 3, 3


class Reader(nn.Module):
    """A recurrent layer and a dense head on what it returns: its outputs, its last state, or
    both.
    """

    def __init__(self, layer: nn.RNNBase, use: str = "outputs", given_state: bool = False) -> None:
        super().__init__()
        self.layer, self.use, self.given_state = layer, use, given_state
        self.head = nn.LazyLinear(CLASSES, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, in]
        count = len(x)
        sequence = x if self.layer.batch_first else x.transpose(0, 1)
        outputs, state = (
            self.layer(sequence, self.state(x)) if self.given_state else self.layer(sequence)
        )
        outputs = outputs if self.layer.batch_first else outputs.transpose(0, 1)
        parts = torch.cat([part.transpose(0, 1).reshape(count, -1) for part in _tuple(state)], 1)
        features = {"outputs": outputs.sin().sum(1), "last state": parts}
        return self.head(
            torch.cat(list(features.values()), 1) if self.use == "both" else features[self.use]
        )

    def state(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        """A start that differs from example to example."""
        layers = self.layer.num_layers * (2 if self.layer.bidirectional else 1)
        one = (
            x.sum((1, 2))
            .tanh()
            .reshape(1, -1, 1)
            .expand(layers, -1, self.layer.hidden_size)
            .contiguous()
        )
        if not isinstance(self.layer, nn.LSTM):
            return one
        return one[:, :, : self.layer.proj_size or None], -one


def _tuple(state: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def make_batch(count: int, steps: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, steps, INPUTS, generator=generator, dtype=torch.float64)
    return x, torch.randint(CLASSES, (count,), generator=generator)


def make(
    kind: str,
    hidden: int = 4,
    *,
    use: str = "outputs",
    given_state: bool = False,
    **options: object,
) -> Reader:
    return make_from(KINDS[kind](INPUTS, hidden, dtype=torch.float64, **options), use, given_state)


def make_from(layer: nn.RNNBase, use: str = "outputs", given_state: bool = False) -> Reader:
    """The layer, with weights that do not change from run to run, and a head of the size it
    needs.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer.reset_parameters()
        model = Reader(layer, use, given_state)
        model(torch.zeros(1, 2, INPUTS, dtype=torch.float64))
    return model


@pytest.mark.parametrize("mode", ClippingMode)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_use_and_mode_equals_the_oracle(kind, use, mode, generator):
    model, batch = make(kind, use=use), make_batch(5, 6, generator)
    clipping = Clipping(mode, clip_norm=0.5)
    truth = run(Engine.LOOP, model, loss, batch, clipping)
    assert truth.grads["layer.weight_hh_l0"].abs().max() > 1e-3
    assert_equal(run(Engine.FACTORED, model, loss, batch, clipping), truth)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    use=st.sampled_from(USES),
    count=st.integers(0, 5),
    steps=st.integers(1, 7),
    hidden=st.integers(1, 6),
    depth=st.integers(1, 3),
    bidirectional=st.booleans(),
    bias=st.booleans(),
    batch_first=st.booleans(),
    given_state=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_any_shape_equals_the_oracle(
    kind, use, count, steps, hidden, depth, bidirectional, bias, batch_first, given_state, seed
):
    model = make(
        kind,
        hidden,
        use=use,
        given_state=given_state,
        num_layers=depth,
        bidirectional=bidirectional,
        bias=bias,
        batch_first=batch_first,
    )
    batch = make_batch(count, steps, torch.Generator().manual_seed(seed))
    truth = run(Engine.LOOP, model, loss, batch, Clipping())
    for engine in (Engine.FACTORED, Engine.AUTO):
        assert_equal(run(engine, model, loss, batch, Clipping()), truth)


def test_both_forms_of_the_norm_are_reached(generator):
    """Wide and short sequences take the Gram form, narrow and long ones are materialised."""
    for hidden, steps in ((12, 2), (2, 12)):
        model, batch = make("LSTM", hidden), make_batch(3, steps, generator)
        truth = run(Engine.LOOP, model, loss, batch, Clipping())
        assert_equal(run(Engine.FACTORED, model, loss, batch, Clipping()), truth)


def test_norms_of_single_steps_do_not_add_up_to_the_norm(generator):
    """Two steps that cancel: the gradient of a weight is the sum over time, and only its norm
    counts.
    """

    def difference(model, x, y):
        outputs, _ = model(x)
        return outputs[:, 0].sum(1) - outputs[:, 1].sum(1)

    model = nn.RNN(INPUTS, 4, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        model.weight_hh_l0.zero_()
        model.bias_hh_l0.zero_()
    model.weight_hh_l0.requires_grad_(False)
    x, y = make_batch(3, 1, generator)
    result = run(Engine.FACTORED, model, difference, (x.expand(-1, 2, -1), y), Clipping())
    assert result.norms.max() < 1e-6  # norms of single steps are near 1


@pytest.mark.parametrize("kind", KINDS)
def test_auto_takes_the_fast_engine(kind, generator, caplog):
    caplog.set_level("INFO", logger="dpvd")
    clipped_grad(make(kind, num_layers=2), loss, make_batch(4, 3, generator), clipping=Clipping())
    assert "cannot" not in caplog.text
    assert "no gradient rule" not in caplog.text


def test_a_layer_used_twice_and_frozen_weights(generator):
    class Twice(Reader):
        def forward(self, x):
            return super().forward(x) - super().forward(x.flip(1))

    model = make("GRU", use="both", num_layers=2)
    model.__class__ = Twice
    model.layer.weight_ih_l1.requires_grad_(False)
    batch = make_batch(4, 3, generator)
    truth = run(Engine.LOOP, model, loss, batch, Clipping())
    assert_equal(run(Engine.FACTORED, model, loss, batch, Clipping()), truth)
    assert "layer.weight_ih_l1" not in truth.grads


class Between(Reader):
    """Trained layers below: one makes the inputs, one the state at the start."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__(layer, "both", given_state=True)
        self.below = nn.Linear(INPUTS, INPUTS, dtype=torch.float64)
        self.beginning = nn.Linear(INPUTS, layer.hidden_size, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.below(x).tanh())

    def state(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        layers = self.layer.num_layers * (2 if self.layer.bidirectional else 1)
        one = self.beginning(x.mean(1)).expand(layers, -1, -1)
        if not isinstance(self.layer, nn.LSTM):
            return one
        return one[:, :, : self.layer.proj_size or None], one.sin()


@pytest.mark.parametrize(
    "layer_type", [*KINDS.values(), *(partial(kind, log_sigma2=-2.0) for kind in ADDITIVE.values())]
)
def test_gradients_go_on_to_inputs_and_to_the_first_state(layer_type, generator):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Between(
            layer_type(INPUTS, 4, num_layers=2, bidirectional=True, dtype=torch.float64)
        )
        batch = make_batch(4, 3, generator)
        model(batch[0])  # the head takes its size
    truth = run(Engine.LOOP, model, loss, batch, Clipping())
    assert all(truth.grads[f"{name}.weight"].abs().max() > 1e-4 for name in ("below", "beginning"))
    assert_equal(run(Engine.FACTORED, model, loss, batch, Clipping()), truth)


def test_a_layer_whose_outputs_are_not_used_gets_no_gradient(generator):
    """Only the first of two layers is read: δ of the second is zero, also where a scale covers
    both.
    """

    class First(Reader):
        def forward(self, x):
            return self.head(self.layer(x)[1][0])

    layer = AdditiveGRU(
        INPUTS, 4, num_layers=2, batch_first=True, log_sigma2=-2.0, dtype=torch.float64
    )
    model, batch = First(layer), make_batch(4, 3, generator)
    model(batch[0])
    truth = run(Engine.LOOP, model, loss, batch, Clipping())
    assert truth.grads["layer.weight_hh_l1"].abs().max() == 0
    assert_equal(run(Engine.FACTORED, model, loss, batch, Clipping()), truth)


@pytest.mark.parametrize("bad", [False, True])
def test_the_module_keeps_its_own_forward_pass(bad, generator):
    """The engine's own stands in only while it looks on, also when the model fails."""
    model, (x, y) = make("LSTM"), make_batch(4, 3, generator)
    own = model.layer.forward
    if bad:
        with pytest.raises(RuntimeError):
            clipped_grad(model, loss, (x[..., :2], y), clipping=Clipping(), engine="factored")
    else:
        clipped_grad(model, loss, (x, y), clipping=Clipping(), engine="factored")
    assert model.layer.forward == own
    assert "forward" not in vars(model.layer)


@pytest.mark.filterwarnings(
    "ignore:LSTM with projections"
)  # torch says which library it does not use then
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_dropout_between_layers_is_drawn_again(kind, dtype, generator):
    """The masks of the forward pass, not others: the unclipped sum is the ordinary gradient under
    the same seed.
    """
    model = make(kind, use="both", num_layers=3, dropout=0.5, bidirectional=True).to(dtype)
    x, y = make_batch(6, 4, generator)
    x = x.to(dtype)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        ours = clipped_grad(model, loss, (x, y), clipping=Clipping("none"), engine="factored")
        torch.manual_seed(5)
        expected = torch.autograd.grad(loss(model, x, y).sum(), list(model.parameters()))
    for gradient, truth in zip(ours.grads.values(), expected, strict=True):
        torch.testing.assert_close(gradient, truth)


def test_a_model_with_dropout_between_layers_is_checked_and_trains(generator, caplog):
    model = make("LSTM", num_layers=2, dropout=0.3)
    result = clipped_grad(model, loss, make_batch(4, 3, generator), clipping=Clipping())
    assert "cannot" not in caplog.text
    assert model.layer.dropout == 0.3
    assert torch.isfinite(result.norms).all()


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(sorted(ADDITIVE)),
    use=st.sampled_from(USES),
    rates=st.sampled_from(["layer", "neuron", "weight"]),
    learned=st.booleans(),
    pruned=st.booleans(),
    training=st.booleans(),
    count=st.integers(0, 5),
    steps=st.integers(1, 6),
    depth=st.integers(1, 2),
    bidirectional=st.booleans(),
    bias=st.booleans(),
    batch_first=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_noisy_layers_equal_the_oracle(
    kind,
    use,
    rates,
    learned,
    pruned,
    training,
    count,
    steps,
    depth,
    bidirectional,
    bias,
    batch_first,
    seed,
):
    shape = {
        "num_layers": depth,
        "bidirectional": bidirectional,
        "bias": bias,
        "batch_first": batch_first,
    }
    noise = {"rates": rates, "learned": learned, "log_sigma2": -2.0}
    model = make_from(ADDITIVE[kind](INPUTS, 4, dtype=torch.float64, **shape, **noise), use)
    if pruned:
        model.layer.prune(3.0)
        assert 0 < model.layer.kept.float().mean() < 1
    model.train(training)
    batch = make_batch(count, steps, torch.Generator().manual_seed(seed))
    truth = run(Engine.LOOP, model, loss, batch, Clipping())
    for engine in (Engine.FACTORED, Engine.AUTO):
        assert_equal(run(engine, model, loss, batch, Clipping()), truth)


@pytest.mark.parametrize("rates", ["layer", "neuron", "weight"])
@pytest.mark.parametrize("kind", ADDITIVE)
def test_learned_scales_get_gradients_from_the_fast_engine(kind, rates, generator, caplog):
    caplog.set_level("INFO", logger="dpvd")
    layer = ADDITIVE[kind](
        INPUTS, 4, rates=rates, log_sigma2=-2.0, batch_first=True, dtype=torch.float64
    )
    result = run(Engine.AUTO, make_from(layer), loss, make_batch(4, 5, generator), Clipping())
    assert "cannot" not in caplog.text
    assert result.grads["layer.log_sigma2"].abs().max() > 1e-4


class Packed(nn.Module):
    """Sequences of unequal length, packed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(INPUTS, CLASSES, batch_first=True, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        lengths = 1 + (x[:, 0, 0] > 0).long()
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        return self.layer(packed)[1][0][0]


def test_packed_sequences_have_no_rule_and_fall_back(generator):
    model, batch = Packed(), make_batch(4, 3, generator)
    with pytest.raises(DpvdError, match="dimension 3"):
        clipped_grad(model, loss, batch, clipping=Clipping(), engine="factored")
    truth = run(Engine.LOOP, model, loss, batch, Clipping())
    assert_equal(run(Engine.AUTO, model, loss, batch, Clipping()), truth)
