"""Every form of a product of factors has the same norms and sums, whatever may be kept."""

import math

import pytest
import torch
from torch import nn

from dpvd.errors import DpvdError
from dpvd.grads import Clipping, Engine, GradientClipper, clipped_grad
from dpvd.grads.factored import represent as module
from dpvd.grads.factored.represent import (
    Form,
    Formed,
    Gram,
    Materialised,
    Recomputed,
    Reordered,
    cheapest_form,
    represent,
)
from dpvd.grads.factored.rule import Convolved, Direct, Lookup, Outer
from dpvd.grads.factored.rules.conv import Kernel
from dpvd.grads.per_example import Allowance, GramMatrix, InnerProducts

from .conformance import normal, randomised, squares

B = 6


def dense(generator, positions=9, groups=1) -> Outer:
    left, right = (normal((B, positions, width), generator) for width in (8, 12))
    return Outer(left, right, groups=groups)


def convolved(generator, groups=1, size=5) -> Convolved:
    layer = nn.Conv2d(4, 6, (3, 2), padding=(1, 0), groups=groups).double()
    x = normal((B, 4, size, size), generator)
    return Convolved(x, torch.randn_like(layer(x)), Kernel.of(layer))


PRODUCTS = {
    "dense": dense,
    "dense, many positions": lambda generator: dense(generator, positions=70),
    "dense, in blocks": lambda generator: dense(generator, groups=4),
    "convolution": convolved,
    "convolution, in blocks": lambda generator: convolved(generator, groups=2),
}
FORMS = {"gram": Gram, "formed": Formed}


def materialised(term) -> torch.Tensor:
    return term.materialised().flatten(1)


def summed(gradients, weights, shape) -> torch.Tensor:
    total = torch.ones(shape, dtype=torch.float64)
    gradients.add_sum(weights, total)
    return total.flatten() - 1


def shape_of(term) -> tuple[int, ...]:
    if isinstance(term, Convolved):
        return tuple(term.geometry.shape)
    return (term.left.shape[-1], term.right.shape[-1] // term.groups)


@pytest.mark.parametrize("chunk", [1, 50, 1 << 20])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_norms_and_sums_are_those_of_the_gradients(product, form, chunk, generator, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_ENTRIES", chunk)
    monkeypatch.setattr(module, "CACHED_ENTRIES", chunk)
    term = PRODUCTS[product](generator)
    weights, some = torch.rand(B, generator=generator).double(), torch.tensor([4, 0, 3])
    truth, found = materialised(term), FORMS[form](term)
    for gradients, own, expected in (
        (found, weights, truth),
        (found.only(some), weights[some], truth[some]),
    ):
        norms = gradients.norms(InnerProducts())
        torch.testing.assert_close(norms.squared, expected.square().sum(1), rtol=1e-10, atol=0)
        total = summed(gradients, own, shape_of(term))
        torch.testing.assert_close(total, own @ expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("kept", [0, 500, 10**9])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_is_the_same_whatever_is_kept(groups, kept, scaled, generator):
    term = convolved(generator, groups)
    divisor = None
    if scaled:
        divisor = 0.5 + torch.rand(term.geometry.shape, generator=generator).double()
        truth = materialised(term) / divisor.flatten()
    else:
        truth = materialised(term)
    found = represent([term], divisor, allowance=Allowance(kept))
    weights = torch.rand(B, generator=generator).double()
    squared = found.norms(InnerProducts()).squared
    torch.testing.assert_close(squared, truth.square().sum(1), rtol=1e-10, atol=0)
    total = summed(found, weights, shape_of(term))
    torch.testing.assert_close(total, weights @ truth, rtol=1e-10, atol=1e-12)


def test_terms_without_a_common_form_are_added_up_a_few_at_a_time(generator, monkeypatch):
    """As those of a table that is tied to a head: lookups and products."""
    monkeypatch.setattr(module, "CHUNK_ENTRIES", 2 * 8 * 12)
    index = torch.randint(8, (B, 3), generator=generator)
    terms = [
        Lookup(index, normal((B, 3, 12), generator), 8),
        dense(generator),
        Direct(normal((B, 8, 12), generator)),
    ]
    truth = sum(materialised(term) for term in terms)
    for allowance in (Allowance(0), Allowance(10**9)):
        found = represent(terms, allowance=allowance)
        assert isinstance(found, Recomputed)
        squared = found.norms(InnerProducts()).squared
        torch.testing.assert_close(squared, truth.square().sum(1), rtol=1e-10, atol=0)
        weights = torch.rand(B, generator=generator).double()
        total = summed(found, weights, (8, 12))
        torch.testing.assert_close(total, weights @ truth, rtol=1e-10, atol=1e-12)
        assert len(found.saved) == (0 if allowance.room == 0 else 3)


@pytest.mark.parametrize(
    ("positions", "out", "into", "form"),
    [
        (2, 100, 100, Form.GRAM),  # 2² · 200 multiplications beside the sum
        (64, 256, 1024, Form.GRAM),  # a transformer's: 64² · 1280 against 64 · 2¹⁸
        (1000, 100, 100, Form.KEPT),
        (90, 8, 8, Form.KEPT),  # 80 · 8² against 90² · 16
    ],
)
def test_the_cheapest_form_follows_from_the_shapes(positions, out, into, form):
    term = Outer(torch.ones(2, positions, out), torch.ones(2, positions, into))
    assert cheapest_form(term, room=10**9) is form
    without_room = cheapest_form(term, room=0)
    assert without_room is (Form.GRAM if form is Form.GRAM else Form.FORMED)


@pytest.mark.parametrize(
    ("channels", "out", "size", "form"),
    [
        (16, 32, 12, Form.KEPT),  # 10⁴ · 176 multiplications against 5 · 4608
        (128, 128, 4, Form.GRAM),  # 2⁴ · 1280 against 5 · 147456
    ],
)
def test_kernels_are_kept_sooner_than_dense_weights(channels, out, size, form):
    layer = nn.Conv2d(channels, out, 3)
    x = torch.ones(2, channels, size, size)
    term = Convolved(x, layer(x).detach(), Kernel.of(layer))
    assert cheapest_form(term, room=10**9) is form
    assert cheapest_form(term, room=0) is not Form.KEPT


def test_inner_products_that_are_there_already_cost_nothing(generator):
    term = dense(generator, positions=90)
    assert cheapest_form(term, room=10**9) is Form.KEPT
    both = {module.identity(term.left), module.identity(term.right)}
    assert cheapest_form(term, both, room=10**9) is Form.GRAM
    terms = {"query": [term], "key": [Outer(term.left + 1, term.right)]}
    assert module.shared_factors(terms) == {module.identity(term.right)}


@pytest.mark.parametrize("positions", [1, 2, 31, 32, 33, 64])
def test_gram_matrices_in_two_halves_are_whole(positions, generator):
    rows, others = (normal((B, 2, positions, 5), generator) for _ in range(2))
    found, other = GramMatrix.of(rows), GramMatrix.of(others)
    whole, other_whole = rows @ rows.mT, others @ others.mT
    torch.testing.assert_close(found.diagonal(), whole.diagonal(dim1=2, dim2=3))
    torch.testing.assert_close(found.inner(other), (whole * other_whole).sum((1, 2, 3)))


# What is kept


class Wide(nn.Module):
    """Layers whose per-example gradients are many times as large as everything else."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 16, 3, padding=1)
        self.table = nn.Embedding(50, 16)
        self.layers = nn.Sequential(*(nn.Linear(16, 16) for _ in range(3)))
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.table.weight  # tied

    def forward(self, x, index):
        hidden = self.conv(x).mT + self.table(index)
        return self.head(self.layers(hidden)).sum(2)


def wide_batch(generator, positions=100):
    x = normal((B, 8, positions), generator)
    return x, torch.randint(50, (B, positions), generator=generator)


def kept_bytes(part) -> int:
    """What a result holds that is neither an input nor a gradient at an output."""
    kept = 0
    for gradient in part.gradients.values():
        inner = gradient.gradients if isinstance(gradient, Reordered) else gradient
        if isinstance(inner, Materialised):
            kept += inner.values.nbytes
        if isinstance(inner, Recomputed):
            kept += sum(rows.nbytes for rows in inner.saved.values())
    return kept


@pytest.mark.parametrize("kept_mb", [0.0, 0.02, 0.1, 64.0])
def test_no_more_is_kept_than_is_allowed_and_the_result_is_the_same(kept_mb, generator):
    model = randomised(Wide(), generator)
    batch = wide_batch(generator)
    truth = clipped_grad(model, squares, batch, clipping=Clipping(), engine=Engine.LOOP)
    clipper = GradientClipper(
        model, squares, clipping=Clipping(), engine=Engine.FACTORED, kept_mb=kept_mb
    )
    (part,) = clipper(batch)
    biases = sum(B * p.numel() * 8 for n, p in model.named_parameters() if n.endswith("bias"))
    kept = kept_bytes(part)
    assert kept <= max(kept_mb * 1e6, biases)
    assert (kept > biases) is (kept_mb * 1e6 > 2 * biases), "nothing is ever kept"
    torch.testing.assert_close(part.norms, truth.norms, rtol=1e-10, atol=1e-10)
    totals = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    part.add_to(totals)
    for name, expected in truth.grads.items():
        torch.testing.assert_close(totals[name], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("engine", [Engine.VMAP, Engine.LOOP])
@pytest.mark.parametrize(("room", "sizes"), [(0.0, [1] * 5), (2.5, [2, 2, 1]), (64.0, [5])])
def test_gradients_that_are_all_stored_are_formed_for_as_many_as_have_room(
    engine, room, sizes, generator
):
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    one = sum(parameter.nbytes for parameter in model.parameters())
    batch = (normal((5, 6), generator),)
    truth = clipped_grad(model, row_squares, batch, clipping=Clipping(), engine="factored")
    clipper = GradientClipper(
        model, row_squares, clipping=Clipping(), engine=engine, kept_mb=room * one / 1e6
    )
    norms = []
    totals = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for part in clipper(batch):
        assert kept_bytes(part) == len(part.norms) * one
        norms.append(part.norms)
        part.add_to(totals)
    assert [len(part) for part in norms] == sizes
    torch.testing.assert_close(torch.cat(norms), truth.norms, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(totals, truth.grads, rtol=1e-10, atol=1e-10)


def row_squares(model, x):
    return model(x).square().sum(1)


class Unbatched(nn.Module):
    """Takes one example at a time from some batch on, which torch.func cannot see beforehand."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.asks = False

    def forward(self, x):
        if self.asks and float(x.sum()) > 1e9:  # a number that torch.func does not have
            raise AssertionError
        return self.layer(x)


def test_an_engine_that_fails_on_the_way_leaves_all_of_the_batch_to_the_next(generator):
    model = Unbatched().double()
    one = sum(parameter.nbytes for parameter in model.parameters())
    clipper = GradientClipper(
        model, row_squares, clipping=Clipping(), isolation="vmap", kept_mb=2 * one / 1e6
    )
    batch = (normal((5, 6), generator),)
    assert [len(part.norms) for part in clipper(batch)] == [2, 2, 1]
    assert clipper.engine is Engine.VMAP
    model.asks = True
    totals = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for part in clipper(batch, step=3):
        part.add_to(totals)
    assert clipper.engine is Engine.LOOP
    truth = clipped_grad(model, row_squares, batch, clipping=Clipping(), engine="factored")
    torch.testing.assert_close(totals, truth.grads, rtol=1e-10, atol=1e-10)


def test_one_allowance_is_for_all_parameters():
    allowance = Allowance(100)
    assert allowance.take(60)
    assert not allowance.take(60)
    assert allowance.take(40)
    assert allowance.room == 0


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_an_allowance_that_is_none_is_refused(bad):
    with pytest.raises(DpvdError, match="kept_mb"):
        GradientClipper(nn.Linear(2, 2), squares, clipping=Clipping(), kept_mb=bad)
