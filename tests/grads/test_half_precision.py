"""Autocast: norms, sums and noise are made in float32 from the numbers that arrive in bfloat16."""

import logging
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.grads import Clipping, Engine, GradientClipper
from dpvd.grads.factored import represent as module
from dpvd.grads.factored.represent import Formed, Gram, represent
from dpvd.grads.factored.rule import Convolved, Direct, Lookup, Outer
from dpvd.grads.factored.rules.conv import Kernel
from dpvd.grads.per_example import Allowance, InnerProducts
from dpvd.nn import variational
from dpvd.plan import PrivacyPlan
from dpvd.training import PrivateStep

EPS = torch.finfo(torch.float32).eps
B = 5


def half(*shape, generator) -> torch.Tensor:
    return torch.randn(*shape, generator=generator).bfloat16()


def outer(generator, positions):
    left, right = (half(B, positions, width, generator=generator) for width in (7, 9))
    return Outer(left, right)


def convolution(generator):
    layer = nn.Conv2d(3, 4, 3, padding=1)
    x = half(B, 3, 6, 6, generator=generator)
    return Convolved(x, half(B, 4, 6, 6, generator=generator), Kernel.of(layer))


def lookup(generator):
    index = torch.randint(8, (B, 6), generator=generator)
    return Lookup(index, half(B, 6, 4, generator=generator), 8)


CASES = {
    "rank one": lambda g: represent([outer(g, 1)]),
    "gram": lambda g: Gram(outer(g, 40)),
    "formed": lambda g: Formed(outer(g, 40)),
    "kept": lambda g: represent([outer(g, 200)]),
    "mixed precision": lambda g: Gram(
        Outer(half(B, 4, 7, generator=g), torch.randn(B, 4, 9, generator=g))
    ),
    "convolution, gram": lambda g: Gram(convolution(g)),
    "convolution, formed": lambda g: Formed(convolution(g)),
    "convolution, kept": lambda g: represent([convolution(g)], allowance=Allowance(10**9)),
    "lookup": lambda g: represent([lookup(g)]),
    "lookup and outer product": lambda g: represent(
        [lookup(g), Outer(half(B, 6, 8, generator=g), half(B, 6, 4, generator=g))]
    ),
    "direct": lambda g: represent([Direct(half(B, 9, generator=g))]),
}


def gradients(found) -> torch.Tensor | None:
    """In double precision from the same numbers, of what still has its factors."""
    term = getattr(found, "term", None)
    if term is None:
        return None
    doubled = {
        name: value.double() for name, value in vars(term).items() if isinstance(value, Tensor)
    }
    return type(term)(**(vars(term) | doubled)).materialised().flatten(1)


@pytest.mark.parametrize("chunk", [60, 1 << 20])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES)
def test_norms_bound_what_is_added_up(case, seed, chunk, monkeypatch):
    """The sum of one example alone, measured in double precision, is no longer than its norm."""
    monkeypatch.setattr(module, "CHUNK_ENTRIES", chunk)
    found = CASES[case](torch.Generator().manual_seed(seed))
    squared, sizes = found.norms(InnerProducts())
    assert {squared.dtype} | {size.dtype for size in sizes} == {torch.float32}
    shape = {"rank one": (7, 9), "lookup": (8, 4), "direct": (9,)}.get(case, (7, 9))
    shape = (8, 4) if case.startswith("lookup") else shape
    shape = (4, 3, 3, 3) if case.startswith("convolution") else shape
    for i in range(B):
        total = torch.zeros(shape)
        found.add_sum(torch.eye(B)[i], total)
        length = total.double().norm()
        assert squared[i].double().sqrt() >= length * (1 - 8 * EPS)
        assert squared[i].double().sqrt() <= length * 1.005, "far too long"
        truth = gradients(found)
        if truth is not None:
            exact = truth[i].view(shape)
            assert (total.double() - exact).norm() <= 1e-5 * exact.norm()


class Encoder(nn.Module):
    """Every kind of layer whose rule takes half precision as it comes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.norm = nn.LayerNorm(8)
        self.inner = nn.Linear(8, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, index, size):
        hidden = self.table(index) * size.view(-1, 1, 1)
        hidden = self.norm(hidden + self.conv(hidden.mT).mT)
        return self.head(torch.tanh(self.inner(hidden)).mean(1))


def autocast_loss(model, index, size, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(index, size)
    return F.cross_entropy(logits.float(), y, reduction="none")


def batch_of(count, generator, size=1.0):
    index = torch.randint(20, (count, 6), generator=generator)
    sizes = torch.full((count,), size)
    return index, sizes, torch.randint(3, (count,), generator=generator)


def total_of(clipper, batch):
    totals = {n: torch.zeros_like(p) for n, p in clipper.model.named_parameters()}
    for part in clipper(batch):
        part.add_to(totals)
    return torch.cat([total.double().flatten() for total in totals.values()])


@pytest.mark.parametrize("kept_mb", [0.0, 64.0])
def test_the_factored_engine_takes_autocast_and_agrees_with_the_loop(generator, kept_mb):
    torch.manual_seed(0)
    model, batch = Encoder(), batch_of(8, generator)
    clipping = Clipping("flat", clip_norm=0.3)
    ours, truth = (
        total_of(
            GradientClipper(
                model, autocast_loss, clipping=clipping, engine=engine, kept_mb=kept_mb
            ),
            batch,
        )
        for engine in (Engine.FACTORED, Engine.LOOP)
    )
    assert (ours - truth).norm() <= 0.02 * truth.norm()


def test_auto_does_not_fall_back(generator, caplog):
    torch.manual_seed(0)
    model, batch = Encoder(), batch_of(8, generator)
    with caplog.at_level(logging.INFO, "dpvd"):
        total_of(GradientClipper(model, autocast_loss, clipping=Clipping()), batch)
    assert "cannot take" not in caplog.text


@pytest.mark.parametrize("size", [1e-6, 1e-2, 1.0, 1e3, 1e8, 1e30])
def test_no_example_moves_the_sum_by_more_than_the_clip_norm(size, generator):
    torch.manual_seed(1)
    model, clipping = Encoder(), Clipping("flat", clip_norm=0.01)
    index, sizes, y = batch_of(16, generator, size)
    clipper = GradientClipper(model, autocast_loss, clipping=clipping, engine=Engine.FACTORED)
    for i in range(16):
        one = slice(i, i + 1)
        alone = total_of(clipper, (index[one], sizes[one], y[one]))
        assert alone.norm() <= 0.01
    whole = total_of(clipper, (index, sizes, y))
    without = total_of(clipper, (index[:-1], sizes[:-1], y[:-1]))
    assert (whole - without).norm() <= 0.01 * (1 + 1e-4)


@pytest.mark.parametrize("options", [{"rates": "layer", "learned": False}, {}])
def test_variational_layers_and_modules_without_a_rule_train_under_autocast(options, generator):
    torch.manual_seed(0)

    class Gain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(8))

        def forward(self, x):
            return x * self.gain

    plain = nn.Sequential(nn.Linear(5, 8), Gain(), nn.Tanh(), nn.Linear(8, 3))
    model = variational(plain, **options)

    def loss(model, x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(x)
        return F.cross_entropy(logits.float(), y, reduction="none")

    plan = PrivacyPlan(64, 16, steps=3, noise_multiplier=1.0, clipping=Clipping("flat", 0.1))
    step = PrivateStep(model, loss, plan, torch.optim.SGD(model.parameters(), lr=0.1))
    x = torch.randn(64, 5, generator=generator)
    for batch in plan.batches((x, torch.randint(3, (64,), generator=generator))):
        step(batch)
    assert all(p.dtype is torch.float32 and p.isfinite().all() for p in model.parameters())
    assert math.isfinite(step.zeta)
