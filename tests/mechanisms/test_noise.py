"""Gaussian noise: the right distribution is accepted, wrong ones are rejected, and nothing goes unprotected."""

import math
import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpvd.errors import DpvdError
from dpvd.mechanisms import SeededBits, SystemBits, add_gaussian, fill_normal, standard_normal
from dpvd.native import BLOCK_BYTES, BLOCK_DRAWS, implementation_in_use
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


def box_muller(raw: bytes, count: int) -> np.ndarray:
    """The transform written down once more, in extended precision, block by block."""
    draws = np.empty(count, dtype=np.longdouble)
    for start in range(0, count, BLOCK_DRAWS):
        part = draws[start : start + BLOCK_DRAWS]
        pairs = (len(part) + 1) // 2
        planes = np.frombuffer(raw, "<u4", 3 * pairs, offset=6 * start).reshape(3, pairs)
        high, low, angle = planes.astype(np.longdouble)
        words = high % 2**31 * 2**32 + low
        radius = np.sqrt(-2 * np.log((words + 0.5) / np.longdouble(2) ** 63))
        phi = 2 * np.longdouble(np.pi) * (angle + 0.5) / 2**32
        part[:] = np.concatenate([radius * np.cos(phi), radius * np.sin(phi)])[: len(part)]
    return draws.astype(np.float64)


@pytest.fixture(params=["compiled", "pure"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever draws the noise, it has to pass the same tests."""
    monkeypatch.setenv("DPVD_NATIVE", "1" if request.param == "compiled" else "0")
    if implementation_in_use().compiled != (request.param == "compiled"):
        pytest.skip("the compiled kernels were not built")


@pytest.mark.usefixtures("implementation")
class TestStandardNormal:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_draws_are_standard_normal(self, dtype: torch.dtype) -> None:
        sample = standard_normal(DRAWS, SystemBits(), dtype)
        assert sample.dtype == dtype
        assert normal_p_value(sample, 1.0) > ALARM

    @pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.float64, 1e-13)])
    @settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(count=st.integers(0, 5000), seed=st.integers(0, 2**32))
    def test_equals_the_transform_in_extended_precision(
        self, dtype: torch.dtype, tolerance: float, count: int, seed: int
    ) -> None:
        raw = np.empty((count + 1) // 2 * 12, dtype=np.uint8)
        SeededBits(seed, "noise").fill(raw)
        sample = standard_normal(count, SeededBits(seed, "noise"), dtype)
        np.testing.assert_allclose(sample.numpy(), box_muller(raw.tobytes(), count), atol=tolerance, rtol=0)

    def test_tails_reach_as_far_as_documented(self) -> None:
        assert standard_normal(1, ConstantBits(0)).item() == pytest.approx(math.sqrt(128 * math.log(2)))
        assert torch.isfinite(standard_normal(9, ConstantBits(255), torch.float64)).all()

    def test_tails_beyond_four_and_a_half_are_populated(self) -> None:
        beyond = int((standard_normal(4_000_000, SystemBits()).abs() > 4.5).sum())
        assert 3 <= beyond <= 70  # Poisson with mean 27.2: outside with probability below 1e-8

    @pytest.mark.parametrize("count", [0, 1, 2, 3, BLOCK_DRAWS - 1, BLOCK_DRAWS, BLOCK_DRAWS + 1, 300_003])
    def test_every_count_is_filled_with_distinct_draws(self, count: int) -> None:
        sample = standard_normal(count, SystemBits(), torch.float64)
        assert sample.shape == (count,)
        assert len(sample.unique()) == count

    def test_blocks_follow_one_another_in_the_stream(self) -> None:
        whole = standard_normal(BLOCK_DRAWS + 10, SeededBits(5, "noise"))
        bits = SeededBits(5, "noise")
        assert torch.equal(whole, torch.cat([standard_normal(BLOCK_DRAWS, bits), standard_normal(10, bits)]))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.int64])
    def test_other_types_are_refused(self, dtype: torch.dtype) -> None:
        with pytest.raises(DpvdError, match=r"float32 or torch\.float64"):
            standard_normal(3, SystemBits(), dtype)

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


@pytest.mark.usefixtures("implementation")
class TestFillNormal:
    @pytest.mark.parametrize("std", [1e-3, 1.0, 7.5])
    def test_scale_is_right_and_two_thirds_and_three_halves_are_not(self, std: float) -> None:
        out = torch.empty(DRAWS)
        fill_normal(out, std, SystemBits())
        assert normal_p_value(out, std) > ALARM
        assert normal_p_value(out, std * 2 / 3) < ALARM
        assert normal_p_value(out, std * 3 / 2) < ALARM

    def test_successive_fills_are_independent(self) -> None:
        bits, first, second = SystemBits(), torch.empty(DRAWS), torch.empty(DRAWS)
        fill_normal(first, 1.0, bits)
        fill_normal(second, 1.0, bits)
        assert independence_p_value(first, second) > ALARM

    def test_views_are_filled_and_their_surroundings_are_not(self) -> None:
        base = torch.full((6, 8), 9.0, dtype=torch.float64)
        fill_normal(base[::2, 1:4].T, 1.0, SystemBits())
        inside = torch.zeros(6, 8, dtype=torch.bool)
        inside[::2, 1:4] = True
        assert (base[~inside] == 9.0).all()
        assert len(base[inside].unique()) == 9

    def test_overwrites_whatever_was_there(self) -> None:
        out = torch.full((50,), float("nan"))
        fill_normal(out, 2.0, SystemBits())
        assert torch.isfinite(out).all()

    def test_zero_std_gives_zeros(self) -> None:
        out = torch.ones(3)
        fill_normal(out, 0.0, SystemBits())
        assert torch.equal(out, torch.zeros(3))

    def test_parameters_that_require_gradients_are_legal(self) -> None:
        weight = torch.nn.Parameter(torch.zeros(4))
        fill_normal(weight, 1.0, SystemBits())
        assert weight.requires_grad
        assert (weight != 0).all()


@pytest.mark.usefixtures("implementation")
class TestAddGaussian:
    def test_adds_noise_of_the_right_scale_to_every_tensor(self) -> None:
        sums = {"weight": torch.full((500, 400), 3.0), "bias": torch.full((200_001,), -1.0)}
        add_gaussian(sums, 2.5, SystemBits())
        for noise in (sums["weight"] - 3.0, sums["bias"] + 1.0):
            assert normal_p_value(noise, 2.5) > ALARM
            assert normal_p_value(noise, 2.5 * 2 / 3) < ALARM
            assert normal_p_value(noise, 2.5 * 3 / 2) < ALARM

    def test_tensors_and_calls_are_independent(self) -> None:
        bits = SystemBits()
        first = {"a": torch.zeros(DRAWS), "b": torch.zeros(DRAWS)}
        second = {"a": torch.zeros(DRAWS), "b": torch.zeros(DRAWS)}
        add_gaussian(first, 1.0, bits)
        add_gaussian(second, 1.0, bits)
        for one, other in ((first["a"], first["b"]), (first["a"], second["a"]), (first["b"], second["b"])):
            assert independence_p_value(one, other) > ALARM

    def test_tensors_are_drawn_one_after_the_other(self) -> None:
        """Large ones each by itself, then the small ones together."""
        shapes = {"a": (3, 5), "large": (200, 101), "b": (), "c": (0, 4), "also large": (20_001,), "d": (7,)}
        tensors, bits = {name: torch.zeros(shape) for name, shape in shapes.items()}, SeededBits(2, "noise")
        add_gaussian(tensors, 1.0, SeededBits(2, "noise"))
        for name in ("large", "also large"):
            assert torch.equal(tensors[name].flatten(), standard_normal(tensors[name].numel(), bits))
        small = torch.cat([tensors[name].flatten() for name in "abcd"])
        assert torch.equal(small, standard_normal(23, bits))

    def test_neighbours_in_one_buffer_are_left_alone(self) -> None:
        buffer = torch.linspace(-1, 1, 25_520)
        before = buffer.clone()
        add_gaussian({"small": buffer[10:2000], "large": buffer[2003:-10]}, 0.7, SeededBits(3, "noise"))
        changed = (buffer != before).nonzero().flatten().tolist()
        assert changed == [*range(10, 2000), *range(2003, 25_510)]

    def test_autograd_notices_that_a_tensor_was_changed(self) -> None:
        weight, x = torch.ones(3, requires_grad=True), torch.ones(3)
        loss = (weight * x).sum()
        add_gaussian({"x": x}, 1.0, SystemBits())
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    def test_types_can_be_mixed(self) -> None:
        tensors = {"single": torch.zeros(9), "double": torch.zeros(9, dtype=torch.float64)}
        add_gaussian(tensors, 1.0, SeededBits(2, "noise"))
        bits = SeededBits(2, "noise")
        assert torch.equal(tensors["double"], standard_normal(9, bits, torch.float64))
        assert torch.equal(tensors["single"], standard_normal(9, bits))

    def test_non_contiguous_tensors_are_noised_in_place(self) -> None:
        base = torch.zeros(6, 8)
        add_gaussian({"view": base.T[1:3]}, 1.0, SystemBits())
        assert (base[:, 1:3] != 0).all()
        assert (base[:, 3:] == 0).all()

    def test_zero_std_changes_no_bit_and_draws_nothing(self) -> None:
        bits = SeededBits(0, "noise")
        tensor = torch.tensor([-0.0, 1.0, float("inf")])
        add_gaussian({"a": tensor}, 0.0, bits)
        assert torch.equal(tensor.view(torch.int32), torch.tensor([-0.0, 1.0, float("inf")]).view(torch.int32))
        assert bits.position == 0

    def test_no_tensors_draw_nothing(self) -> None:
        bits = SeededBits(0, "noise")
        add_gaussian({}, 1.0, bits)
        assert bits.position == 0

    @pytest.mark.parametrize("std", [-1.0, float("nan"), float("inf"), True, "1", 1e-45, 1e38])
    def test_bad_std_is_refused_and_nothing_touched(self, std: float) -> None:
        tensor = torch.zeros(5)
        for attempt in (lambda: add_gaussian({"a": tensor}, std, SystemBits()), lambda: fill(tensor, std)):
            with pytest.raises(DpvdError, match="std must be"):
                attempt()
        assert torch.equal(tensor, torch.zeros(5))

    def test_bad_std_is_refused_without_tensors_too(self) -> None:
        with pytest.raises(DpvdError, match="std must be"):
            add_gaussian({}, -1.0, SystemBits())

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.complex64])
    def test_one_bad_type_leaves_all_tensors_untouched(self, dtype: torch.dtype) -> None:
        tensors = {"good": torch.zeros(5), "bad": torch.zeros(5, dtype=dtype)}
        with pytest.raises(DpvdError, match="but bad is"):
            add_gaussian(tensors, 1.0, SystemBits())
        assert torch.equal(tensors["good"], torch.zeros(5))

    def test_without_entropy_no_tensor_gets_part_of_its_noise(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bits = SystemBits(rekey_after=BLOCK_BYTES)  # enough for the first tensor and the beginning of the second
        monkeypatch.setattr(os, "urandom", no_entropy)
        tensors = {"a": torch.zeros(4), "b": torch.zeros(3 * BLOCK_DRAWS)}
        with pytest.raises(RuntimeError, match="gave no randomness"):
            add_gaussian(tensors, 1.0, bits)
        assert not tensors["b"].any()


def fill(tensor: torch.Tensor, std: float) -> None:
    fill_normal(tensor, std, SystemBits())


def no_entropy(size: int) -> bytes:
    raise NotImplementedError("no source of randomness")
