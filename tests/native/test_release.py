"""Noise on a grid: draws to 53 bits, whole numbers of units, by both implementations, for every
size.
"""

import doctest
import os

import numpy as np
import pytest
import torch
from scipy import stats

import dpvd.native.draws
from dpvd.errors import DpvdError
from dpvd.native import (
    EXACT_BLOCK_BYTES,
    EXACT_BLOCK_DRAWS,
    GridScale,
    exact_bytes_for,
    exact_normals,
    implementation_in_use,
    release_from_bytes,
    release_from_key,
    write_key_stream,
)
from tests.mechanisms.statistics import ALARM, normal_p_value

SIZES = [0, 1, 2, 3, 15, 16, 17, 1023, 1024, 1025, 1026, 2047, 2049, 70_001]
GUARD = 32
KEY = bytes(range(32))
UNIT = 2.0**-20
FURTHEST = np.sqrt(148 * np.log(2))
PI = np.longdouble("3.14159265358979323846264338327950288")

compiled = pytest.mark.skipif(
    not implementation_in_use().compiled, reason="the compiled kernels were not built"
)


def drawn(raw: np.ndarray, count: int) -> np.ndarray:
    out = np.empty(count)
    exact_normals(out, raw)
    return out


def raw_from(words: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """One block's bytes."""
    return np.concatenate([words, angles]).astype("<u8").view(np.uint8)


def random_bytes(count: int) -> np.ndarray:
    return np.frombuffer(os.urandom(exact_bytes_for(count)), np.uint8)


def reference(words: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """The definition in extended precision; of u 53 bits are kept."""
    fraction = ((angles % np.uint64(1024)).astype(np.float64) + 0.5) / 1024
    uniform = (words % np.uint64(2**63)).astype(np.float64) + fraction
    radius = np.sqrt(-2 * np.log(uniform.astype(np.longdouble) / np.longdouble(2) ** 63))
    shifted = angles + np.uint64(2**61)
    quarter = (shifted >> np.uint64(62)).astype(int)
    rest = (shifted % np.uint64(2**62) >> np.uint64(10)).astype(np.longdouble)
    x = (rest - 2**51 + np.longdouble(0.5)) * PI / np.longdouble(2) ** 53
    cosine = np.choose(quarter, [np.cos(x), -np.sin(x), -np.cos(x), np.sin(x)])
    sine = np.choose(quarter, [np.sin(x), np.cos(x), -np.sin(x), -np.cos(x)])
    return np.concatenate([radius * cosine, radius * sine])


def extreme_bits() -> tuple[np.ndarray, np.ndarray]:
    """Words on both sides of every power of two and of √½ of it, and angles around every eighth of
    a turn.
    """
    powers = [2**k + d for k in range(63) for d in (-1, 0, 1)]
    powers += [2**63 - d for d in (1, 2, 512, 513, 2**11, 2**40)]
    edges = [int(2**k * 0.5**0.5) + d for k in range(63) for d in (-1, 0, 1)]
    words = np.array([word % 2**63 for word in powers + edges], dtype=np.uint64)
    turns = [(eighth * 2**61 + d) % 2**64 for eighth in range(8) for d in (-1, 0, 1)]
    return words, np.resize(np.array(turns, dtype=np.uint64), len(words))


class TestDraws:
    def test_relative_error_of_random_draws(self, implementation: str) -> None:
        words, angles = np.random.default_rng(1).integers(0, 2**64, (2, 200, 512), dtype=np.uint64)
        for block_words, block_angles in zip(words, angles, strict=True):
            draws = drawn(raw_from(block_words, block_angles), EXACT_BLOCK_DRAWS)
            expected = reference(block_words, block_angles)
            assert np.abs(draws / expected - 1).max() < 5 * 2.0**-53

    def test_relative_error_at_all_scales(self, implementation: str) -> None:
        generator = np.random.default_rng(2)
        words = generator.integers(0, 2**63, 60 * 512, dtype=np.uint64).reshape(60, 512)
        angles = generator.integers(0, 2**64, 60 * 512, dtype=np.uint64).reshape(60, 512)
        for shift in range(60):
            small = words[shift] >> np.uint64(shift)
            near_one = np.uint64(2**63 - 2**11) - (small >> np.uint64(12))
            small_angles = angles[shift] >> np.uint64(shift)
            for tested in (small, near_one):
                found = drawn(raw_from(tested, small_angles), EXACT_BLOCK_DRAWS)
                assert np.abs(found / reference(tested, small_angles) - 1).max() < 5 * 2.0**-53

    def test_extreme_words_give_finite_draws_other_than_zero(self, implementation: str) -> None:
        words, angles = extreme_bits()
        draws = drawn(raw_from(words, angles), 2 * len(words))
        assert np.isfinite(draws).all()
        assert (draws != 0).all()
        assert np.abs(draws).max() <= FURTHEST * (1 + 1e-15)

    def test_the_distribution_is_exactly_symmetric(self, implementation: str) -> None:
        words, angles = extreme_bits()
        opposite = drawn(raw_from(words, angles + np.uint64(2**63)), 2 * len(words))
        np.testing.assert_array_equal(opposite, -drawn(raw_from(words, angles), 2 * len(words)))

    def test_the_furthest_draw(self, implementation: str) -> None:
        draw = drawn(raw_from(np.zeros(1, np.uint64), np.zeros(1, np.uint64)), 1)
        assert draw[0] == pytest.approx(FURTHEST, rel=1e-15)

    def test_54_bits_of_the_angle_matter(self, implementation: str) -> None:
        """With 32 bits the ratio of a pair would give the angle away, and with it every other draw
        of the pair.
        """
        angles = np.uint64(2**62 + 12345) + np.arange(500, dtype=np.uint64) * np.uint64(2**10)
        cosines = drawn(raw_from(np.full(500, 2**40, np.uint64), angles), 1000)[:500]
        assert len(np.unique(cosines)) == 500

    def test_ten_bits_of_the_angle_word_refine_the_tails(self, implementation: str) -> None:
        """Radii at the far end, which would be a few values otherwise."""
        angles = np.uint64(2**60) + np.arange(500, dtype=np.uint64) * np.uint64(2)
        cosines = drawn(raw_from(np.zeros(500, np.uint64), angles), 1000)[:500]
        assert (np.diff(cosines) < 0).all()

    def test_low_bits_are_populated(self, implementation: str) -> None:
        mantissas = drawn(random_bytes(100_000), 100_000).view(np.uint64)
        for bit in range(20):
            ones = int((mantissas >> np.uint64(bit) & np.uint64(1)).sum())
            assert stats.binomtest(ones, 100_000, 0.5).pvalue > ALARM

    def test_draws_are_standard_normal(self, implementation: str) -> None:
        sample = torch.from_numpy(drawn(random_bytes(400_001), 400_001))
        assert normal_p_value(sample, 1.0) > ALARM
        assert normal_p_value(sample, 2 / 3) < ALARM
        assert normal_p_value(sample, 3 / 2) < ALARM

    def test_both_halves_of_blocks_are(self, implementation: str) -> None:
        count = 400 * EXACT_BLOCK_DRAWS
        blocks = drawn(random_bytes(count), count).reshape(400, 2, -1)
        for half in (blocks[:, 0], blocks[:, 1]):
            assert normal_p_value(torch.from_numpy(half.copy()), 1.0) > ALARM

    @compiled
    def test_tails_hold_what_they_should(self) -> None:
        thresholds = (4.0, 4.5, 5.0)
        counts = np.zeros((3, 2), dtype=int)
        for _ in range(5):
            sample = drawn(random_bytes(4_000_000), 4_000_000)
            counts += [
                [(sample > threshold).sum(), (sample < -threshold).sum()]
                for threshold in thresholds
            ]
        for threshold, sides in zip(thresholds, counts, strict=True):
            for count in sides:
                assert (
                    stats.binomtest(int(count), 20_000_000, stats.norm.sf(threshold)).pvalue > ALARM
                )

    @compiled
    def test_compiled_and_numpy_draws_agree_to_fourteen_digits(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        raw = random_bytes(300_001)
        found = []
        for native in ("1", "0"):
            monkeypatch.setenv("DPVD_NATIVE", native)
            found.append(drawn(raw, 300_001))
        np.testing.assert_allclose(found[0], found[1], rtol=1e-14, atol=0)


def released(
    sums: np.ndarray,
    parameters: np.ndarray | None = None,
    *,
    std: float = 1.0,
    factor: float = 1.0,
    start: int = 0,
    threads: int = 1,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Copies of both after a release, made between guards that must stay as they are."""
    copies = []
    for array in (sums, parameters):
        if array is None:
            copies.append(None)
            continue
        memory = np.full(len(array) + 2 * GUARD, -77.0, array.dtype)
        memory[GUARD : GUARD + len(array)] = array
        copies.append(memory)
    inner = [None if memory is None else memory[GUARD : len(memory) - GUARD] for memory in copies]
    release_from_key(inner[0], inner[1], GridScale(UNIT, std, factor), KEY, start, threads=threads)
    for memory in copies:
        if memory is not None:
            assert (memory[:GUARD] == -77.0).all()
            assert (memory[len(memory) - GUARD :] == -77.0).all()
    return inner[0], inner[1]


def noise_units(count: int, std: float = 1.0, start: int = 0) -> np.ndarray:
    """What has to be added, in units of the grid."""
    raw = np.empty(exact_bytes_for(count), np.uint8)
    write_key_stream(KEY, start, raw)
    return np.rint(drawn(raw, count) * (std / UNIT))


class TestRelease:
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("count", SIZES)
    def test_is_the_rounded_sum_and_the_rounded_noise(
        self, implementation: str, dtype: type, count: int
    ) -> None:
        sums = np.random.default_rng(count).normal(scale=3, size=count).astype(dtype)
        noisy = UNIT * (np.rint(sums.astype(np.float64) / UNIT) + noise_units(count, 0.7, 9))
        found, _ = released(sums, std=0.7, factor=-0.3, start=9)
        assert found.tobytes() == (-0.3 * UNIT * (noisy / UNIT)).astype(dtype).tobytes()

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("count", SIZES)
    def test_parameters_take_it_and_the_sums_are_zeroed(
        self, implementation: str, dtype: type, count: int
    ) -> None:
        generator = np.random.default_rng(count)
        sums, parameters = generator.normal(size=(2, count)).astype(dtype)
        units = np.rint(sums.astype(np.float64) / UNIT) + noise_units(count, 0.7, 9)
        left, moved = released(sums, parameters, std=0.7, factor=-0.3, start=9)
        expected = (parameters.astype(np.float64) + (-0.3 * UNIT) * units).astype(dtype)
        assert moved.tobytes() == expected.tobytes()
        assert left.tobytes() == bytes(left.nbytes)  # no -0 either

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_all_results_are_multiples_of_the_unit(self, implementation: str, dtype: type) -> None:
        sums = np.random.default_rng(0).normal(size=5000).astype(dtype)
        sums[::2] = 0
        found, _ = released(sums, std=2.0**-4)
        units = found / UNIT
        assert np.abs(units).max() < 2**23, "larger numbers of units are no test of float32"
        np.testing.assert_array_equal(units, np.rint(units))

    def test_zero_has_one_sign(self, implementation: str) -> None:
        sums = np.array([-0.0, 0.0, -UNIT / 4, UNIT / 4] * 500)
        found, _ = released(sums, std=UNIT / 100)
        assert not found.any()
        assert not np.signbit(found).any()

    def test_sums_beyond_the_whole_numbers_are_cut(self, implementation: str) -> None:
        sums = np.array([1e300, -1e300, np.inf, -np.inf, np.nan, 2.0**30])
        found, _ = released(sums, std=1e-3)
        most = 2.0**51 * UNIT
        np.testing.assert_allclose(
            found, [most, -most, most, -most, most, 2.0**30], atol=1.0, rtol=0
        )

    @pytest.mark.parametrize("threads", [2, 3, 5])
    def test_on_any_number_of_threads(self, implementation: str, threads: int) -> None:
        sums, parameters = np.random.default_rng(0).normal(size=(2, 200_001)).astype(np.float32)
        alone = released(sums, parameters)
        shared = released(sums, parameters, threads=threads)
        assert shared[1].tobytes() == alone[1].tobytes()

    def test_pieces_at_block_edges_join_to_the_whole(self, implementation: str) -> None:
        sums = np.random.default_rng(0).normal(size=2 * EXACT_BLOCK_DRAWS + 77)
        whole, _ = released(sums)
        first, _ = released(sums[: 2 * EXACT_BLOCK_DRAWS])
        second, _ = released(sums[2 * EXACT_BLOCK_DRAWS :], start=2 * EXACT_BLOCK_BYTES)
        assert np.concatenate([first, second]).tobytes() == whole.tobytes()

    def test_bytes_do_as_the_key_stream_with_these_bytes(self, implementation: str) -> None:
        for count in SIZES:
            raw = np.zeros(exact_bytes_for(count) + 1, np.uint8)[1:]  # not aligned as words
            write_key_stream(KEY, 9, raw)
            sums = np.linspace(-1, 1, count)
            expected, _ = released(sums, start=9)
            release_from_bytes(sums, None, GridScale(UNIT, 1.0, 1.0), raw)
            assert sums.tobytes() == expected.tobytes()

    @compiled
    def test_compiled_and_numpy_differ_by_one_unit_and_rarely(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sums, found = np.random.default_rng(0).normal(size=1_000_001), []
        for native in ("1", "0"):
            monkeypatch.setenv("DPVD_NATIVE", native)
            found.append(released(sums)[0])
        apart = np.abs(found[0] - found[1]) / UNIT
        assert set(apart) <= {0.0, 1.0}
        assert (apart > 0).sum() <= 10


class TestArguments:
    @pytest.mark.parametrize(
        "sums",
        [
            np.zeros(8, np.float16),
            np.zeros((2, 4), np.float32),
            np.zeros(8, np.float32)[::2],
            np.frombuffer(bytes(32), np.float32),
            np.zeros(9, np.uint8)[1:].view(np.float64),
            np.zeros(8, ">f4"),
        ],
        ids=[
            "another type",
            "two dimensions",
            "not contiguous",
            "read-only",
            "not aligned",
            "big-endian",
        ],
    )
    def test_unsuitable_arrays_are_refused(self, implementation: str, sums: np.ndarray) -> None:
        with pytest.raises(DpvdError, match="noise goes into a contiguous"):
            release_from_key(sums, None, GridScale(UNIT, 1.0, 1.0), KEY)

    @pytest.mark.parametrize("parameters", [np.zeros(7, np.float32), np.zeros(8)])
    def test_parameters_must_be_like_their_sums(
        self, implementation: str, parameters: np.ndarray
    ) -> None:
        with pytest.raises(DpvdError, match="like their sums"):
            release_from_key(np.zeros(8, np.float32), parameters, GridScale(UNIT, 1.0, 1.0), KEY)

    @pytest.mark.parametrize("std", [-1.0, float("nan"), float("inf"), 2.0**48 * UNIT])
    def test_noise_that_the_grid_cannot_hold_is_refused(
        self, implementation: str, std: float
    ) -> None:
        with pytest.raises(DpvdError, match="at most 2\\^47 units"):
            release_from_key(np.zeros(8), None, GridScale(UNIT, std, 1.0), KEY)

    @pytest.mark.parametrize("size", [0, 31, 33, 48])
    def test_too_few_or_too_many_bytes_are_refused(self, implementation: str, size: int) -> None:
        raw = np.zeros(size, np.uint8)
        for attempt in (
            lambda: release_from_bytes(np.zeros(3), None, GridScale(UNIT, 1.0, 1.0), raw),
            lambda: exact_normals(np.zeros(3), raw),
        ):
            with pytest.raises(DpvdError, match="3 draws are made of 32 contiguous bytes"):
                attempt()

    @pytest.mark.parametrize(("key", "start"), [(bytes(31), 0), (KEY, -1), (KEY, 2**64 - 8)])
    def test_keys_and_places_outside_of_their_stream_are_refused(
        self, implementation: str, key: bytes, start: int
    ) -> None:
        with pytest.raises(DpvdError, match="key"):
            release_from_key(np.zeros(8), None, GridScale(UNIT, 1.0, 1.0), key, start)

    @compiled
    def test_the_kernel_itself_refuses_what_does_not_fit(self) -> None:
        from dpvd.native import _kernels

        numbers = 1.0, 1.0, 1.0
        with pytest.raises(ValueError, match="do not fit"):
            _kernels.release_from_stream(KEY, 0, np.zeros(4), np.zeros(5), 8, *numbers, 1)
        with pytest.raises(ValueError, match="float32 or float64"):
            _kernels.release_from_stream(KEY, 0, np.zeros(4), None, 2, *numbers, 1)
        with pytest.raises(ValueError, match="4 draws take 32 bytes"):
            _kernels.release_from_bytes(bytes(31), np.zeros(4), None, 8, *numbers)
        with pytest.raises(ValueError, match="key must have 32 bytes"):
            _kernels.release_from_stream(bytes(31), 0, np.zeros(4), None, 8, *numbers, 1)


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(dpvd.native.draws) == doctest.TestResults(failed=0, attempted=2)
