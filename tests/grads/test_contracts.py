"""The contracts between the parts of a step that ARCHITECTURE.md lists, those of gradients."""

import pytest
import torch

from dpvd.grads import Clipping, Engine, GradientClipper
from dpvd.grads.factored.represent import Formed, Gram, Materialised, RankOne, Recomputed
from dpvd.grads.factored.rule import Outer
from dpvd.grads.per_example import Allowance, InnerProducts
from dpvd.nn import noise_from

from .conformance import assert_sums_do_not_read_parameters
from .models import LAYERS, LOSSES, cross_entropy, make_batch, two_layers

WITH_LEARNED_SCALES = [
    "additive per layer",
    "additive per neuron",
    "additive per weight",
    "additive without bias",
    "no rule",
]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("layer", LAYERS)
def test_no_term_shares_memory_with_a_parameter(layer, loss, generator):
    """Convolutions, recurrent and all other rules: `conformance.assert_rule_equals_oracle`."""
    model = two_layers(LAYERS[layer])
    assert_sums_do_not_read_parameters(model, make_batch(6, generator), LOSSES[loss])


@pytest.mark.parametrize("positions", [1, 4])
def test_no_term_of_a_sequence_shares_memory_with_a_parameter(positions, generator):
    for layer in LAYERS.values():
        batch = make_batch(6, generator, positions)
        assert_sums_do_not_read_parameters(two_layers(layer), batch, cross_entropy)


def representations(left, right, scale):
    """Each kind of representation, with the factors or unscaled gradients that it multiplies."""
    long_left = left.unsqueeze(1).expand(-1, 3, -1).contiguous()
    long_right = right.unsqueeze(1).expand(-1, 3, -1).contiguous()
    product = left.unsqueeze(2) * right.unsqueeze(1)
    several = [Outer(left, right), Outer(left, right, scale)]
    return {
        "RankOne": (RankOne([Outer(left, right)]), [left, right]),
        "RankOne with a scale": (RankOne([Outer(left, right, scale)]), [left, right, product]),
        "RankOne of two": (RankOne(several), [left, right, product]),
        "Gram": (Gram(Outer(long_left, long_right)), [long_left, long_right]),
        "Formed": (Formed(Outer(long_left, long_right)), [long_left, long_right]),
        "Materialised": (Materialised(product), [product]),
        "Materialised with a scale": (Materialised(product, scale), [product]),
        "Recomputed": (
            Recomputed.of([Outer(long_left, long_right, scale)], Allowance()),
            [3 * product],
        ),
    }


KINDS = list(representations(torch.ones(1, 1), torch.ones(1, 1), torch.ones(1, 1)))


@pytest.mark.parametrize("kind", KINDS)
def test_norms_come_with_the_sizes_of_all_that_is_multiplied(kind, generator):
    """10¹⁵ times 10⁻²⁵ has a small norm, and none that float32 could tell: the sizes show it."""
    left = 1e10 * torch.rand(5, 2, generator=generator, dtype=torch.float64)
    right = 1e-10 * torch.rand(5, 3, generator=generator, dtype=torch.float64)
    scale = torch.rand(2, 3, generator=generator, dtype=torch.float64)
    found, factors = representations(left, right, scale)[kind]
    sizes = found.norms(InnerProducts()).sizes
    for factor in factors:
        squared = factor.flatten(1).square().sum(1)
        assert any(torch.allclose(size, squared, rtol=1e-9, atol=0) for size in sizes)


@pytest.mark.parametrize("engine", [Engine.FACTORED, Engine.VMAP, Engine.LOOP])
@pytest.mark.parametrize("layer", WITH_LEARNED_SCALES)
def test_divided_before_the_clip_is_multiplied_after_it(layer, engine, generator):
    """Without a clip between them, the two halves of the change of coordinates cancel."""
    model = two_layers(LAYERS[layer])
    batch = make_batch(6, generator)
    clipper = GradientClipper(model, cross_entropy, clipping=Clipping("none"), engine=engine)
    with noise_from(torch.Generator().manual_seed(1)):
        (part,) = clipper(batch)
    parameters = dict(model.named_parameters())
    totals = {name: torch.zeros_like(p) for name, p in parameters.items()}
    part.add_to(totals)
    assert part.jacobian, "the model has no learned scale"
    with noise_from(torch.Generator().manual_seed(1)):
        summed = cross_entropy(model, *batch).sum()
    plain = torch.autograd.grad(summed, list(parameters.values()))
    for (name, total), expected in zip(totals.items(), plain, strict=True):
        found = part.jacobian.multiply_(name, total.clone())
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
        if name in part.jacobian:
            assert not torch.allclose(total, expected, rtol=1e-3), "it was not divided"
