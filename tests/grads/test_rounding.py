"""Norms that are formed from factors are never too short: in float32, for rows of any length."""

import pytest
import torch

from dpvd.grads.factored.represent import Formed, Gram, RankOne
from dpvd.grads.factored.rule import Outer
from dpvd.grads.per_example import InnerProducts

EPS = torch.finfo(torch.float32).eps
SLACK = 8  # units of rounding of a squared norm, which the margin of the clip norm covers twice

ENTRIES = {
    "normal": lambda *shape: torch.randn(*shape, generator=torch.Generator().manual_seed(0)),
    "equal": lambda *shape: torch.full(shape, 0.1),
    "alternating": lambda *shape: torch.full(shape, 0.1) * (-1.0) ** torch.arange(shape[-1]),
    "falling": lambda *shape: torch.linspace(1, 1e-3, shape[-1]).expand(shape).contiguous(),
}
WIDTHS = [1, 64, 784, 4096, 20_000]


def gradient(term: Outer) -> torch.Tensor:
    """By the definition, in double precision."""
    left, right = (
        f if f.dim() == 3 else f.unsqueeze(1) for f in (term.left.double(), term.right.double())
    )
    product = torch.einsum("bto,bti->boi", left, right)
    return product if term.scale is None else product * term.scale.double()


def assert_not_too_short(found: torch.Tensor, *terms: Outer) -> None:
    truth = sum(gradient(term) for term in terms).square().sum((1, 2))
    assert (found.double() >= truth * (1 - SLACK * EPS)).all()
    assert (found.double() <= truth * 1.01).all(), (
        "far too long: examples would be clipped for nothing"
    )


@pytest.mark.parametrize("entries", ENTRIES)
@pytest.mark.parametrize("width", WIDTHS)
def test_norms_of_dense_layers(width, entries):
    make = ENTRIES[entries]
    for scale in (None, make(5, width)):
        term = Outer(make(3, 5), make(3, width), scale)
        assert_not_too_short(RankOne([term]).norms(InnerProducts()).squared, term)


@pytest.mark.parametrize("entries", ENTRIES)
@pytest.mark.parametrize("width", WIDTHS)
def test_norms_of_several_terms(width, entries):
    """As of multiplicative noise: one term without a scale, one with."""
    make = ENTRIES[entries]
    terms = [
        Outer(make(3, 5), make(3, width)),
        Outer(make(3, 5), make(3, width), make(5, width).abs()),
    ]
    assert_not_too_short(RankOne(terms).norms(InnerProducts()).squared, *terms)


@pytest.mark.parametrize("entries", ENTRIES)
@pytest.mark.parametrize("positions", [2, 7, 28])
@pytest.mark.parametrize("width", WIDTHS)
def test_norms_of_sequences(width, positions, entries):
    make = ENTRIES[entries]
    term = Outer(make(3, positions, 5), make(3, positions, width))
    assert_not_too_short(Gram(term).norms(InnerProducts()).squared, term)


@pytest.mark.parametrize("entries", ENTRIES)
@pytest.mark.parametrize("positions", [2, 28, 200, 3000])
def test_norms_of_gradients_that_are_formed_and_forgotten(positions, entries):
    """Positions are what is added up here."""
    make = ENTRIES[entries]
    term = Outer(make(3, 5, positions).mT, make(3, 4, positions).mT)
    assert_not_too_short(Formed(term).norms(InnerProducts()).squared, term)


def test_a_gradient_that_cancels_is_not_taken_for_none():
    """What is left of 4000 products that cancel is rounding: no less than what the sum may hold."""
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(1, 2000, 5, generator=generator)
    right = torch.randn(1, 2000, 4, generator=generator)
    term = Outer(torch.cat([left, -left], 1), torch.cat([right, right], 1))
    total = torch.zeros(5, 4)
    for form in (Formed, Gram):
        form(term).add_sum(torch.ones(1), total.zero_())
        length = form(term).norms(InnerProducts()).squared.sqrt()
        assert length >= total.double().norm()
