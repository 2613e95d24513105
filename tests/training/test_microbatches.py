"""Steps and runs in micro-batches: the same update, one draw of noise, less in memory."""

import pytest
import torch
from torch import nn

from dpvd.errors import DpvdError
from dpvd.plan import PrivacyPlan
from dpvd.training import PrivateStep, Recipe, cross_entropy, fit


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3)).double()


def examples(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (count,), generator=generator)


def plan_with(noise_multiplier: float) -> PrivacyPlan:
    return PrivacyPlan(100, 20, steps=5, noise_multiplier=noise_multiplier, noise="seeded", seed=3)


def one_step(plan: PrivacyPlan, batch, micro_batch: int | None) -> tuple[torch.Tensor, int]:
    """The parameters after it, and how many bits of noise it took."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = PrivateStep(
        model, cross_entropy, plan, optimizer, micro_batch=micro_batch, batches="declared"
    )
    step(batch)
    return torch.cat([p.detach().flatten() for p in model.parameters()]), step.noise.position


@pytest.mark.parametrize("noise_multiplier", [1.5, 0.0])
@pytest.mark.parametrize("count", [0, 1, 17])
@pytest.mark.parametrize("micro_batch", [1, 4, 17, 1000])
def test_a_step_in_slices_is_the_same_step(noise_multiplier, count, micro_batch, generator):
    plan, batch = plan_with(noise_multiplier), examples(count, generator)
    whole, bits = one_step(plan, batch, None)
    sliced, bits_in_slices = one_step(plan, batch, micro_batch)
    torch.testing.assert_close(sliced, whole, rtol=1e-12, atol=1e-12)
    assert bits_in_slices == bits  # noise is added once, not once for each slice
    assert (bits > 0) == (noise_multiplier > 0)


def test_a_whole_run_in_slices(generator):
    data, seen = examples(100, generator), []

    def run(micro_batch):
        model = network()
        model[0].register_forward_hook(lambda module, args, output: seen.append(len(output)))
        fitted = fit(
            model,
            data,
            plan_with(1.0),
            Recipe(0.1, momentum=0.5),
            delta=1e-5,
            micro_batch=micro_batch,
        )
        return torch.cat([p.flatten() for p in model.parameters()]), fitted.guarantee

    whole, statement = run(None)
    assert max(seen) > 5
    seen.clear()
    sliced, statement_in_slices = run(5)
    assert max(seen) == 5
    torch.testing.assert_close(sliced, whole, rtol=1e-10, atol=1e-10)
    assert statement_in_slices == statement


def test_a_bad_size_is_refused_before_anything_is_charged(generator):
    model = network()
    with pytest.raises(DpvdError, match="micro_batch must be an integer of at least 1, got 0"):
        PrivateStep(
            model,
            cross_entropy,
            plan_with(1.0),
            torch.optim.SGD(model.parameters(), lr=0.1),
            micro_batch=0,
        )


def test_the_allowance_reaches_the_engine(generator):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = PrivateStep(model, cross_entropy, plan_with(1.0), optimizer, kept_mb=0.5)
    assert step.kept_mb == step.clipper.kept_mb == 0.5
    with pytest.raises(DpvdError, match="kept_mb"):
        fit(
            model,
            examples(100, generator),
            plan_with(1.0),
            Recipe(0.1),
            delta=1e-5,
            kept_mb=-1.0,
        )
