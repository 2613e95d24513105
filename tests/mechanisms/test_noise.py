"""Gaussian noise: the right distribution is accepted, wrong ones are rejected, and nothing goes
unprotected.
"""

import math
import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from dpvd.errors import DpvdError
from dpvd.mechanisms import (
    GridNoise,
    SeededBits,
    SystemBits,
    noise_on_grid,
    release_sums,
    standard_normal,
)
from dpvd.mechanisms.bits import Window
from dpvd.native import (
    EXACT_BLOCK_BYTES,
    EXACT_BLOCK_DRAWS,
    exact_normals,
    implementation_in_use,
    write_key_stream,
)
from tests.mechanisms.statistics import ALARM, independence_p_value, normal_p_value

DRAWS = 400_000


class ConstantBits:
    """A source whose every byte is the same: it reaches the ends of the distribution."""

    description = "constant"
    private = False

    def __init__(self, byte: int) -> None:
        self.byte = byte

    def fill(self, buffer: np.ndarray) -> None:
        buffer[:] = self.byte


@pytest.fixture(params=["compiled", "pure"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever draws the noise, it has to pass the same tests."""
    monkeypatch.setenv("DPVD_NATIVE", "1" if request.param == "compiled" else "0")
    if implementation_in_use().compiled != (request.param == "compiled"):
        pytest.skip("the compiled kernels were not built")


@pytest.mark.usefixtures("implementation")
class TestStandardNormal:
    def test_draws_are_standard_normal(self) -> None:
        sample = standard_normal(DRAWS, SystemBits())
        assert sample.dtype == torch.float64
        assert normal_p_value(sample, 1.0) > ALARM

    def test_tails_reach_as_far_as_documented(self) -> None:
        largest = standard_normal(1, ConstantBits(0)).item()
        assert largest == pytest.approx(math.sqrt(148 * math.log(2)))
        assert torch.isfinite(standard_normal(9, ConstantBits(255))).all()

    def test_tails_beyond_four_and_a_half_are_populated(self) -> None:
        beyond = int((standard_normal(4_000_000, SystemBits()).abs() > 4.5).sum())
        assert 3 <= beyond <= 70  # Poisson with mean 27.2: outside with probability below 1e-8

    @pytest.mark.parametrize("count", [0, 1, 2, 3, 1023, 1024, 1025, 300_003])
    def test_every_count_is_filled_with_distinct_draws(self, count: int) -> None:
        sample = standard_normal(count, SystemBits())
        assert sample.shape == (count,)
        assert len(sample.unique()) == count

    def test_blocks_follow_one_another_in_the_stream(self) -> None:
        whole = standard_normal(EXACT_BLOCK_DRAWS + 10, SeededBits(5, "noise"))
        bits = SeededBits(5, "noise")
        parts = [standard_normal(EXACT_BLOCK_DRAWS, bits), standard_normal(10, bits)]
        assert torch.equal(whole, torch.cat(parts))

    def test_a_default_device_elsewhere_does_not_matter(self) -> None:
        with torch.device("meta"):
            assert standard_normal(3, SystemBits()).device.type == "cpu"


FAULTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "two thirds of the scale": lambda x: x * 2 / 3,
    "one and a half times the scale": lambda x: x * 3 / 2,
    "two percent too large": lambda x: x * 1.02,
    "half the variance": lambda x: x * math.sqrt(0.5),
    "mean off by two percent": lambda x: x + 0.02,
    "constant": lambda x: x[:1].expand(len(x)),
    "zero": torch.zeros_like,
    "uniform of the same variance": lambda x: (torch.special.ndtr(x) - 0.5) * math.sqrt(12),
    "coins of the same variance": torch.sign,
    "cut off at three": lambda x: x.clamp(-3, 3),
    "rounded to halves": lambda x: (2 * x).round() / 2,
    "only positive": torch.abs,
    "second half repeats the first": lambda x: torch.cat([x[: len(x) // 2]] * 2),
    "second half mirrors the first": lambda x: torch.cat([x[: len(x) // 2], -x[: len(x) // 2]]),
    "neighbours correlated": lambda x: (x + 0.02 * x.roll(1)) / math.sqrt(1 + 0.02**2),
    "every draw used twice": lambda x: x[: len(x) // 2].repeat_interleave(2),
    "neighbours share their size": lambda x: x[::2].repeat_interleave(2) * torch.sign(x),
}


class TestTheChecksHavePower:
    """The same check that accepts our noise rejects each of these."""

    @pytest.mark.parametrize("fault", FAULTS)
    def test_rejects(self, fault: str) -> None:
        sample = FAULTS[fault](standard_normal(DRAWS, SystemBits()))
        assert normal_p_value(sample, 1.0) < ALARM

    def test_rejects_dependent_samples(self) -> None:
        first = standard_normal(DRAWS, SystemBits())
        second = 0.05 * first + standard_normal(DRAWS, SystemBits())
        assert independence_p_value(first, second) < ALARM
        assert independence_p_value(first, first.abs() * torch.sign(second)) < ALARM


class TestNoiseOnGrid:
    @pytest.mark.parametrize("sensitivity", [1e-6, 0.7, 1.0, 250.0])
    @pytest.mark.parametrize("multiplier", [1e-9, 0.3, 1.0, 40.0])
    @pytest.mark.parametrize("entries", [1, 7, 10_000, 10**9])
    def test_the_noise_is_that_of_the_sensitivity_after_rounding(
        self, sensitivity: float, multiplier: float, entries: int
    ) -> None:
        noise = noise_on_grid(sensitivity, multiplier * sensitivity, entries)
        moved = noise.unit * math.sqrt(entries)
        assert noise.std == pytest.approx(multiplier * (sensitivity + moved), rel=1e-12)
        finest = 2.0**-10 * sensitivity * min(1.0, multiplier)
        assert finest / 2 < moved <= finest
        assert math.frexp(noise.unit)[0] == 0.5, "the unit is no power of two"

    @pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, True, "1"])
    def test_what_is_not_positive_is_refused(self, bad: float) -> None:
        with pytest.raises(DpvdError, match="std must be"):
            noise_on_grid(1.0, bad, 10)
        with pytest.raises(DpvdError, match="sensitivity must be"):
            noise_on_grid(bad, 1.0, 10)

    @pytest.mark.parametrize(("sensitivity", "std"), [(1.0, 1e15), (1e-300, 1e-300)])
    def test_what_has_no_grid_is_refused(self, sensitivity: float, std: float) -> None:
        with pytest.raises(DpvdError, match="has no grid in double precision"):
            noise_on_grid(sensitivity, std, 10_000)

    @pytest.mark.parametrize("seed", range(5))
    def test_rounded_neighbours_stay_as_near_as_the_noise_allows_for(self, seed: int) -> None:
        generator = np.random.default_rng(seed)
        first = generator.normal(size=10_000)
        step = generator.normal(size=10_000)
        step /= np.linalg.norm(step)
        noise = noise_on_grid(1.0, 1.0, 10_000)
        moved = [np.rint(sums / noise.unit) * noise.unit for sums in (first, first + step)]
        assert np.linalg.norm(moved[0] - moved[1]) <= noise.std  # the multiplier is 1


GRID = GridNoise(std=2.5, unit=2.0**-16)


def release(
    sums: dict[str, torch.Tensor],
    bits: SystemBits | SeededBits | None = None,
    *,
    noise: GridNoise = GRID,
    scales: dict[str, float] | None = None,
    parameters: dict[str, torch.Tensor] | None = None,
) -> None:
    release_sums(
        sums,
        noise,
        SystemBits() if bits is None else bits,
        scales=dict.fromkeys(sums, 1.0) if scales is None else scales,
        parameters=parameters or {},
    )


def on_grid(sums: torch.Tensor) -> torch.Tensor:
    return (sums.double() / GRID.unit).round() * GRID.unit


@pytest.mark.usefixtures("implementation")
class TestReleaseSums:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_adds_noise_of_the_right_scale_to_every_sum(self, dtype: torch.dtype) -> None:
        sums = {
            "weight": torch.full((500, 400), 3.0, dtype=dtype),
            "bias": torch.full((200_001,), -1.0, dtype=dtype),
        }
        release(sums)
        for noise in (sums["weight"] - 3.0, sums["bias"] + 1.0):
            assert normal_p_value(noise, 2.5) > ALARM
            assert normal_p_value(noise, 2.5 * 2 / 3) < ALARM
            assert normal_p_value(noise, 2.5 * 3 / 2) < ALARM

    def test_sums_and_calls_are_independent(self) -> None:
        bits, noise = SystemBits(), GridNoise(1.0, 2.0**-20)
        first = {"a": torch.zeros(DRAWS), "b": torch.zeros(DRAWS)}
        second = {"a": torch.zeros(DRAWS), "b": torch.zeros(DRAWS)}
        release(first, bits, noise=noise)
        release(second, bits, noise=noise)
        pairs = [(first["a"], first["b"]), (first["a"], second["a"]), (first["b"], second["b"])]
        for one, other in pairs:
            assert independence_p_value(one, other) > ALARM

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_nothing_tells_a_sum_of_zero_from_another(self, dtype: torch.dtype) -> None:
        """All that is released are multiples of γ; with float32 noise in float32 sums zero alone
        gave draws as such.
        """
        sums = torch.zeros(30_000, dtype=dtype)
        sums[15_000:] = torch.linspace(-0.1, 0.1, 15_000)
        release({"a": sums}, noise=GridNoise(std=2.5, unit=2.0**-19))
        units = sums.double() * 2.0**19
        assert torch.equal(units, units.round())
        odd = [(part % 2 == 1).sum().item() for part in (units[:15_000], units[15_000:])]
        assert all(stats.binomtest(count, 15_000, 0.5).pvalue > ALARM for count in odd)

    def test_large_sums_are_drawn_one_after_the_other_and_small_ones_last(self) -> None:
        shapes = {
            "a": (3, 5),
            "large": (200, 101),
            "b": (),
            "c": (0, 4),
            "also large": (20_001,),
            "d": (7,),
        }
        sums = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
        release(sums, SeededBits(2, "noise"))
        bits = SeededBits(2, "noise")
        for name in ("large", "also large"):
            expected = on_grid(GRID.std * standard_normal(sums[name].numel(), bits))
            assert torch.equal(sums[name].flatten(), expected)
        small = torch.cat([sums[name].flatten() for name in "abcd"])
        assert torch.equal(small, on_grid(GRID.std * standard_normal(23, bits)))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_parameters_take_it_at_their_own_scales(self, dtype: torch.dtype) -> None:
        """Large, small and non-contiguous, each rounded once."""
        shapes = {"large": (200, 101), "a": (3, 5), "b": (4,), "view": (6, 7)}
        scales = {"large": -0.1, "a": 2.0, "b": -0.1, "view": 3.0}
        sums = {
            name: standard_normal(math.prod(s), SystemBits()).view(s).to(dtype)
            for name, s in shapes.items()
        }
        parameters = {name: total.flip(0) for name, total in sums.items()}
        parameters["view"] = standard_normal(84, SystemBits()).to(dtype).view(7, 12).T[::2]
        before = {name: parameter.double().clone() for name, parameter in parameters.items()}
        bits, expected = SeededBits(4, "noise"), {}
        for (
            name,
            total,
        ) in sums.items():  # no two small ones have one scale: each draws by itself, in order
            noise = on_grid(GRID.std * standard_normal(total.numel(), bits)).view(total.shape)
            expected[name] = (before[name] + scales[name] * (on_grid(total) + noise)).to(dtype)
        release(sums, SeededBits(4, "noise"), scales=scales, parameters=parameters)
        for name, parameter in parameters.items():
            torch.testing.assert_close(
                parameter, expected[name], rtol=4 * torch.finfo(dtype).eps, atol=0
            )
            assert not sums[name].any()

    def test_sums_without_a_parameter_stay_where_they_are(self) -> None:
        sums = {"a": torch.zeros(9), "b": torch.zeros(9)}
        parameters = {"b": torch.zeros(9)}
        release(sums, scales={"a": 0.5, "b": 0.5}, parameters=parameters)
        assert (sums["a"] != 0).all()
        assert (sums["b"] == 0).all()
        assert (parameters["b"] != 0).all()

    def test_neighbours_in_one_buffer_are_left_alone(self) -> None:
        buffer = torch.linspace(-1, 1, 25_520)
        before = buffer.clone()
        release({"small": buffer[10:2000], "large": buffer[2003:-10]}, SeededBits(3, "noise"))
        changed = (buffer != before).nonzero().flatten().tolist()
        assert changed == [*range(10, 2000), *range(2003, 25_510)]

    def test_autograd_notices_that_a_tensor_was_changed(self) -> None:
        weight, x = torch.ones(3, requires_grad=True), torch.ones(3)
        loss = (weight * x).sum()
        release({"x": x})
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    def test_types_can_be_mixed(self) -> None:
        sums = {"single": torch.zeros(9), "double": torch.zeros(9, dtype=torch.float64)}
        release(sums, SeededBits(2, "noise"))
        bits = SeededBits(2, "noise")
        single, double = (on_grid(GRID.std * standard_normal(9, bits)) for _ in range(2))
        assert torch.equal(sums["single"], single.float())
        assert torch.equal(sums["double"], double)

    def test_non_contiguous_tensors_are_noised_in_place(self) -> None:
        base = torch.zeros(6, 8)
        release({"view": base.T[1:3]})
        assert (base[:, 1:3] != 0).all()
        assert (base[:, 3:] == 0).all()

    def test_position_counts_the_bytes(self) -> None:
        bits = SeededBits(0, "noise")
        release({"large": torch.zeros(20_001), "small": torch.zeros(3)}, bits)
        assert bits.position == 16 * (10_001 + 2)
        release({}, bits)
        assert bits.position == 16 * (10_001 + 2)

    @pytest.mark.parametrize("std", [1e-45, 1e38])
    def test_noise_that_float32_cannot_hold_is_refused_and_nothing_touched(
        self, std: float
    ) -> None:
        sums = torch.zeros(5)
        with pytest.raises(DpvdError, match="cannot hold it"):
            release({"a": sums}, noise=GridNoise(std, std / 1000))
        assert not sums.any()

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.complex64])
    def test_one_bad_type_leaves_all_sums_untouched(self, dtype: torch.dtype) -> None:
        sums = {"good": torch.zeros(5), "bad": torch.zeros(5, dtype=dtype)}
        with pytest.raises(DpvdError, match="but bad is"):
            release(sums)
        assert torch.equal(sums["good"], torch.zeros(5))

    def test_without_entropy_nothing_is_touched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bits = SystemBits(
            rekey_after=EXACT_BLOCK_BYTES
        )  # enough for the small sum, not for the large one
        monkeypatch.setattr(os, "urandom", no_entropy)
        sums = {"a": torch.ones(4), "b": torch.ones(20 * EXACT_BLOCK_DRAWS)}
        with pytest.raises(RuntimeError, match="gave no randomness"):
            release(sums, bits)
        assert all((total == 1).all() for total in sums.values())

    def test_a_change_of_key_falls_between_blocks(self) -> None:
        sums = torch.zeros(20 * EXACT_BLOCK_DRAWS + 5)
        release({"a": sums}, SystemBits(rekey_after=3 * EXACT_BLOCK_BYTES))
        assert (sums != 0).sum() > len(sums) - 5
        assert len(sums.unique()) > 0.9 * len(sums)

    def test_every_window_is_used_for_its_own_entries(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Noise from beyond a window would come from bytes that somebody else may be given."""
        given: list[Window] = []
        windows = SystemBits.windows

        def watched(bits: SystemBits, size: int, unit: int) -> list[Window]:
            given.extend(windows(bits, size, unit))
            return list(given)

        monkeypatch.setattr(SystemBits, "windows", watched)
        sums = torch.zeros(20 * EXACT_BLOCK_DRAWS + 6, dtype=torch.float64)
        release({"a": sums}, SystemBits(rekey_after=3 * EXACT_BLOCK_BYTES))
        assert len(given) == 7
        draws = []
        for window in given:
            raw = np.empty(window.size, np.uint8)
            write_key_stream(window.key, window.start, raw)
            draws.append(np.empty(window.size // 8))
            exact_normals(draws[-1], raw)
        assert torch.equal(sums, on_grid(GRID.std * torch.from_numpy(np.concatenate(draws))))


def no_entropy(size: int) -> bytes:
    raise NotImplementedError("no source of randomness")
