"""Gradients that are formed when they are needed are those that would have been kept."""

import pytest
import torch

from dpvd.grads import forms
from dpvd.grads.forms import FormedAgain, Materialised, prepare
from dpvd.grads.products import Products
from dpvd.grads.terms import Direct, Formed, Outer, materialised

COUNT, OUT, IN = 7, 3, 4


@pytest.fixture
def term(generator) -> Outer:
    left, right = (
        torch.randn(COUNT, 5, width, generator=generator).double() for width in (OUT, IN)
    )
    return Outer(left, right, torch.rand(OUT, IN, generator=generator).double())


def summed(gradients: forms.PerExample, weights: torch.Tensor) -> torch.Tensor:
    total = torch.ones(OUT, IN).double()
    gradients.add_sum(weights, total, -2.0)
    return total


@pytest.mark.parametrize("held", [1, 2 * OUT * IN, 1 << 20])
@pytest.mark.parametrize("divided", [False, True])
def test_norms_and_sums_are_those_of_kept_gradients(held, divided, term, generator, monkeypatch):
    monkeypatch.setattr(forms, "HELD_ENTRIES", held)
    divisor = torch.rand(OUT, IN, generator=generator).double() if divided else None
    again, weights = prepare([term], divisor), torch.rand(COUNT, generator=generator).double()
    kept = Materialised(materialised(term) if divisor is None else materialised(term) / divisor)
    assert isinstance(again, FormedAgain)
    torch.testing.assert_close(again.squared_norm(Products()), kept.squared_norm(Products()))
    torch.testing.assert_close(summed(again, weights), summed(kept, weights))
    some = torch.tensor([5, 0, 3])
    torch.testing.assert_close(
        again.only(some).squared_norm(Products()), kept.only(some).squared_norm(Products())
    )
    torch.testing.assert_close(
        summed(again.only(some), weights[some]), summed(kept.only(some), weights[some])
    )


@pytest.mark.parametrize("kept", [0, 2, 5, 100])
def test_a_few_are_formed_at_a_time_and_some_are_kept(kept, term, generator, monkeypatch):
    """As many whole pieces as fit; the others are formed again, and the sum is the same bit for
    bit.
    """
    monkeypatch.setattr(forms, "HELD_ENTRIES", 2 * OUT * IN)
    monkeypatch.setattr(forms, "KEPT_ENTRIES", kept * OUT * IN)
    formed: list[int] = []

    def form(examples):
        formed.append(len(term.left[examples]))
        return materialised(Outer(term.left[examples], term.right[examples]))

    weights = torch.rand(COUNT, generator=generator).double()
    again = FormedAgain(Formed(COUNT, form, term.scale))
    without = summed(again, weights)
    formed.clear()
    again.squared_norm(Products())
    assert formed == [2, 2, 2, 1]
    assert torch.equal(summed(again, weights), without)
    assert formed[4:] == {0: [2, 2, 2, 1], 2: [2, 2, 1], 5: [2], 100: []}[kept]
    assert torch.equal(summed(again.only(torch.arange(COUNT)), weights), without)


def test_beside_other_terms_of_a_parameter_they_are_kept(term):
    other = torch.ones(COUNT, OUT, IN).double()
    together = prepare(
        [Formed(COUNT, lambda examples: other[examples], term.scale), Direct(other), term]
    )
    expected = Materialised(other * term.scale + other + materialised(term))
    torch.testing.assert_close(together.squared_norm(Products()), expected.squared_norm(Products()))
