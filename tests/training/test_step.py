"""The private step does what its docstring says: each deliberate fault in it turns one of these
red.
"""

import math
from functools import partial

import pytest
import torch
from torch import nn

from dpvd.errors import DpvdError
from dpvd.grads import ClippedGradients, Clipping, ClippingMode, GradientClipper, clipped_grad
from dpvd.mechanisms import SystemBits, standard_normal
from dpvd.nn import AdditiveLinear, kl, noise_from, set_scale, variational
from dpvd.plan import PrivacyPlan
from dpvd.privacy import Ledger, Relation
from dpvd.training import PrivateStep, cross_entropy

WIDE = 400  # enough weights that the noise of one step can be measured to a few per cent


def network(scale: str = "none") -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(6, WIDE), nn.Tanh(), nn.Linear(WIDE, 3)).double()
    if scale == "privacy":
        return variational(plain, rates="layer", learned=False)
    if scale == "learned":
        return variational(plain, log_sigma2=-4.0)
    return plain


def examples(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (count,), generator=generator)


def make_step(model, plan, learning_rate=0.5, momentum=0.0, **options) -> PrivateStep:
    """With plain SGD the noisy sum goes from its buffer into the parameters; momentum, which a
    first step does not feel, makes it go through ``.grad``."""
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=momentum)
    return declared(model, cross_entropy, plan, optimizer, **options)


# These tests make up their batches; what is refused of such is tested in test_provenance.py.
declared = partial(PrivateStep, batches="declared")


def gradients_of(step: PrivateStep, batch) -> dict[str, torch.Tensor]:
    """What a step subtracts from each parameter, over the learning rate."""
    (group,) = step.optimizer.param_groups
    before = {name: p.detach().clone() for name, p in step.model.named_parameters()}
    step(batch)
    return {
        name: (before[name] - p.detach()) / group["lr"] for name, p in step.model.named_parameters()
    }


def flat(tensors) -> torch.Tensor:
    return torch.cat([t.flatten() for t in tensors.values()])


def noise_of(step: PrivateStep, batch, seed: int = 0) -> torch.Tensor:
    """What a step adds to the clipped sum over the plan's batch size."""
    with noise_from(torch.Generator().manual_seed(seed)):
        clean = clipped_grad(step.model, step.loss_fn, batch, clipping=step.plan.clipping)
    clean = flat(clean.grads) / step.plan.batch_size
    with noise_from(torch.Generator().manual_seed(seed)):
        return flat(gradients_of(step, batch)) - clean


def assert_scale(noise: torch.Tensor, expected: float) -> None:
    """The standard deviation, to six standard errors: rejects two thirds and one and a half of it
    by far.
    """
    error = 6 * expected / math.sqrt(2 * len(noise))
    assert error < 0.15 * expected, "too few draws for the test to mean anything"
    assert abs(noise.std().item() - expected) < error
    assert abs(noise.mean().item()) < 6 * expected / math.sqrt(len(noise))


both_ways = pytest.mark.parametrize("momentum", [0.0, 0.9], ids=["plain", "momentum"])


@both_ways
@pytest.mark.parametrize("count", [0, 1, 64])
@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(
    "mode", [ClippingMode.FLAT, ClippingMode.PER_LAYER, ClippingMode.AUTOMATIC]
)
def test_noise_has_the_planned_scale_whatever_the_batch(mode, relation, count, momentum, generator):
    """z·Δ/S, with Δ from the clipping in force; noise put on each example's gradient would grow
    with the batch.
    """
    clipping = Clipping(mode, clip_norm=0.7)
    plan = PrivacyPlan(100, 20, steps=5, noise_multiplier=3.0, clipping=clipping, relation=relation)
    noise = noise_of(make_step(network(), plan, momentum=momentum), examples(count, generator))
    reach = (
        0.7
        * (math.sqrt(2) if mode is ClippingMode.PER_LAYER else 1)
        * (1 if relation is Relation.ADD_OR_REMOVE else 2)
    )
    assert_scale(noise, 3.0 * reach / 20)


def test_noise_follows_the_clipping_that_runs_not_the_one_that_was_planned(generator):
    plan = PrivacyPlan(100, 20, steps=5, noise_multiplier=3.0, clipping=Clipping(clip_norm=0.7))
    step = make_step(network(), plan)
    step.clipper.clipping = Clipping(clip_norm=7.0)
    assert_scale(flat(gradients_of(step, examples(0, generator))), 3.0 * 7.0 / 20)


@pytest.mark.parametrize("wrong", [2 / 3, 3 / 2])
def test_the_scale_test_rejects_wrong_scales(wrong):
    noise = wrong * standard_normal(5000, SystemBits())
    with pytest.raises(AssertionError):
        assert_scale(noise, 1.0)


def test_the_grid_is_fine_enough_for_all_entries_together(generator):
    """γ√d is at most 2⁻¹⁰ of the sensitivity, d the number of all entries."""
    plan = PrivacyPlan(100, 20, steps=5, noise_multiplier=3.0, clipping=Clipping(clip_norm=0.7))
    step = make_step(network(), plan)
    noise, entries = step._grid_noise(step.clipper.current_grouping()), len(flat(step.parameters))
    assert noise.unit * math.sqrt(entries) <= 0.7 * 2.0**-10
    assert noise.std == pytest.approx(3.0 * (0.7 + noise.unit * math.sqrt(entries)), rel=1e-12)


def test_equal_steps_repeat_their_noise_only_if_it_is_seeded(generator):
    """A step that drew from a fixed stream under a plan with system noise would protect nobody."""
    batch = examples(8, generator)
    system = PrivacyPlan(100, 20, steps=5, noise_multiplier=1.0)
    seeded = PrivacyPlan(100, 20, steps=5, noise_multiplier=1.0, noise="seeded", seed=1)
    assert not torch.equal(
        noise_of(make_step(network(), system), batch), noise_of(make_step(network(), system), batch)
    )
    assert torch.equal(
        noise_of(make_step(network(), seeded), batch), noise_of(make_step(network(), seeded), batch)
    )


@both_ways
def test_the_sum_is_divided_by_the_planned_batch_size(momentum, generator):
    """Not by the number of examples drawn: the noise is nothing here, the batch twice as large as
    planned.
    """
    plan = PrivacyPlan(100, 20, steps=5, noise_multiplier=1e-9, clipping=Clipping(clip_norm=0.1))
    model, batch = network(), examples(40, generator)
    expected = flat(clipped_grad(model, cross_entropy, batch, clipping=plan.clipping).grads) / 20
    found = flat(gradients_of(make_step(model, plan, momentum=momentum), batch))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-9)


@both_ways
def test_kl_is_added_unclipped_and_after_the_noise(momentum, generator):
    """Its gradient is far longer than the clip norm and must arrive whole, divided by the number of
    examples.
    """
    plan = PrivacyPlan(100, 20, steps=5, noise_multiplier=1e-9, clipping=Clipping(clip_norm=1e-6))
    model = network("learned")
    step = make_step(model, plan, momentum=momentum, kl_weight=lambda step: 0.5)
    found = gradients_of(step, examples(20, generator))
    fresh = network("learned")
    expected = torch.autograd.grad(
        kl(fresh) * 0.5 / 100, list(fresh.parameters()), allow_unused=True
    )
    reached = [g for g in expected if g is not None]
    assert math.sqrt(sum(float(g.square().sum()) for g in reached)) > 1e-3
    for ours, gradient in zip(found.values(), expected, strict=True):
        if gradient is not None:
            torch.testing.assert_close(ours, gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("micro_batch", [None, 8])
@both_ways
def test_the_means_of_tied_layers_are_pulled_by_the_old_weights(momentum, micro_batch, generator):
    """Two steps that differ in the KL term only: their difference is its gradient at the weights
    before the noise.
    """
    plan = PrivacyPlan(
        100,
        20,
        steps=5,
        noise_multiplier=3.0,
        clipping=Clipping(clip_norm=1.0),
        noise="seeded",
        seed=7,
    )
    batch, found = examples(20, generator), []
    for kl_weight in (None, lambda step: 5.0):
        step = make_step(
            network("privacy"),
            plan,
            momentum=momentum,
            kl_weight=kl_weight,
            micro_batch=micro_batch,
        )
        with noise_from(torch.Generator().manual_seed(3)):
            found.append(gradients_of(step, batch))
    fresh = network("privacy")
    set_scale(fresh, step.zeta)
    expected = torch.autograd.grad(kl(fresh) * 5 / 100, list(fresh.parameters()), allow_unused=True)
    assert [gradient is None for gradient in expected] == [
        False,
        True,
        False,
        True,
    ]  # biases have no prior
    for without, pulled, gradient in zip(
        found[0].values(), found[1].values(), expected, strict=True
    ):
        pull = torch.zeros_like(pulled) if gradient is None else gradient
        torch.testing.assert_close(pulled - without, pull, rtol=1e-7, atol=1e-8)


def test_kl_weight_follows_the_step(generator):
    plan = PrivacyPlan(100, 20, steps=3, noise_multiplier=1e-9, clipping=Clipping(clip_norm=1e-9))
    model, seen = network("learned"), []
    step = make_step(
        model, plan, learning_rate=1e-9, kl_weight=lambda t: seen.append(t) or float(t)
    )
    norms = [
        gradients_of(step, examples(5, generator))["0.log_sigma2"].norm().item() for _ in range(3)
    ]
    assert seen == [0, 1, 2]
    assert norms[0] < 1e-6
    assert norms[2] == pytest.approx(2 * norms[1], rel=1e-3)


@pytest.mark.parametrize(
    ("relation", "reach"), [(Relation.ADD_OR_REMOVE, 1), (Relation.REPLACE_ONE, 2)]
)
def test_the_tied_scale_is_the_noise_of_the_update(relation, reach, generator):
    """Algorithm 1: ζ = ηzΔ/S is both what the update carries and what the forward pass samples
    with.
    """
    clipping = Clipping(ClippingMode.PER_LAYER, 0.7)
    plan = PrivacyPlan(100, 20, steps=5, noise_multiplier=3.0, clipping=clipping, relation=relation)
    model = network("privacy")
    step = make_step(model, plan, learning_rate=0.5)
    step(examples(8, generator))
    zeta = 0.5 * 3.0 * 0.7 * math.sqrt(2) * reach / 20
    assert zeta < step.zeta < 1.001 * zeta  # more than ηzΔ/S by what rounding to the grid takes
    for layer in (model[0], model[2]):
        assert layer.log_sigma2.exp().sqrt().item() == pytest.approx(step.zeta, rel=1e-5)
    assert_scale(noise_of(step, examples(8, generator)) * 0.5, zeta)


def test_a_tied_scale_needs_plain_sgd():
    plan = PrivacyPlan(100, 20, steps=5, noise_multiplier=3.0)
    model = network("privacy")
    with pytest.raises(DpvdError, match=r"only for torch\.optim\.SGD.*not for Adam"):
        declared(model, cross_entropy, plan, torch.optim.Adam(model.parameters()))
    groups = [
        {"params": layer.parameters(), "lr": rate}
        for layer, rate in ((model[0], 0.1), (model[2], 0.2))
    ]
    with pytest.raises(DpvdError, match=r"one parameter group .* not for SGD with 2"):
        declared(model, cross_entropy, plan, torch.optim.SGD(groups))


@both_ways
def test_learned_scales_get_their_gradient_back_in_their_own_units(momentum, generator):
    """Clipped and noised as g/J, multiplied by J after: the noise on log σ² is zΔ/S · σ/2."""
    plan = PrivacyPlan(100, 20, steps=5, noise_multiplier=3.0, clipping=Clipping(clip_norm=0.7))
    model = network("learned")
    found = gradients_of(make_step(model, plan, momentum=momentum), examples(0, generator))
    sigma = math.exp(-2.0)
    assert_scale(found["0.log_sigma2"].flatten(), 3.0 * 0.7 / 20 * sigma / 2)
    assert_scale(found["0.weight"].flatten(), 3.0 * 0.7 / 20)


def test_no_more_steps_than_planned(generator):
    plan = PrivacyPlan(100, 20, steps=2, noise_multiplier=1.0)
    step = make_step(network(), plan)
    for _ in range(2):
        step(examples(3, generator))
    weights = step.model[0].weight.detach().clone()
    with pytest.raises(DpvdError, match="2 steps are used up"):
        step(examples(3, generator))
    assert torch.equal(step.model[0].weight, weights)
    assert step.guarantee(1e-5).epsilon == plan.epsilon(1e-5)


def test_the_guarantee_is_for_the_steps_charged(generator):
    plan = PrivacyPlan(100, 20, steps=10, noise_multiplier=2.0)
    step = make_step(network(), plan)
    assert step.guarantee(1e-5).epsilon == 0
    step(examples(3, generator))
    assert step.guarantee(1e-5).epsilon == plan.epsilon(1e-5, steps=1)


class WatchedBits:
    """Random bits that note what a ledger says whenever they are asked for."""

    description = "watched"
    private = True

    def __init__(self, path) -> None:
        self.path = path
        self.seen = []

    def fill(self, buffer) -> None:
        self.seen.append(Ledger.open(self.path).charged)
        SystemBits().fill(buffer)


def test_a_step_is_on_disk_before_its_noisy_result_exists(tmp_path, generator):
    """Whoever reads the ledger while the noise is drawn must find the step there."""
    plan = PrivacyPlan(100, 20, steps=4, noise_multiplier=1.0)
    path = tmp_path / "ledger.jsonl"
    bits = WatchedBits(path)
    step = make_step(network(), plan, ledger=Ledger.create(path, plan.to_dict()), noise=bits)
    for taken in range(1, 5):
        bits.seen.clear()
        step(examples(3, generator))
        assert set(bits.seen) == {taken}


def test_a_call_that_fails_costs_nothing(tmp_path, generator):
    plan = PrivacyPlan(100, 20, steps=4, noise_multiplier=1.0)
    step = make_step(
        network(), plan, ledger=Ledger.create(tmp_path / "ledger.jsonl", plan.to_dict())
    )
    before = flat(step.parameters).clone()
    x, y = examples(3, generator)
    for bad in ((x.float(), y), (x[:, :5], y), (x, y[:2]), "nothing", (x, y + 7)):
        with pytest.raises((RuntimeError, DpvdError, IndexError)):
            step(bad)
        assert (step.charged, step.position, step.ledger.charged) == (0, 0, 0)
    assert torch.equal(flat(step.parameters), before)
    step((x, y))
    assert step.charged == 1


def test_long_runs_charge_in_blocks_never_beyond_the_plan(tmp_path, generator):
    plan = PrivacyPlan(
        100, 20, steps=251, noise_multiplier=1.0
    )  # in blocks of two, and one is left
    ledger = Ledger.create(tmp_path / "ledger.jsonl", plan.to_dict())
    step = make_step(network(), plan, ledger=ledger)
    totals = []
    for taken in range(1, 252):
        step((torch.zeros(0, 6, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)))
        assert ledger.charged >= taken
        assert step.position == taken
        totals.append(ledger.charged)
    assert totals[-1] == 251
    assert 100 <= len(set(totals)) <= 126


def test_without_noise_it_is_ordinary_training_bit_for_bit(generator):
    batch = examples(32, generator)
    ours, theirs = network(), network()
    plan = PrivacyPlan(32, 32, steps=3).calibrate(epsilon=math.inf, delta=1e-5)
    step = make_step(ours, plan, learning_rate=0.3)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.3)
    for _ in range(3):
        step(batch)
        optimizer.zero_grad()
        cross_entropy(theirs, *batch).mean().backward()
        optimizer.step()
    assert all(
        torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)
    )
    assert step.guarantee(1e-5).epsilon == math.inf


@pytest.mark.parametrize("micro_batch", [None, 5])
def test_without_noise_the_kl_term_pulls_as_well(micro_batch, generator):
    """The mean of the losses, and the KL term over the number of examples."""
    plan = PrivacyPlan(32, 32, steps=1).calibrate(epsilon=math.inf, delta=1e-5)
    batch, model, fresh = (
        examples(32, generator),
        network("learned").eval(),
        network("learned").eval(),
    )
    step = make_step(model, plan, kl_weight=lambda t: 5.0, micro_batch=micro_batch)
    found = gradients_of(step, batch)
    loss = cross_entropy(fresh, *batch).mean() + 5.0 * kl(fresh) / 32
    expected = torch.autograd.grad(loss, list(fresh.parameters()))
    for ours, gradient in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(ours, gradient, rtol=1e-6, atol=1e-9)


def test_a_tied_model_without_noise_has_no_dropout_and_no_kl(generator):
    plan = PrivacyPlan(32, 32, steps=1).calibrate(epsilon=math.inf, delta=1e-5)
    model = network("privacy")
    make_step(model, plan, kl_weight=lambda t: 1.0)(examples(32, generator))
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert all(m.log_sigma2 == -math.inf for m in model if isinstance(m, AdditiveLinear))


def test_convolutions_are_tied_too(generator):
    model = variational(
        nn.Sequential(nn.Conv2d(1, 3, 4), nn.Flatten()), rates="layer", learned=False
    )
    plan = PrivacyPlan(100, 20, steps=5, noise_multiplier=3.0, clipping=Clipping(clip_norm=0.7))
    step = make_step(model, plan)
    step(
        (torch.randn(8, 1, 4, 4, generator=generator), torch.randint(3, (8,), generator=generator))
    )
    assert step.zeta == pytest.approx(0.5 * 3.0 * 0.7 / 20, rel=1e-3)
    assert model[0].log_sigma2.exp().sqrt().item() == pytest.approx(step.zeta, rel=1e-5)


@pytest.mark.parametrize("failing", ["the first part", "a later part", "the noise"])
def test_an_interrupt_leaves_no_sum_behind_and_the_parameters_as_they_were(
    failing, generator, monkeypatch
):
    plan = PrivacyPlan(100, 20, steps=5, noise_multiplier=3.0, clipping=Clipping(clip_norm=0.7))
    step = make_step(network(), plan, micro_batch=4)
    step(examples(8, generator))
    before = flat(step.parameters).clone()
    add, seen = ClippedGradients.add_to, []

    def interrupted(clipped, totals):
        add(clipped, totals)
        seen.append(max(total.abs().max().item() for total in totals.values()))
        if (
            failing != "the noise"
            and len(seen) == ["the first part", "a later part"].index(failing) + 1
        ):
            raise KeyboardInterrupt

    def no_bits(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ClippedGradients, "add_to", interrupted)
    monkeypatch.setattr(type(step.noise), "windows", no_bits)
    with pytest.raises(KeyboardInterrupt):
        step(examples(8, generator))
    assert max(seen) > 0, "nothing was added up before the interrupt"
    assert torch.equal(flat(step.parameters), before)
    assert not any(total.any() for total in step.update._sums.values())


def test_other_optimizers_find_the_noisy_mean_in_grad(generator):
    plan = PrivacyPlan(100, 20, steps=5, noise_multiplier=1e-9, clipping=Clipping(clip_norm=0.1))
    model, batch = network(), examples(20, generator)
    expected = clipped_grad(model, cross_entropy, batch, clipping=plan.clipping).grads
    declared(model, cross_entropy, plan, torch.optim.Adam(model.parameters()))(batch)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name] / 20, rtol=1e-6, atol=1e-9)


def test_schedulers_and_optimizer_hooks_see_every_step(generator):
    plan = PrivacyPlan(100, 20, steps=5, noise_multiplier=1.0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.ExponentialLR(
        optimizer, 0.5
    )  # warns unless the optimizer has stepped
    seen = []
    optimizer.register_step_pre_hook(
        lambda *_: seen.append(all(p.grad is not None for p in model.parameters()))
    )
    step = declared(model, cross_entropy, plan, optimizer)
    for _ in range(2):
        step(examples(4, generator))
        schedule.step()
    assert seen == [True, True]
    assert optimizer.param_groups[0]["lr"] == 0.125


def test_a_model_that_changes_is_looked_at_again(generator):
    """Freezing a layer between steps changes what is trained, clipped and noised."""
    plan = PrivacyPlan(100, 20, steps=5, noise_multiplier=1.0)
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)).double()
    clipper = GradientClipper(model, cross_entropy, clipping=plan.clipping)
    assert set(clipper.current_grouping().parameters) == {
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
    }
    model[0].requires_grad_(False)
    (part,) = clipper(examples(4, generator))
    assert set(part.gradients) == {"1.weight", "1.bias"}
    model[1] = nn.BatchNorm1d(4).double()
    with pytest.raises(DpvdError, match="BatchNorm1d"):
        next(clipper(examples(4, generator)))


def test_a_layer_that_is_frozen_half_way_stays_as_it_is():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    plan = PrivacyPlan(20, 20, steps=4, noise_multiplier=1.0)
    step = PrivateStep(model, cross_entropy, plan, torch.optim.Adam(model.parameters(), lr=0.1))
    batches = plan.batches((torch.zeros(20, 4), torch.zeros(20, dtype=torch.long)))
    step(next(batches))
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    step(next(batches))
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_every_micro_batch_sees_the_weights_of_the_first(momentum, generator):
    """The step has one number of examples per slice, that of the clipper."""
    seen = []

    def noticing(model, x, y):
        seen.append(model[0].weight.detach().clone())
        return cross_entropy(model, x, y)

    plan = PrivacyPlan(100, 20, steps=5, noise_multiplier=3.0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=momentum)
    step = declared(model, noticing, plan, optimizer, micro_batch=3)
    step(examples(8, generator))
    before = model[0].weight.detach().clone()
    seen.clear()
    step.clipper.micro_batch = 2
    assert step.micro_batch == 2
    step(examples(8, generator))
    assert len(seen) >= 4
    assert all(torch.equal(weight, before) for weight in seen)
    assert not torch.equal(model[0].weight, before)


def test_a_step_looks_at_the_modules_once(generator, monkeypatch):
    from dpvd.grads.isolation.watch import StructureWatch

    looks = []
    same_modules = StructureWatch.same_modules

    def counted(watch):
        looks.append(watch)
        return same_modules(watch)

    step = make_step(network("privacy"), PrivacyPlan(100, 20, steps=9, noise_multiplier=3.0))
    step(examples(8, generator))
    monkeypatch.setattr(StructureWatch, "same_modules", counted)
    for taken in range(1, 4):
        step(examples(8, generator))
        assert len(looks) == taken
