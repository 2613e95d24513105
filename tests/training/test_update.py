"""Sum first, then noise, then the parameter: what arrives, at which learning rate, and what stays behind."""

import math

import pytest
import torch
from torch import nn

from dpvd.grads import Clipping
from dpvd.mechanisms import SeededBits
from dpvd.plan import PrivacyPlan
from dpvd.training import PrivateStep, cross_entropy
from dpvd.training.update import Update

STD = 2.0
BATCH_SIZE = 20


class GivenSum:
    """Stands for the clipped gradients of a batch: their sum is known."""

    def __init__(self, sums: dict[str, torch.Tensor]) -> None:
        self.sums = sums

    def add_to(self, totals: dict[str, torch.Tensor]) -> None:
        for name, total in self.sums.items():
            totals[name] += total


def parameters_of(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
    """Zeros, under the names of the alphabet."""
    return {name: nn.Parameter(torch.zeros(shape, dtype=dtype)) for name, shape in zip("abcdef", shapes, strict=False)}


def release(update: Update, parameters: dict[str, nn.Parameter], sums: dict[str, torch.Tensor], seed: int = 0) -> None:
    update.begin(parameters)
    update.add(GivenSum(sums))
    update.release(STD, SeededBits(seed, "noise"), {}, {})


def assert_std(noise: torch.Tensor, expected: float) -> None:
    """To six standard errors: rejects two thirds and three halves of it by far."""
    error = 6 * expected / math.sqrt(2 * noise.numel())
    assert error < 0.15 * expected, "too few draws for the test to mean anything"
    assert abs(noise.double().std().item() - expected) < error


def test_every_group_has_noise_at_its_own_learning_rate() -> None:
    parameters = parameters_of((100, 50), (20_000,), (3000,))
    groups = [{"params": [parameters["b"]], "lr": 0.1}, {"params": [parameters["a"], parameters["c"]], "lr": 1e-4}]
    release(Update(torch.optim.SGD(groups, lr=1.0), BATCH_SIZE), parameters, {})
    assert_std(parameters["a"].detach(), 1e-4 * STD / BATCH_SIZE)
    assert_std(parameters["b"].detach(), 0.1 * STD / BATCH_SIZE)
    assert_std(parameters["c"].detach(), 1e-4 * STD / BATCH_SIZE)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_what_a_batch_does_not_reach_has_noise_like_the_rest(momentum: float) -> None:
    parameters = parameters_of((60, 50), (60, 50))
    update = Update(torch.optim.SGD(parameters.values(), lr=0.5, momentum=momentum), BATCH_SIZE)
    release(update, parameters, {"a": torch.full((60, 50), 30.0)})
    assert_std(parameters["b"].detach(), 0.5 * STD / BATCH_SIZE)
    assert_std(parameters["a"].detach() + 0.5 * 30.0 / BATCH_SIZE, 0.5 * STD / BATCH_SIZE)


def test_noise_follows_a_schedule_of_learning_rates() -> None:
    parameters = parameters_of((100, 50))
    optimizer = torch.optim.SGD(parameters.values(), lr=0.5)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)
    update = Update(optimizer, BATCH_SIZE)
    for step in range(4):
        before = parameters["a"].detach().clone()
        release(update, parameters, {}, seed=step)
        schedule.step()
        assert_std(parameters["a"].detach() - before, 0.5 * 0.1**step * STD / BATCH_SIZE)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_step_knows_nothing_of_the_one_before(momentum: float) -> None:
    """The buffers of a first step must be empty when a second one begins."""
    found = []
    for first in (0.0, 1000.0):
        parameters = parameters_of((30, 40))
        update = Update(torch.optim.SGD(parameters.values(), lr=0.5, momentum=momentum), BATCH_SIZE)
        release(update, parameters, {"a": torch.full((30, 40), first)})
        update.optimizer.state.clear()
        with torch.no_grad():
            parameters["a"].zero_()
        release(update, parameters, {}, seed=1)
        found.append(parameters["a"].detach())
    assert torch.equal(*found)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_no_sum_without_noise_is_left_after_a_step(optimizer: type[torch.optim.Optimizer]) -> None:
    parameters = parameters_of((30, 40))
    update = Update(optimizer(parameters.values(), lr=0.5), BATCH_SIZE)
    release(update, parameters, {"a": torch.full((30, 40), 1000.0)})
    left = update._sums["a"]
    assert (left == 0).all() or len(left.unique()) > 1000


def test_discarded_sums_are_gone() -> None:
    parameters = parameters_of((30, 40))
    update = Update(torch.optim.SGD(parameters.values(), lr=0.5), BATCH_SIZE)
    update.begin(parameters)
    update.add(GivenSum({"a": torch.ones(30, 40)}))
    update.discard()
    assert not update._sums["a"].any()
    assert not parameters["a"].any()


def test_a_parameter_that_changed_its_type_has_a_buffer_of_its_new_one() -> None:
    update = Update(torch.optim.SGD(parameters_of((30, 40)).values(), lr=0.5), BATCH_SIZE)
    for dtype in (torch.float32, torch.float64):
        parameters = parameters_of((30, 40), dtype=dtype)
        update.begin(parameters)
        assert update._sums["a"].dtype == dtype


class TestNoiseIsNotRoundedAway:
    """A weight of a default layer is some 0.03, its update at η = 1e-5 some 1e-7: half of what float32 tells apart."""

    def step(self, learning_rate: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights before and after."""
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 400), nn.Tanh(), nn.Linear(400, 3))
        plan = PrivacyPlan(100, BATCH_SIZE, steps=5, noise_multiplier=1.0, clipping=Clipping(clip_norm=1.0))
        optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
        before = model[0].weight.detach().clone()
        PrivateStep(model, cross_entropy, plan, optimizer, noise=SeededBits(3, "noise"))(
            (torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64))
        )
        return before, model[0].weight.detach()

    def test_the_update_is_the_exact_one_rounded_once(self) -> None:
        before, after = self.step(1e-5)
        start, large = self.step(1e3)  # the same noise where rounding does not matter
        exact = before.double() + (large.double() - start.double()) * 1e-8
        unit = torch.finfo(torch.float32).eps * before.abs().double().clamp_min(1e-6)
        assert ((after.double() - exact).abs() <= unit).all()
