"""Adaptive clipping: two releases in a step that cost as one; a norm that finds its quantile."""

import math
from dataclasses import replace

import dp_accounting
import pytest
import torch
from dp_accounting.rdp import RdpAccountant
from torch import nn

from dpvd.errors import DpvdError
from dpvd.grads import Clipping, clipped_grad
from dpvd.nn import variational
from dpvd.plan import PrivacyPlan
from dpvd.privacy import Guarantee, Relation
from dpvd.training import PrivateStep, Recipe, cross_entropy, fit
from dpvd.training.quantile import QuantileCount

CLIPPING = Clipping("adaptive", 0.3, quantile=0.6, count_share=0.1)
PLAN = PrivacyPlan(
    400, 400, steps=600, noise_multiplier=3.0, clipping=CLIPPING, noise="seeded", seed=5
)


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def data(count: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    return x * torch.logspace(-1, 1, count, dtype=torch.float64)[:, None], torch.randint(
        3, (count,), generator=generator
    )


def make_step(plan: PrivacyPlan, model: nn.Module | None = None, rate: float = 0.1, **options):
    model = network() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    return PrivateStep(model, cross_entropy, plan, optimizer, batches="declared", **options)


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("share", [0.01, 0.3])
def test_what_one_example_moves_is_covered_by_the_planned_multiplier(share, relation):
    """The norm of one example's part in gradient and count, in units of their noise, is at most
    1/z: the joint release is a Gaussian mechanism with multiplier z."""
    clipping = replace(CLIPPING, count_share=share)
    plan = replace(PLAN, clipping=clipping, relation=relation)
    step = make_step(plan)
    gradient = step._grid_noise(step.clipper.current_grouping()).std
    count = step._quantile.noise.std
    times = 1 if relation is Relation.ADD_OR_REMOVE else 2
    longest = 0.0
    for row in zip(*data(40), strict=True):
        batch = tuple(tensor.unsqueeze(0) for tensor in row)
        sums = clipped_grad(step.model, cross_entropy, batch, clipping=clipping)
        moved = times * math.sqrt(sum(g.square().sum().item() for g in sums.grads.values()))
        bit = times * abs(clipping.centred_count(sums.norms).item())
        assert bit == times / 2
        longest = max(longest, math.hypot(moved / gradient, bit / count))
    assert 0.99 / 3 < longest <= 1 / 3


@pytest.mark.parametrize("sampling_prob", [0.05, 1.0])
def test_the_account_is_that_of_both_releases_on_one_sample(sampling_prob):
    """dp-accounting is told of the two releases; we say one with the plan's multiplier."""
    plan = replace(PLAN, batch_size=round(400 * sampling_prob), noise_multiplier=1.1)
    both = dp_accounting.ComposedDpEvent(
        [dp_accounting.GaussianDpEvent(z) for z in plan.clipping.split_noise(1.1)]
    )
    sampled = dp_accounting.PoissonSampledDpEvent(sampling_prob, both)
    theirs = RdpAccountant().compose(sampled, plan.steps).get_epsilon(1e-5)
    assert plan.epsilon(1e-5, "rdp") == pytest.approx(theirs, rel=1e-3)
    flat = replace(plan, clipping=Clipping("flat", 0.3))
    assert plan.epsilon(1e-5) == flat.epsilon(1e-5)


def shares_of(plan: PrivacyPlan, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """What each step found to be the share of gradients within the norm, noise included."""
    step = make_step(plan, rate=1e-9)
    found, norm = [], step.clip_norm
    for _ in range(plan.steps):
        step(batch)
        moved = math.log(step.clip_norm / norm)
        found.append(plan.clipping.quantile - moved / plan.clipping.rate)
        norm = step.clip_norm
    return torch.tensor(found)


@pytest.mark.parametrize("relation", Relation)
def test_the_count_has_its_noise(relation):
    """Of an empty batch the count is all noise: z₂Δ'/S, to six standard errors, which rejects two
    thirds and three halves of it."""
    plan = replace(PLAN, relation=relation)
    noise = shares_of(plan, data(0)) - 0.5
    times = 1 if relation is Relation.ADD_OR_REMOVE else 2
    expected = 3.0 / math.sqrt(0.1) * times / 2 / 400
    error = 6 * expected / math.sqrt(2 * plan.steps)
    assert error < 0.2 * expected
    assert abs(noise.std().item() - expected) < error
    assert abs(noise.mean().item()) < 6 * expected / math.sqrt(plan.steps)


def test_the_count_is_divided_by_the_planned_batch_size():
    """A hundred gradients, all within the norm, in a plan for batches of 400: 1/2 + 50/400."""
    plan = replace(PLAN, clipping=replace(CLIPPING, clip_norm=1e6, rate=1e-3), steps=200)
    share = shares_of(plan, data(100)).mean().item()
    assert share == pytest.approx(0.625, abs=6 * 0.0119 / math.sqrt(200))


def test_the_norm_finds_the_quantile():
    plan = replace(PLAN, steps=150, clipping=replace(CLIPPING, clip_norm=30.0))
    step = make_step(plan, rate=1e-9)
    batch = data()
    for _ in range(plan.steps):
        step(batch)
    norms = clipped_grad(step.model, cross_entropy, batch, clipping=CLIPPING).norms
    within = (norms <= step.clip_norm).double().mean().item()
    assert within == pytest.approx(0.6, abs=0.05)


def test_noise_follows_the_norm_in_force():
    step = make_step(PLAN, rate=1e-9)
    batch = data(0)
    while 0.2 < step.clip_norm < 0.45:
        step.clipper.clipping = step.clipper.clipping.after(0.0)
    norm = step.clip_norm
    optimizer = step.optimizer
    optimizer.param_groups[0]["momentum"] = 0.9  # so that the gradient is left to be seen
    found = []
    for _ in range(40):
        step.clipper.clipping = replace(CLIPPING, clip_norm=norm)
        step(batch)
        found += [p.grad.flatten() for p in step.model.parameters()]
    noise = torch.cat(found)
    expected = 3.0 / math.sqrt(0.9) * norm / 400
    assert abs(noise.std().item() - expected) < 6 * expected / math.sqrt(2 * len(noise))
    assert 6 / math.sqrt(2 * len(noise)) < 0.15


def test_micro_batches_count_all_examples():
    batch = data()
    found = []
    for micro_batch in (None, 7):
        step = make_step(PLAN, micro_batch=micro_batch)
        step(batch)
        found.append(step.clip_norm)
    assert found[0] == pytest.approx(found[1], rel=1e-12)


def test_an_example_that_is_not_finite_counts_as_clipped():
    norms = torch.tensor([[0.1], [math.inf], [0.5]])
    assert replace(CLIPPING, clip_norm=0.3).centred_count(norms).item() == -0.5


def test_an_interrupt_leaves_no_count_behind():
    calls = []

    def interrupted(model, x, y):
        calls.append(len(x))
        if len(calls) > 40:
            raise KeyboardInterrupt
        return cross_entropy(model, x, y)

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = PrivateStep(model, interrupted, PLAN, optimizer, batches="declared", micro_batch=5)
    with pytest.raises(KeyboardInterrupt):
        step(data())
    assert step._quantile._total.item() == 0
    assert step.clip_norm == 0.3


def test_tied_scales_follow_the_norm():
    model = variational(network(), rates="layer", learned=False)
    step = make_step(replace(PLAN, noise_multiplier=1.0), model, rate=0.5)
    batch = data(10)
    for _ in range(3):
        norm = step.clip_norm
        step(batch)
        assert step.zeta == pytest.approx(0.5 * norm / math.sqrt(0.9) / 400, rel=2e-3)
    assert step.clip_norm != 0.3


def test_a_run_resumes_with_the_norm_it_had(tmp_path):
    plan = replace(PLAN, batch_size=100, steps=12)
    recipe = Recipe(learning_rate=0.1, momentum=0.9)
    whole = fit(network(), data(), plan, recipe, delta=1e-5)

    def interrupt(progress):
        if progress.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(network(), data(), plan, recipe, delta=1e-5, folder=tmp_path, on_step=interrupt)
    resumed = fit(network(), data(), plan, recipe, delta=1e-5, folder=tmp_path, resume=True)
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_plan_statement_and_fingerprint_know_of_it():
    assert PrivacyPlan.from_dict(PLAN.to_dict()) == PLAN
    prints = {replace(PLAN, clipping=replace(CLIPPING, **change)).fingerprint for change in (
        {}, {"quantile": 0.5}, {"rate": 0.1}, {"count_share": 0.2}, {"clip_norm": 0.2}
    )}  # fmt: skip
    assert len(prints) == 5
    guarantee = PLAN.guarantee(1e-5)
    assert (
        "noise of multiplier 3, for the gradient and the number of gradients within the clip norm"
        " together, from" in guarantee.sentence()
    )
    assert Guarantee.from_dict(guarantee.to_dict()) == guarantee
    flat = replace(PLAN, clipping=Clipping("flat"))
    assert "together" not in flat.guarantee(1e-5).sentence()
    assert "also_released" not in flat.guarantee(1e-5).to_dict()
    assert set(Clipping("flat").to_dict()) == {"mode", "clip_norm", "stability"}


def test_without_noise_nothing_is_counted():
    plan = replace(PLAN, noise_multiplier=0.0, steps=2)
    step = make_step(plan)
    step(data(10))
    assert step.clip_norm == 0.3
    assert PLAN.calibrate(math.inf, 1e-5).clipping.to_dict()["mode"] == "none"


@pytest.mark.parametrize(
    ("mode", "wrong", "words"),
    [
        ("adaptive", {"quantile": 1.0}, "quantile"),
        ("adaptive", {"count_share": 0.0}, "count_share"),
        ("adaptive", {"rate": -0.2}, "rate"),
        ("flat", {"quantile": 0.9}, "quantile is of adaptive clipping, not of flat"),
    ],
)
def test_wrong_numbers_are_refused(mode, wrong, words):
    with pytest.raises(DpvdError, match=words):
        Clipping(mode, **wrong)


def test_the_norm_stays_where_floats_can_hold_it():
    high = low = Clipping("adaptive", rate=5.0)
    for _ in range(60):
        high, low = high.after(-3.0), low.after(7.0)
    assert high.clip_norm == 1e12
    assert low.clip_norm == 1e-12


def test_the_noise_of_the_count_is_on_a_grid():
    noise = QuantileCount(PLAN).noise
    assert noise.std == pytest.approx(3.0 / math.sqrt(0.1) / 2, rel=1e-3)
    assert noise.std >= 3.0 / math.sqrt(0.1) / 2
