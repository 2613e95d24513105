"""Gradients that are recomputed when needed are those that would have been stored."""

import pytest
import torch

from dpvd.grads.factored import represent as module
from dpvd.grads.factored.represent import Materialised, Recomputed, represent
from dpvd.grads.factored.rule import Deferred, Direct, Outer
from dpvd.grads.per_example import Allowance, InnerProducts, PerExample

COUNT, OUT, IN = 7, 3, 4


@pytest.fixture
def term(generator) -> Outer:
    left, right = (
        torch.randn(COUNT, 5, width, generator=generator).double() for width in (OUT, IN)
    )
    return Outer(left, right, torch.rand(OUT, IN, generator=generator).double())


def summed(gradients: PerExample, weights: torch.Tensor) -> torch.Tensor:
    total = torch.ones(OUT, IN).double()
    gradients.add_sum(weights, total)
    return total


@pytest.mark.parametrize("held", [1, 2 * OUT * IN, 1 << 20])
@pytest.mark.parametrize("divided", [False, True])
def test_norms_and_sums_are_those_of_stored_gradients(held, divided, term, generator, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_ENTRIES", held)
    divisor = torch.rand(OUT, IN, generator=generator).double() if divided else None
    again, weights = represent([term], divisor), torch.rand(COUNT, generator=generator).double()
    kept = Materialised(term.materialised() if divisor is None else term.materialised() / divisor)
    assert isinstance(again, Recomputed)
    torch.testing.assert_close(
        again.norms(InnerProducts()).squared, kept.norms(InnerProducts()).squared
    )
    torch.testing.assert_close(summed(again, weights), summed(kept, weights))
    some = torch.tensor([5, 0, 3])
    torch.testing.assert_close(
        again.only(some).norms(InnerProducts()).squared,
        kept.only(some).norms(InnerProducts()).squared,
    )
    torch.testing.assert_close(
        summed(again.only(some), weights[some]), summed(kept.only(some), weights[some])
    )


@pytest.mark.parametrize("kept", [0, 2, 5, 100])
def test_a_few_are_computed_at_a_time_and_some_are_saved(kept, term, generator, monkeypatch):
    """As many whole chunks as fit; the others are recomputed, and the sum is the same bit for
    bit.
    """
    monkeypatch.setattr(module, "CHUNK_ENTRIES", 2 * OUT * IN)
    allowance = Allowance(kept * OUT * IN * 8)
    formed: list[int] = []

    def form(examples):
        formed.append(len(term.left[examples]))
        return Outer(term.left[examples], term.right[examples]).materialised()

    weights = torch.rand(COUNT, generator=generator).double()
    again = Recomputed.of([Deferred(COUNT, form, term.scale)], allowance)
    without = summed(again, weights)
    formed.clear()
    again.norms(InnerProducts())
    assert formed == [2, 2, 2, 1]
    assert torch.equal(summed(again, weights), without)
    assert formed[4:] == {0: [2, 2, 2, 1], 2: [2, 2, 1], 5: [2], 100: []}[kept]
    assert torch.equal(summed(again.only(torch.arange(COUNT)), weights), without)


def test_beside_other_terms_of_a_parameter_they_are_stored(term):
    other = torch.ones(COUNT, OUT, IN).double()
    together = represent(
        [Deferred(COUNT, lambda examples: other[examples], term.scale), Direct(other), term]
    )
    expected = Materialised(other * term.scale + other + term.materialised())
    torch.testing.assert_close(
        together.norms(InnerProducts()).squared, expected.norms(InnerProducts()).squared
    )
