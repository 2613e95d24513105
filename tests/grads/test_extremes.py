"""No example moves a sum by more than the bound, however large or small its numbers are."""

import pytest
import torch
from torch import nn

import dpvd.nn as dn
from dpvd.grads import Clipping, GradientClipper
from dpvd.grads.clipping import ClippingMode, Grouping, Jacobian
from dpvd.grads.factored import ModelLayout
from dpvd.grads.factored.represent import Materialised, RankOne, Recomputed
from dpvd.grads.factored.rule import Deferred, Outer
from dpvd.grads.per_example import Allowance, clip

NOISE = 0.5  # what is already in a sum when gradients are added to it


def moved_by(model, loss, batch, clip_norm, before):
    """How far the examples of a batch move a sum whose entries had this value before, in L2
    norm.
    """
    clipper = GradientClipper(
        model, loss, clipping=Clipping("flat", clip_norm=clip_norm), engine="factored"
    )
    totals = {name: torch.full_like(p, before) for name, p in model.named_parameters()}
    for part in clipper(batch):
        part.add_to(totals)
    return (
        torch.cat([(total.double() - before).flatten() for total in totals.values()]).norm().item()
    )


@pytest.mark.parametrize("layers", [nn.Linear, dn.AdditiveLinear, dn.MultiplicativeLinear])
@pytest.mark.parametrize("power", range(-36, 38))
def test_squares_that_vanish_do_not_hide_a_gradient(power, layers):
    """The gradient is slope ⊗ x; where one factor's square is 0 in float32, the other may still
    make it large.
    """
    torch.manual_seed(0)
    layer, clip_norm = layers(4, 1000), 1e-4
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(0 if parameter is layer.weight else 1)

    def loss(model, x, slope):
        return (model(x) * slope).sum(1)

    x, slope = torch.full((1, 4), 5.0 * 10.0**power), torch.full((1, 1000), 4e-6 * 10.0**-power)
    assert moved_by(layer, loss, (x, slope), clip_norm, before=0.0) <= clip_norm * 1.001


@pytest.mark.parametrize("size", [1.0, 1e6, 1e12, 1e30, 1e38])
def test_repeated_rows_that_cancel_do_not_take_the_noise_along(size):
    """0.5 + 10³⁰ − 10³⁰ is 0 in floating point: noise that was there would be gone."""
    table = nn.Embedding(3, 2)

    def loss(model, index, slope):
        return (model(index).sum(2) * slope).sum(1)

    index, slope = torch.tensor([[0, 0, 1]]), torch.tensor([[size, -size, 1e-3]])
    assert moved_by(table, loss, (index, slope), clip_norm=1e-3, before=NOISE) <= 1.1e-3


@pytest.mark.parametrize("value", [1e10, 1e25, 1e35, 3e38])
@pytest.mark.parametrize("form", ["materialised", "rank one", "recomputed"])
def test_what_a_scale_makes_small_does_not_overflow_before(value, form):
    """Examples are added up before they are multiplied by what they have in common."""
    scale = torch.full((2, 2), 0.1 / value)
    root = torch.full((4, 2), value**0.5)
    found = {
        "materialised": Materialised(torch.full((4, 2, 2), value), scale),
        "rank one": RankOne([Outer(root, root, scale)]),
        "recomputed": Recomputed.of(
            [Deferred(4, lambda some: torch.full((4, 2, 2), value)[some], scale)], Allowance()
        ),
    }[form]
    model = nn.Linear(2, 2, bias=False)
    grouping = Grouping.of(model, ClippingMode.FLAT, ModelLayout.of(model))
    total = {"weight": torch.full((2, 2), NOISE)}
    clipping = Clipping("flat", clip_norm=1.0)
    clipped = clip({"weight": found}, torch.zeros(4), clipping, grouping, Jacobian())
    clipped.add_to(total)
    assert (total["weight"] - NOISE).norm() <= 4 * 1.001
    assert clipped.excluded == (0 if value <= 1e10 else 4)


def test_ordinary_gradients_are_all_taken():
    """What is excluded is out of all proportion: a norm of 10¹² still takes part."""
    model, x = nn.Linear(3, 2), torch.full((5, 3), 1e6)
    clipper = GradientClipper(
        model, lambda m, x: m(x).sum(1) * 1e6, clipping=Clipping("flat", clip_norm=1.0)
    )
    (part,) = clipper((x,))
    assert part.excluded == 0
    assert part.norms.min() > 1e12
