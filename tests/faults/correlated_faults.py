"""Faults of correlated noise: its law, the parts of the data, and the cycles that are paid for."""

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

CORRELATED, SAMPLING = "mechanisms/correlated.py", "mechanisms/sampling.py"
EVENTS, PLAN, STEP = "privacy/events.py", "plan.py", "training/step.py"
TEST_NOISE = "tests/mechanisms/test_correlated.py::"
TEST_SAMPLING = "tests/mechanisms/test_sampling.py::TestCyclicSampler::"
TEST_STEP = "tests/training/test_correlated.py::"
LAW = "TestLaw::test_c_times_the_noise_is_the_independent_noise_it_is_made_of[4]"

FAULTS = [
    Fault(
        "noise divided by the length of a column",
        CORRELATED,
        {"mul_(self._norm * noise.std / noise.unit)": "mul_(noise.std / noise.unit)"},
        TEST_NOISE + LAW,
    ),
    Fault(
        "noise of the step before drawn again",
        CORRELATED,
        {
            "units = standard_normal(entries, bits).mul_": ""
            "fresh = standard_normal(entries, bits)\n"
            "        self._drawn = getattr(self, '_drawn', fresh)\n"
            "        units = self._drawn.clone().mul_"
        },
        TEST_NOISE + LAW,
    ),
    Fault(
        "independent noise under the account of a banded matrix",
        CORRELATED,
        {"            units.sub_(earlier, alpha=coefficient)\n": "            pass\n"},
        TEST_NOISE + LAW,
    ),
    Fault(
        "sums with correlated noise not rounded to the grid",
        CORRELATED,
        {"clamp(-_MOST_UNITS, _MOST_UNITS).round()": "clamp(-_MOST_UNITS, _MOST_UNITS)"},
        TEST_NOISE + "TestLaw::test_sums_enter_on_the_grid_and_nowhere_else",
    ),
    Fault(
        "noise carried on into another partition of the data",
        CORRELATED,
        {
            "self == replace(other, step=other.step + 1)": ""
            "replace(self, partition=None) == replace(other, partition=None, step=other.step + 1)"
        },
        TEST_NOISE
        + "TestBeginningAnew::test_inside_a_cycle_it_is_refused_and_nothing_has_changed[partition]",
    ),
    Fault(
        "noise begun anew inside a cycle",
        CORRELATED,
        {"if draw.step % self.bands and not": "if False and not"},
        TEST_STEP + "test_batches_of_another_partition_are_refused_inside_a_cycle",
    ),
    Fault(
        "batches from all parts of the data",
        SAMPLING,
        {"        return drawn[in_turn]\n": "        return drawn\n"},
        TEST_STEP + "test_no_example_comes_twice_within_the_bands[batches]",
    ),
    Fault(
        "parts by position, which one example less moves",
        SAMPLING,
        {"words = random_words(examples, bits)\n        return cls": ""
         "words = np.arange(examples, dtype=np.uint64)\n        return cls"},
        TEST_SAMPLING + "test_removing_an_example_moves_no_other",
    ),
    Fault(
        "parts drawn anew at every step of a loader",
        PLAN,
        {
            "self._draw(number, count, part, partition, stream)": ""
            "self._draw(number, count, part, self._partition(count), stream)"
        },
        TEST_STEP + "test_no_example_comes_twice_within_the_bands[loader]",
    ),
    Fault(
        "the last part of a cycle for nothing",
        EVENTS,
        {"-(-steps // bands)": "steps // bands"},
        TEST_SAMPLING + "test_event_is_the_one_of_the_account[41-11]",
    ),
    Fault(
        "parts accounted as if they were the whole data",
        SAMPLING,
        {
            "cyclic_event(noise_multiplier, self.sampling_prob, self.bands": ""
            "cyclic_event(noise_multiplier, self.sampling_prob / self.bands, self.bands"
        },
        TEST_SAMPLING + "test_event_is_the_one_of_the_account[40-10]",
    ),
    Fault(
        "half a cycle charged",
        STEP,
        {"-(-block // plan.bands) * plan.bands": "block"},
        TEST_STEP + "test_steps_are_charged_by_the_cycle_and_a_new_object_begins_with_one",
    ),
    Fault(
        "correlated noise accounted for a group as independent noise",
        EVENTS,
        {"    return isinstance(event, CyclicSampledDpEvent)\n": "    return False\n"},
        "tests/privacy/test_group.py::test_correlated_noise_has_the_chain_only[False]",
    ),
]  # fmt: skip
