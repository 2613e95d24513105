"""Sum first, then noise, then the parameter: what arrives, at which learning rate, and what stays
behind.
"""

import math

import pytest
import torch
from torch import nn

from dpvd.grads import Jacobian
from dpvd.mechanisms import SeededBits, noise_on_grid
from dpvd.plan import PrivacyPlan
from dpvd.training import PrivateStep, cross_entropy
from dpvd.training.update import Update

STD = 2.0
BATCH_SIZE = 20


class GivenSum:
    """Stands for the clipped gradients of a batch: their sum is known."""

    def __init__(
        self, sums: dict[str, torch.Tensor], jacobian: dict[str, torch.Tensor] | None = None
    ) -> None:
        self.sums = sums
        self.jacobian = Jacobian(jacobian or {})

    def add_to(self, totals: dict[str, torch.Tensor]) -> None:
        for name, total in self.sums.items():
            totals[name] += total


def parameters_of(
    *shapes: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
) -> dict[str, nn.Parameter]:
    """Zeros, under the names of the alphabet."""
    zeros = [torch.zeros(shape, dtype=dtype) for shape in shapes]
    return {name: nn.Parameter(weight) for name, weight in zip("abcdef", zeros, strict=False)}


def release(
    update: Update,
    parameters: dict[str, nn.Parameter],
    sums: dict[str, torch.Tensor],
    seed: int = 0,
    jacobian: dict[str, torch.Tensor] | None = None,
) -> None:
    update.begin(parameters)
    update.add(GivenSum(sums, jacobian))
    noise = noise_on_grid(1.0, STD, sum(parameter.numel() for parameter in parameters.values()))
    update.release(noise, SeededBits(seed, "noise"), {})


def assert_std(noise: torch.Tensor, expected: float) -> None:
    """To six standard errors: rejects two thirds and three halves of it by far."""
    error = 6 * expected / math.sqrt(2 * noise.numel())
    assert error < 0.15 * expected, "too few draws for the test to mean anything"
    assert abs(noise.double().std().item() - expected) < error


def test_every_group_has_noise_at_its_own_learning_rate() -> None:
    parameters = parameters_of((100, 50), (20_000,), (3000,))
    groups = [
        {"params": [parameters["b"]], "lr": 0.1},
        {"params": [parameters["a"], parameters["c"]], "lr": 1e-4},
    ]
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


@pytest.mark.parametrize(
    "jacobian", [{}, {"a": torch.full((30, 40), 2.0)}], ids=["as it is", "in other units"]
)
@pytest.mark.parametrize("momenta", [[0.0, 0.0], [0.9, 0.9], [0.0, 0.9, 0.0], [0.0, 0.9, 0.9]])
def test_a_step_knows_nothing_of_the_one_before(
    momenta: list[float], jacobian: dict[str, torch.Tensor]
) -> None:
    """The buffers of a step must be empty when another one begins, whichever way either goes."""
    found = []
    for first in (0.0, 1000.0):
        parameters = parameters_of((30, 40))
        update = Update(torch.optim.SGD(parameters.values(), lr=0.5), BATCH_SIZE)
        for step, momentum in enumerate(momenta):
            update.optimizer.param_groups[0]["momentum"] = momentum
            update.optimizer.state.clear()
            with torch.no_grad():
                parameters["a"].zero_()
            last = step == len(momenta) - 1
            sums = {} if last else {"a": torch.full((30, 40), first)}
            release(update, parameters, sums, seed=step, jacobian=jacobian)
        found.append(parameters["a"].detach())
    assert torch.equal(*found)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_parameters_change_only_when_the_sums_are_released(momentum: float) -> None:
    """So every micro-batch sees the same weights, however a batch is cut."""
    parameters = parameters_of((30, 40))
    update = Update(torch.optim.SGD(parameters.values(), lr=0.5, momentum=momentum), BATCH_SIZE)
    before = parameters["a"].detach().clone()
    update.begin(parameters)
    for _ in range(3):
        update.add(GivenSum({"a": torch.full((30, 40), 7.0)}))
        assert torch.equal(parameters["a"].detach(), before)
        assert parameters["a"].grad is None
    update.release(noise_on_grid(1.0, 1e-3, 1200), SeededBits(0, "noise"), {})
    expected = before - 0.5 * 21.0 / BATCH_SIZE
    torch.testing.assert_close(parameters["a"].detach(), expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_no_sum_without_noise_is_left_after_a_step(optimizer: type[torch.optim.Optimizer]) -> None:
    parameters = parameters_of((30, 40))
    update = Update(optimizer(parameters.values(), lr=0.5), BATCH_SIZE)
    release(update, parameters, {"a": torch.full((30, 40), 1000.0)})
    left = update._sums["a"]
    assert (left == 0).all() or len(left.unique()) > 1000


def test_a_gradient_from_before_is_not_taken_for_this_steps() -> None:
    """A scheduler has the optimizer step after plain SGD has moved the weights: it must find
    nothing to do.
    """
    parameters = parameters_of((30, 40))
    parameters["a"].grad = torch.full((30, 40), 1000.0)
    optimizer = torch.optim.SGD(parameters.values(), lr=0.5)
    torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)
    release(Update(optimizer, BATCH_SIZE), parameters, {})
    assert_std(parameters["a"].detach(), 0.5 * STD / BATCH_SIZE)
    assert parameters["a"].detach().abs().max() < 10


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


class TestRoundingUndoesNoNoise:
    """A weight of a default layer is some 0.1, its update at η = 1e-5 some 5e-7: not far above the
    last place.
    """

    def weights(self, dtype: torch.dtype, momentum: float = 0.0) -> dict[str, torch.Tensor]:
        """All weights and gradients after a step on no examples at a small learning rate."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(60, 400), nn.Tanh(), nn.Linear(400, 3)).to(dtype)
        plan = PrivacyPlan(100, BATCH_SIZE, steps=5, noise_multiplier=1.0, noise="seeded", seed=3)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, momentum=momentum)
        step = PrivateStep(model, cross_entropy, plan, optimizer, batches="declared")
        step((torch.zeros(0, 60, dtype=dtype), torch.zeros(0, dtype=torch.int64)))
        return {
            name: p.detach() if p.grad is None else p.grad for name, p in model.named_parameters()
        }

    @pytest.mark.parametrize("momentum", [0.0, 0.9], ids=["weights", "gradients"])
    def test_float32_is_float64_rounded_once(self, momentum: float) -> None:
        single = self.weights(torch.float32, momentum)
        double = self.weights(torch.float64, momentum)
        for name, found in single.items():
            expected = double[name].float()
            unit = torch.finfo(torch.float32).eps * expected.abs()
            assert ((found - expected).abs() <= unit).all()
            assert (found == expected).float().mean() > 0.999

    def test_a_threshold_is_not_passed_more_often_than_gaussian_noise_allows(self) -> None:
        """Sums of 104.5 and 105.5, ten of which are one last place of the weight, and noise of 1.

        Added to the weight first, such noise would vanish, and the sum would round up if and only
        if it is the larger.
        """
        entries, unit = 40_000, 2.0**-25
        generator = torch.Generator().manual_seed(1)
        secret = torch.randint(2, (entries,), generator=generator)
        parameters = {"a": nn.Parameter(torch.full((entries,), 0.3))}
        update = Update(torch.optim.SGD(parameters.values(), lr=unit / 10 * BATCH_SIZE), BATCH_SIZE)
        update.begin(parameters)
        update.add(GivenSum({"a": -104.5 - secret}))
        update.release(noise_on_grid(1.0, 1.0, entries), SeededBits(0, "noise"), {})
        guess = (parameters["a"].detach().double() - torch.tensor(0.3).double()) / unit > 10.5
        advantage = guess[secret == 1].double().mean() - guess[secret == 0].double().mean()
        allowed = math.erf(0.5 / math.sqrt(2))  # distance in variation of N(0, 1) and N(1, 1): 0.38
        assert advantage.item() < allowed + 5 / math.sqrt(entries)
        assert advantage.item() > allowed - 0.2, "the attack is no attack"

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("momentum", [0.0, 0.9])
    def test_from_zero_weights_all_that_is_seen_lies_on_one_grid(
        self, dtype: torch.dtype, momentum: float
    ) -> None:
        """Whether anybody has a feature or not: a weight that is no multiple would prove that
        somebody has it.
        """
        parameters = parameters_of((100, 50), (20_000,), dtype=dtype)
        sums = {name: torch.zeros_like(p.detach()) for name, p in parameters.items()}
        for total in sums.values():
            total.view(-1)[::3] = torch.linspace(-1, 1, len(total.view(-1)[::3]), dtype=dtype)
        noise = noise_on_grid(1.0, 1.0, 25_000)
        update = Update(torch.optim.SGD(parameters.values(), lr=0.5, momentum=momentum), 16)
        update.begin(parameters)
        update.add(GivenSum(sums))
        update.release(noise, SeededBits(0, "noise"), {})
        for parameter in parameters.values():
            units = parameter.detach().double() * (16 / 0.5) / noise.unit
            assert torch.equal(units, units.round())
            assert units.abs().max() < 2**24

    def test_an_odd_layout_takes_the_same_noise(self) -> None:
        """Memory order is no part of the noise: a transposed weight gets what a contiguous one
        gets.
        """
        found = []
        for transposed in (False, True):
            weight = torch.zeros(50, 400).T if transposed else torch.zeros(400, 50)
            parameters = {"a": nn.Parameter(weight)}
            update = Update(torch.optim.SGD(parameters.values(), lr=0.5), BATCH_SIZE)
            release(update, parameters, {"a": torch.arange(20_000.0).view(400, 50)})
            assert not update._sums["a"].any()
            found.append(parameters["a"].detach())
        assert torch.equal(*found)
