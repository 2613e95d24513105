"""Attention with noise on its weights through the factored engine equals the oracle: rates,
families, masks, uses.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpvd.grads import Clipping, ClippingMode, Engine
from dpvd.grads.factored.rules import RULES
from dpvd.nn import (
    AdditiveMultiheadAttention,
    MultiplicativeMultiheadAttention,
    tied_layers,
    variational,
)
from dpvd.plan import PrivacyPlan
from dpvd.training import PrivateStep
from tests.grads.test_attention import Attends, Encoder, loss, make, sequences
from tests.grads.test_engines import assert_equal, run

KINDS = {"additive": AdditiveMultiheadAttention, "multiplicative": MultiplicativeMultiheadAttention}
STARTS = {"additive": {"log_sigma2": -2.0}, "multiplicative": {"log_alpha": -1.0}}
RATES = ("layer", "neuron", "weight")


def make_noisy(family: str, width: int = 4, heads: int = 2, **options: object) -> Attends:
    """Noise rates that differ from one another, where there are several."""
    model = make(width, heads, kind=KINDS[family], **STARTS[family], **options)
    (name,) = model.layer.noise_state
    rates = getattr(model.layer, name)
    with torch.no_grad():
        rates += torch.linspace(-0.5, 0.5, rates.numel(), dtype=rates.dtype).view(rates.shape)
    return model


@pytest.mark.parametrize("mode", ClippingMode)
@pytest.mark.parametrize("rates", RATES)
@pytest.mark.parametrize("family", KINDS)
def test_every_mode_equals_the_oracle(family, rates, mode, generator):
    model = make_noisy(family, rates=rates, batch_first=True)
    batch, clipping = sequences(generator, 5, (3, 4)), Clipping(mode, clip_norm=0.5)
    truth = run(Engine.LOOP, model, loss, batch, clipping)
    (name,) = model.layer.noise_state
    assert truth.grads[f"layer.{name}"].abs().max() > 1e-4
    assert_equal(run(Engine.FACTORED, model, loss, batch, clipping), truth)


@settings(max_examples=60, deadline=None)
@given(
    family=st.sampled_from(sorted(KINDS)),
    rates=st.sampled_from(RATES),
    learned=st.booleans(),
    pruned=st.booleans(),
    training=st.booleans(),
    use=st.sampled_from(["values", "weights", "both", "heads"]),
    memory=st.sampled_from(["itself", "another", "other widths"]),
    count=st.integers(0, 4),
    queries=st.integers(1, 4),
    keys=st.integers(1, 4),
    heads=st.integers(1, 3),
    per_head=st.integers(1, 3),
    switches=st.fixed_dictionaries(
        {
            name: st.booleans()
            for name in ("masks", "bias", "add_bias_kv", "add_zero_attn", "batch_first")
        }
    ),
    seed=st.integers(0, 2**31),
)
def test_any_shape_equals_the_oracle(
    family,
    rates,
    learned,
    pruned,
    training,
    use,
    memory,
    count,
    queries,
    keys,
    heads,
    per_head,
    switches,
    seed,
):
    width = heads * per_head
    widths = (width + 1, 2) if memory == "other widths" else (width, width)
    options = {"kdim": widths[0], "vdim": widths[1], **switches}
    model = make_noisy(family, width, heads, use=use, rates=rates, learned=learned, **options)
    if pruned:
        model.layer.prune(model.layer.log_alpha().median().item())
    model.train(training)
    others = [] if memory == "itself" else [(keys, w) for w in widths]
    batch = sequences(torch.Generator().manual_seed(seed), count, (queries, width), *others)
    truth = run(Engine.LOOP, model, loss, batch, Clipping())
    for engine in (Engine.FACTORED, Engine.AUTO):
        assert_equal(run(engine, model, loss, batch, Clipping()), truth)


@pytest.mark.parametrize("family", KINDS)
def test_a_pruned_weight_gets_no_gradient(family, generator):
    model = make_noisy(family, batch_first=True)
    model.layer.prune(model.layer.log_alpha().median().item())
    result = run(Engine.FACTORED, model, loss, sequences(generator, 4, (3, 4)), Clipping())
    kept = torch.cat(
        [kept for role, kept in model.layer.blocks(model.layer.kept).items() if role != "out"]
    )
    gradient = result.grads["layer.in_proj_weight"]
    assert not gradient[~kept].any()
    assert gradient[kept].all()


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_an_encoder_layer_equals_the_oracle_by_rules_alone(
    norm_first, batch_first, family, generator, caplog
):
    caplog.set_level("INFO", logger="dpvd")
    plain = Encoder(batch_first=batch_first, dropout=0.0, norm_first=norm_first)
    model = variational(plain, family, **STARTS[family])
    owners = [module for module in model.modules() if list(module.parameters(recurse=False))]
    assert {type(module) for module in owners if type(module) not in RULES} <= {
        type(plain.layer.self_attn.out_proj)
    }
    batch = sequences(generator, 4, (5, 4))
    truth = run(Engine.LOOP, model, loss, batch, Clipping())
    for engine in (Engine.FACTORED, Engine.AUTO):
        assert_equal(run(engine, model, loss, batch, Clipping()), truth)
    assert "cannot" not in caplog.text


def test_a_private_step_ties_the_scale_of_the_whole_encoder(generator):
    """ζ = ηzΔ/S is what attention samples with, and the clipped sum under it is still the
    oracle's.
    """
    model = variational(Encoder(batch_first=True, dropout=0.0), rates="layer", learned=False)
    plan = PrivacyPlan(100, 20, steps=2, noise_multiplier=3.0, clipping=Clipping(clip_norm=0.7))
    step = PrivateStep(
        model, loss, plan, torch.optim.SGD(model.parameters(), lr=0.5), batches="declared"
    )
    batch = sequences(generator, 8, (5, 4))
    step(batch)
    assert step.zeta == pytest.approx(0.5 * 3.0 * 0.7 / 20, rel=1e-3)
    scales = [layer.log_sigma2.exp().sqrt().item() for layer in tied_layers(model)]
    assert scales == pytest.approx([step.zeta] * 4)  # attention, two dense layers and the head
    truth = run(Engine.LOOP, model, loss, batch, plan.clipping)
    assert_equal(run(Engine.FACTORED, model, loss, batch, plan.clipping), truth)
    assert truth.norms.max() > 0.7
