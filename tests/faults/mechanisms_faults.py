"""Faults of noise, random bits and samplers."""

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

BITS, SAMPLING = "mechanisms/bits.py", "mechanisms/sampling.py"
TEST_BITS = "tests/mechanisms/test_bits.py::"
TEST_SAMPLING = "tests/mechanisms/test_sampling.py::"

FAULTS = [
    Fault(
        "sums not rounded to the grid",
        "native/draws.py",
        {"    units = np.rint(units)\n": ""},
        "tests/native/test_release.py::TestRelease::test_all_results_are_multiples_of_the_unit",
    ),
    Fault(
        "an angle of 32 bits",
        "native/reference.py",
        {
            "rest = below_quarter >> np.uint64(10)\n": ""
            "rest = below_quarter >> np.uint64(32) << np.uint64(22)\n"
        },
        "tests/native/test_release.py::TestDraws::test_54_bits_of_the_angle_matter",
    ),
    Fault(
        "small tensors left without noise",
        "mechanisms/noise.py",
        {"return [*large, *small.values()]": "return large or [*small.values()]"},
        "tests/mechanisms/test_noise.py::TestReleaseSums::"
        "test_large_sums_are_drawn_one_after_the_other_and_small_ones_last",
    ),
    Fault(
        "a window of the key stream given out twice",
        BITS,
        {"            self._used += taken\n": ""},
        TEST_BITS + "TestEverySource::test_no_block_ever_repeats[system]",
    ),
    Fault(
        "a seeded stream that stands still",
        BITS,
        {"        self._position += size\n": ""},
        TEST_BITS + "TestEverySource::test_no_block_ever_repeats[seeded]",
    ),
    Fault(
        "a forked child with the key of its parent",
        BITS,
        {" or self._owner != _process_identity()": ""},
        TEST_BITS + "TestSystemBits::test_a_forked_child_has_its_own_stream",
    ),
    Fault(
        "examples drawn more often than accounted",
        SAMPLING,
        {"int(self.sampling_prob * 2.0**64)": "int(self.sampling_prob * 1.1 * 2.0**64)"},
        TEST_SAMPLING + "TestPoissonSampler::test_threshold_is_exact",
    ),
    Fault(
        "a smaller probability accounted than drawn with",
        SAMPLING,
        {
            "return poisson_event(noise_multiplier, self.sampling_prob, steps)": ""
            "return poisson_event(noise_multiplier, self.sampling_prob / 2, steps)"
        },
        TEST_SAMPLING + "TestPoissonSampler::test_event_is_the_one_of_the_account",
    ),
    Fault(
        "batches of a fixed size drawn with replacement",
        SAMPLING,
        {
            "np.argpartition(keys, self.batch_size - 1)[: self.batch_size]": ""
            "(keys[: self.batch_size] % np.uint64(examples)).astype(np.int64)"
        },
        TEST_SAMPLING + "TestFixedSizeSampler::test_draws_agree_with_the_account",
    ),
]
