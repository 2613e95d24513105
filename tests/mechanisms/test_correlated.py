"""Correlated noise: C times what is released is independent noise, and the account is that of C."""

import math

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from scipy import stats

from dpvd.errors import DpvdError
from dpvd.mechanisms import (
    MOST_BANDS,
    CorrelatedNoise,
    Draw,
    Partition,
    SeededBits,
    SystemBits,
    band_coefficients,
    noise_on_grid,
    standard_normal,
)
from dpvd.privacy import cyclic_event, epsilon, second_opinion
from tests.mechanisms.statistics import ALARM, independence_p_value, normal_p_value

ENTRIES = 3001
NOISE = noise_on_grid(1.0, 1.5, ENTRIES)
WHOLE = Partition(4, np.zeros(3, np.uint8))


def release(noise, step, bits, sums=None, partition=WHOLE, parameters=None, grid=NOISE):
    """What a step makes of sums, which are zero if not given."""
    sums = {"w": torch.zeros(ENTRIES, dtype=torch.float64)} if sums is None else sums
    noise.begin(Draw("plan", step, 0, partition=partition), grid, sums)
    scales = dict.fromkeys(sums, 1.0)
    noise.release(sums, grid, bits, scales=scales, parameters=parameters or {})
    return sums["w"]


def strategy(bands: int, steps: int) -> np.ndarray:
    """C, as the class documents it."""
    first = np.zeros(steps)
    first[:bands] = band_coefficients(bands)[:steps]
    matrix = np.stack([np.roll(first, j) * (np.arange(steps) >= j) for j in range(steps)], axis=1)
    return matrix / CorrelatedNoise(bands)._norm


class TestCoefficients:
    def test_all_of_them_are_the_root_of_momentum(self) -> None:
        root = np.array(band_coefficients(MOST_BANDS))
        summed = np.cumsum(0.9 ** np.arange(MOST_BANDS))  # 1 / ((1 - x)(1 - 0.9 x))
        assert np.convolve(root, root)[:MOST_BANDS] == pytest.approx(summed, rel=1e-12)

    @pytest.mark.parametrize("bands", [2, 3, 8, 64])
    def test_they_fall_and_their_inverse_is_bounded(self, bands: int) -> None:
        assert (np.diff(band_coefficients(bands)) < 0).all()
        inverse = np.linalg.inv(strategy(bands, 600))[:, 0]
        assert np.abs(inverse[300:]).sum() < 1e-3 * np.abs(inverse).sum()
        assert np.abs(inverse).sum() * math.sqrt(148 * math.log(2)) < 2**9  # _MOST_UNITS_PER_STD

    @pytest.mark.parametrize("bands", range(2, MOST_BANDS + 1))
    def test_no_column_is_longer_than_one(self, bands: int) -> None:
        column = np.array(band_coefficients(bands), np.longdouble)
        norm = np.longdouble(CorrelatedNoise(bands)._norm)
        length = np.sqrt(np.sum((column / norm) ** 2))
        assert 1 - 1e-14 < length <= 1

    def test_too_many_are_refused(self) -> None:
        with pytest.raises(DpvdError, match="bands must be at most 64, got 65"):
            band_coefficients(65)


class TestLaw:
    @pytest.mark.parametrize("bands", [2, 4, 7])
    def test_c_times_the_noise_is_the_independent_noise_it_is_made_of(self, bands: int) -> None:
        """To half a unit of the grid: the rounding, which is that of what is released."""
        noise = CorrelatedNoise(bands)
        steps = 3 * bands + 1
        bits = SeededBits(3, "noise")
        released = np.stack([release(noise, t, bits).numpy() for t in range(steps)])
        again = SeededBits(3, "noise")
        independent = np.stack([standard_normal(ENTRIES, again).numpy() for _ in range(steps)])
        found = strategy(bands, steps) @ released * noise._norm
        error = np.abs(found - noise._norm * NOISE.std * independent)
        assert error.max() <= 0.5001 * NOISE.unit
        assert np.array_equal(released, np.rint(released / NOISE.unit) * NOISE.unit)

    def test_c_times_the_noise_is_independent_and_of_the_planned_size(self) -> None:
        noise, bits = CorrelatedNoise(4), SystemBits()
        released = np.stack([release(noise, t, bits).numpy() for t in range(40)])
        made_of = torch.from_numpy(strategy(4, 40) @ released)
        assert normal_p_value(made_of, NOISE.std) > ALARM
        assert normal_p_value(made_of, NOISE.std * 2 / 3) < ALARM
        assert normal_p_value(made_of, NOISE.std * 3 / 2) < ALARM
        scaled = made_of / NOISE.std
        assert independence_p_value(scaled[1:], scaled[:-1]) > ALARM
        plain = torch.from_numpy(released[1:]) / NOISE.std
        assert independence_p_value(plain, torch.from_numpy(released[:-1]) / NOISE.std) < ALARM

    def test_later_noise_takes_earlier_back(self) -> None:
        noise, bits = CorrelatedNoise(8), SystemBits()
        total = sum(release(noise, t, bits) for t in range(200))
        alone = NOISE.std * math.sqrt(200)
        assert total.std().item() < 0.6 * alone

    def test_sums_enter_on_the_grid_and_nowhere_else(self) -> None:
        """What a sum changes is its rounded value, in its own step, to the last bit."""
        generator = torch.Generator().manual_seed(0)
        one, other = CorrelatedNoise(3), CorrelatedNoise(3)
        bits, same_bits = SeededBits(1, "noise"), SeededBits(1, "noise")
        for step in range(7):
            total = torch.randn(ENTRIES, generator=generator, dtype=torch.float64)
            rounded = torch.round(total / NOISE.unit) * NOISE.unit
            with_sum = release(one, step, bits, {"w": total.clone()})
            without = release(other, step, same_bits)
            assert torch.equal(with_sum - without, rounded)

    def test_extreme_sums_are_cut(self) -> None:
        total = torch.full((ENTRIES,), math.nan, dtype=torch.float64)
        total[0] = -math.inf
        released = release(CorrelatedNoise(2), 0, SystemBits(), {"w": total})
        assert released.isfinite().all()
        assert released[0] < 0 < released[1]

    def test_a_zero_tells_nothing_of_its_sign(self) -> None:
        noise = CorrelatedNoise(2)
        negative = {"w": torch.full((ENTRIES,), -1e-9, dtype=torch.float64)}
        grid = noise_on_grid(1.0, 1e-3, 1)
        wide = {"w": negative["w"] * 0}
        noise.begin(Draw("plan", 0, 0, partition=WHOLE), grid, wide)
        noise.release(wide, grid, SystemBits(), scales={"w": 1.0}, parameters={})
        zeros = wide["w"][wide["w"] == 0]
        assert not torch.signbit(zeros).any()


class TestRelease:
    def test_parameters_get_what_sums_would_become(self) -> None:
        shapes = {"w": (40, 5), "b": (5,), "none": (0,)}
        sums = {name: torch.ones(shape) for name, shape in shapes.items()}
        moved = {name: torch.full(shape, 2.0) for name, shape in shapes.items()}
        changed = {name: torch.ones(shape) for name, shape in shapes.items()}
        first, second = CorrelatedNoise(2), CorrelatedNoise(2)
        release(first, 0, SeededBits(2, "noise"), sums)
        release(second, 0, SeededBits(2, "noise"), changed, parameters=moved)
        for name in shapes:
            assert torch.equal(moved[name], (sums[name].double() + 2).float())
            assert not changed[name].any()

    def test_every_entry_has_noise_of_its_own(self) -> None:
        sums = {"w": torch.zeros(3, 5).T, "v": torch.zeros(15)}
        release(CorrelatedNoise(2), 0, SystemBits(), sums)
        values = torch.cat([sums["w"].flatten(), sums["v"]])
        assert len(values.unique()) == 30

    def test_noise_is_remembered_before_a_sum_is_touched(self) -> None:
        """A release that breaks off has its place in C: later noise takes it back as well."""
        noise, bits = CorrelatedNoise(4), SystemBits()
        release(noise, 0, bits)
        wrong = {"w": torch.zeros(7, dtype=torch.float64)}
        with pytest.raises(RuntimeError):
            release(noise, 1, bits, parameters=wrong)
        assert noise._kept.origin.step == 1
        assert len(noise._kept.past) == 2
        release(noise, 2, bits)

    def test_only_the_noise_of_the_last_steps_is_kept(self) -> None:
        noise, bits = CorrelatedNoise(4), SystemBits()
        for step in range(10):
            release(noise, step, bits)
        assert len(noise._kept.past) == 3

    def test_a_release_that_nobody_announced_is_refused(self) -> None:
        noise, bits = CorrelatedNoise(4), SystemBits()
        release(noise, 0, bits)
        sums = {"w": torch.zeros(ENTRIES)}
        with pytest.raises(DpvdError, match="must announce each release"):
            noise.release(sums, NOISE, bits, scales={"w": 1.0}, parameters={})


class TestBeginningAnew:
    CHANGES = (
        {"partition": Partition(4, np.zeros(3, np.uint8))},
        {"grid": noise_on_grid(2.0, 3.0, ENTRIES)},
        {"sums": {"other": torch.zeros(ENTRIES), "w": torch.zeros(5)}},
    )

    @pytest.mark.parametrize("change", CHANGES, ids=["partition", "noise", "parameters"])
    def test_inside_a_cycle_it_is_refused_and_nothing_has_changed(self, change) -> None:
        noise, bits = CorrelatedNoise(4), SystemBits()
        for step in range(6):
            release(noise, step, bits)
        kept = noise._kept
        with pytest.raises(DpvdError, match="step 6 is not a multiple of the plan's 4 bands"):
            release(noise, 6, bits, **change)
        assert noise._kept is kept
        release(noise, 6, bits)

    @pytest.mark.parametrize("change", CHANGES, ids=["partition", "noise", "parameters"])
    def test_between_cycles_the_noise_begins_anew(self, change) -> None:
        noise = CorrelatedNoise(4)
        for step in range(8):
            release(noise, step, SystemBits())
        release(noise, 8, SystemBits(), **change)
        assert len(noise._kept.past) == 1

    @pytest.mark.parametrize("step", [3, 5, 1])
    def test_steps_must_follow_each_other(self, step: int) -> None:
        noise, bits = CorrelatedNoise(4), SystemBits()
        for earlier in range(2):
            release(noise, earlier, bits)
        with pytest.raises(DpvdError, match="does not follow the last step"):
            release(noise, step, bits)

    def test_a_new_object_begins_with_a_cycle(self) -> None:
        with pytest.raises(DpvdError, match="step 3 is not a multiple"):
            release(CorrelatedNoise(4), 3, SystemBits())


# One example under the mechanism itself, by integration over all outputs.

Q, Z = 0.3, 0.8


def outcomes(bands: int, steps: int, parts: int) -> list[tuple[float, np.ndarray]]:
    """Probabilities and means of y = C G + Z where one example has gradient 1: it is in a random
    part, and in each step of its part with probability q."""
    matrix = strategy(bands, steps)
    found = []
    for part in range(parts):
        turns = np.arange(part, steps, parts)
        for pattern in np.ndindex(*(2,) * len(turns)):
            taken = np.zeros(steps)
            taken[turns] = pattern
            drawn = sum(pattern)
            weight = Q**drawn * (1 - Q) ** (len(turns) - drawn) / parts
            found.append((weight, matrix @ taken))
    return found


def deltas(found: list[tuple[float, np.ndarray]], loss: float) -> tuple[float, float]:
    """δ at ε = ``loss`` of removing and of adding the example."""
    steps = len(found[0][1])
    axis = np.arange(-6.5 * Z, 6.5 * Z + 1.3, Z / 10)
    space = np.stack(np.meshgrid(*(axis,) * steps, indexing="ij"))

    def density(mean: np.ndarray) -> np.ndarray:
        parts = [stats.norm.pdf(space[i], mean[i], Z) for i in range(steps)]
        return np.prod(parts, axis=0) * (Z / 10) ** steps

    without = density(np.zeros(steps))
    within = sum(weight * density(mean) for weight, mean in found)
    removed = np.maximum(within - math.exp(loss) * without, 0).sum()
    added = np.maximum(without - math.exp(loss) * within, 0).sum()
    return float(removed), float(added)


@pytest.mark.parametrize(("bands", "steps"), [(2, 2), (2, 3), (3, 3)])
@pytest.mark.parametrize("delta", [1e-2, 1e-4])
def test_the_account_covers_the_mechanism(bands: int, steps: int, delta: float) -> None:
    loss = epsilon(cyclic_event(Z, Q, bands, steps), delta)
    tolerance = 1 + 1e-3  # of the integration
    assert max(deltas(outcomes(bands, steps, bands), loss)) <= delta * tolerance
    # An example that is in every step, or in every other one, is not covered: the check has power.
    assert max(deltas(outcomes(bands, steps, parts=1), loss)) > 1.5 * delta


@pytest.mark.parametrize(("bands", "steps"), [(4, 100), (8, 1001), (50, 20)])
@pytest.mark.parametrize("prob", [0.02, 1.0])
def test_dp_accounting_agrees(bands: int, steps: int, prob: float) -> None:
    event = cyclic_event(2.0, prob, bands, steps)
    theirs = PLDAccountant()
    step = dp_accounting.PoissonSampledDpEvent(prob, dp_accounting.GaussianDpEvent(2.0))
    theirs.compose(step, math.ceil(steps / bands))
    assert epsilon(event, 1e-5) == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-3)
    assert second_opinion(event, 1e-5) == pytest.approx(theirs.get_epsilon(1e-5), rel=3e-3)
