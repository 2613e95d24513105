"""Optimizers on the noisy gradient: any of torch's, one's own, and the one that knows the noise."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from dpvd.errors import DpvdError
from dpvd.grads import Clipping
from dpvd.nn import variational
from dpvd.plan import PrivacyPlan
from dpvd.training import AdamBC, PrivateStep, Recipe, cross_entropy, fit

PLAN = PrivacyPlan(
    100,
    20,
    steps=6,
    noise_multiplier=3.0,
    clipping=Clipping(clip_norm=0.7),
    noise="seeded",
    seed=3,
)


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(100, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (100,), generator=generator)


class Lion(torch.optim.Optimizer):
    """A user's own: the sign of a mixture of momentum and gradient (arXiv 2302.06675)."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                beta1, beta2 = group["betas"]
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.lerp(p.grad, momentum, beta1).sign_(), alpha=-group["lr"])
                momentum.lerp_(p.grad, 1 - beta2)


OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.3, momentum=0.5),
    "sgd nesterov": partial(torch.optim.SGD, lr=0.3, momentum=0.9, nesterov=True, foreach=True),
    "sgd decay": partial(torch.optim.SGD, lr=0.3, weight_decay=0.1, fused=True),
    "adam": partial(torch.optim.Adam, lr=0.03, amsgrad=True),
    "adam foreach": partial(torch.optim.Adam, lr=0.03, foreach=True),
    "adam fused": partial(torch.optim.Adam, lr=0.03, fused=True),
    "adamw": partial(torch.optim.AdamW, lr=0.03, weight_decay=0.2),
    "adamw foreach": partial(torch.optim.AdamW, lr=0.03, weight_decay=0.2, foreach=True),
    "adamw fused": partial(torch.optim.AdamW, lr=0.03, weight_decay=0.2, fused=True),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.03, momentum=0.5, centered=True),
    "nadam": partial(torch.optim.NAdam, lr=0.03),
    "adagrad": partial(torch.optim.Adagrad, lr=0.03),
    "lion": partial(Lion, lr=0.003, weight_decay=0.1),
}


def groups_of(model: nn.Module, rate: float) -> list[dict[str, object]]:
    """Weights of the first layer at half the rate, biases without decay."""
    return [
        {"params": [model[0].weight], "lr": rate / 2},
        {"params": [model[0].bias, model[2].bias], "weight_decay": 0.0},
        {"params": [model[2].weight]},
    ]


@pytest.mark.parametrize("scheduled", [False, True], ids=["constant", "scheduled"])
@pytest.mark.parametrize("grouped", [False, True], ids=["one group", "groups"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_the_optimizers_own_on_the_noisy_gradient(name, grouped, scheduled):
    """The noisy gradients of one run, given by hand to a second optimizer, move a copy alike."""
    make = OPTIMIZERS[name]
    model, copy = network(), network()

    def optimizer_of(of: nn.Module) -> torch.optim.Optimizer:
        rate = make.keywords["lr"]
        return make(groups_of(of, rate) if grouped else of.parameters())

    ours, theirs = optimizer_of(model), optimizer_of(copy)
    makers = partial(torch.optim.lr_scheduler.LinearLR, start_factor=0.2, total_iters=4)
    schedules = [makers(one) for one in (ours, theirs)] if scheduled else []
    gradients = noisy_gradients()
    step = PrivateStep(model, cross_entropy, PLAN, ours)
    for batch in PLAN.batches(data()):
        step(batch)
        for parameter, gradient in zip(copy.parameters(), gradients(copy), strict=True):
            parameter.grad = gradient
        theirs.step()
        for schedule in schedules:
            schedule.step()
        for one, other in zip(model.parameters(), copy.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def noisy_gradients():
    """What each step subtracts with plain SGD of rate 1, from the weights of the run that is
    tested: the same seeds give the same batches and noise.
    """
    twin = network()
    plain = torch.optim.SGD(twin.parameters(), lr=1.0)
    step = PrivateStep(twin, cross_entropy, PLAN, plain)
    batches = PLAN.batches(data())

    def following(weights: nn.Module) -> list[torch.Tensor]:
        twin.load_state_dict(weights.state_dict())
        step.accept_weights()
        before = [p.detach().clone() for p in twin.parameters()]
        step(next(batches))
        return [old - p.detach() for old, p in zip(before, twin.parameters(), strict=True)]

    return following


def adam_bc_by_hand(gradients, stds, *, lr, betas, floor, eps, decay, start):
    """The formula of the docstring, term by term."""
    theta, m, v, u = start, torch.zeros_like(start), torch.zeros_like(start), 0.0
    for t, (g, s) in enumerate(zip(gradients, stds, strict=True), 1):
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        u = betas[1] * u + (1 - betas[1]) * s**2
        m_hat, v_hat, u_hat = (
            m / (1 - betas[0] ** t),
            v / (1 - betas[1] ** t),
            u / (1 - betas[1] ** t),
        )
        signal = torch.clamp(v_hat - u_hat, min=floor * u_hat)
        theta = theta * (1 - lr * decay) - lr * m_hat / (signal.sqrt() + eps)
    return theta


def test_adam_bc_follows_its_formula_also_when_the_noise_changes(generator):
    gradients = [torch.randn(50, generator=generator, dtype=torch.float64) for _ in range(7)]
    stds = [0.5, 0.5, 1.0, 2.0, 0.1, 0.1, 0.0]
    start = torch.randn(50, generator=generator, dtype=torch.float64)
    parameter = nn.Parameter(start.clone())
    optimizer = AdamBC([parameter], lr=0.03, betas=(0.8, 0.95), floor=0.2, weight_decay=0.1)
    for gradient, std in zip(gradients, stds, strict=True):
        parameter.grad = gradient.clone()
        optimizer.expect_noise({parameter: std})
        optimizer.step()
    expected = adam_bc_by_hand(
        gradients, stds, lr=0.03, betas=(0.8, 0.95), floor=0.2, eps=1e-8, decay=0.1, start=start
    )
    torch.testing.assert_close(parameter.detach(), expected, rtol=1e-10, atol=1e-12)


def test_adam_bc_without_noise_is_adamw(generator):
    start = torch.randn(50, generator=generator)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    first = AdamBC([ours], lr=0.03, weight_decay=0.1)
    second = torch.optim.AdamW([theirs], lr=0.03, weight_decay=0.1)
    for _ in range(20):
        ours.grad = torch.randn(50, generator=generator)
        theirs.grad = ours.grad.clone()
        first.expect_noise({ours: 0.0})
        first.step()
        second.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", ["points", "learned"])
def test_a_step_tells_the_noise_that_is_in_the_gradients(scale):
    """On empty batches a gradient is all noise: told and measured standard deviation agree."""
    plan = replace(PLAN, steps=1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: nn.Module = nn.Sequential(nn.Linear(6, 900), nn.Tanh(), nn.Linear(900, 3)).double()
    if scale == "learned":
        model = variational(model, log_sigma2=-3.0)
    optimizer = AdamBC(model.parameters())
    told = {}
    optimizer.register_step_pre_hook(lambda *_: told.update(optimizer._told))
    empty = torch.zeros(0, 6, dtype=torch.float64), torch.zeros(0, dtype=torch.long)
    PrivateStep(model, cross_entropy, plan, optimizer, batches="declared")(empty)
    for name, parameter in model.named_parameters():
        if parameter.numel() > 1000:
            ratio = (parameter.grad / told[parameter]).std().item()
            assert ratio == pytest.approx(1, abs=6 / math.sqrt(2 * parameter.numel())), name
            assert ("sigma" in name) == isinstance(told[parameter], torch.Tensor)


def test_noise_is_not_taken_for_that_of_a_later_step():
    parameter = nn.Parameter(torch.ones(3))
    optimizer = AdamBC([parameter])
    parameter.grad = torch.ones(3)
    with pytest.raises(DpvdError, match=r"does not know the noise.*PrivateStep"):
        optimizer.step()
    optimizer.expect_noise({parameter: 1.0})
    optimizer.step()
    with pytest.raises(DpvdError, match="does not know the noise"):
        optimizer.step()


@pytest.mark.parametrize(
    "wrong", [{"lr": -1.0}, {"floor": -0.1}, {"eps": 0.0}, {"betas": (0.9, 1.0)}]
)
def test_adam_bc_refuses_numbers_out_of_range(wrong):
    with pytest.raises(DpvdError, match=next(iter(wrong))):
        AdamBC([nn.Parameter(torch.ones(3))], **wrong)


def test_ordinary_training_tells_that_there_is_no_noise():
    plan = replace(PLAN, noise_multiplier=0.0)
    found = []
    for make in (AdamBC, torch.optim.AdamW):
        model = network()
        recipe = Recipe(learning_rate=0.03)
        optimizer = make(model.parameters(), lr=0.03, weight_decay=0.1)
        found.append(fit(model, data(), plan, recipe, delta=1e-5, optimizer=optimizer).model)
    for one, other in zip(*(model.parameters() for model in found), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "adam-bc", "rmsprop"])
def test_a_run_with_a_named_optimizer_resumes_bit_for_bit(optimizer, tmp_path):
    recipe = Recipe(
        learning_rate=0.03, optimizer=optimizer, momentum=0.9, decay="linear", weight_decay=0.01
    )
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    whole = fit(network(), data(), PLAN, recipe, delta=1e-5)
    _interrupted(recipe, tmp_path)
    resumed = fit(network(), data(), PLAN, recipe, delta=1e-5, folder=tmp_path, resume=True)
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_groups_of_ones_own_optimizer_keep_their_rates_under_a_schedule():
    model = network()
    optimizer = torch.optim.AdamW(groups_of(model, 0.1), lr=0.1)
    seen = []
    optimizer.register_step_pre_hook(
        lambda *_: seen.append([group["lr"] for group in optimizer.param_groups])
    )
    recipe = Recipe(learning_rate=1.0, decay="linear")
    fit(model, data(), PLAN, recipe, delta=1e-5, optimizer=optimizer)
    for step, rates in enumerate(seen):
        left = 1 - step / 6
        assert rates == pytest.approx([0.05 * left, 0.1 * left, 0.1 * left])


def test_resuming_with_another_optimizer_is_refused(tmp_path):
    recipe = Recipe(learning_rate=0.03)
    _interrupted(recipe, tmp_path)
    model = network()
    for optimizer, found in (
        (torch.optim.AdamW(model.parameters()), r"SGD on groups of \[4\].*AdamW on \[4\]"),
        (torch.optim.SGD(groups_of(model, 0.1)), r"SGD on groups of \[4\].*on \[1, 2, 1\]"),
    ):
        with pytest.raises(DpvdError, match=found):
            fit(
                model,
                data(),
                PLAN,
                recipe,
                delta=1e-5,
                folder=tmp_path,
                resume=True,
                optimizer=optimizer,
            )


def _interrupted(recipe: Recipe, folder) -> None:
    def interrupt(progress) -> None:
        if progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(network(), data(), PLAN, recipe, delta=1e-5, folder=folder, on_step=interrupt)


def test_a_state_that_no_checkpoint_holds_is_refused_with_a_remedy(tmp_path):
    class Odd(torch.optim.SGD):
        def step(self, closure=None):
            self.state[self.param_groups[0]["params"][0]]["odd"] = object()
            return super().step(closure)

    model = network()
    with pytest.raises(DpvdError, match=r"state of Odd cannot be written.*without a folder"):
        fit(
            model,
            data(),
            PLAN,
            Recipe(learning_rate=0.1),
            delta=1e-5,
            folder=tmp_path,
            optimizer=Odd(model.parameters(), lr=0.1),
        )


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "adam-bc", "rmsprop"])
def test_tied_scales_are_refused_for_all_but_sgd(optimizer):
    tied = variational(network(), rates="layer", learned=False)
    with pytest.raises(DpvdError, match="ties its dropout noise"):
        fit(tied, data(), PLAN, Recipe(learning_rate=0.1, optimizer=optimizer), delta=1e-5)
