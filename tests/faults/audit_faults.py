"""Faults of the engine that its audit has to find: each makes the measured ε pass the claimed one.

Other tests find them as well, each looking at the part that is broken. The audit knows nothing of
the parts: it looks at what is released.
"""

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

NOISE, PLAN, SAMPLING = "mechanisms/noise.py", "plan.py", "mechanisms/sampling.py"
CLIPPING, UPDATE = "grads/clipping.py", "training/update.py"
AUDIT, BOUNDS, ONE_RUN = "audit/white_box.py", "audit/bounds.py", "audit/one_run.py"
TEST_ENGINE = "tests/audit/test_white_box.py::test_the_engine_spends_what_it_claims"
TEST_SAMPLING = "tests/audit/test_white_box.py::test_so_does_an_engine_that_samples"
TEST_BOUNDS = "tests/audit/test_bounds.py::"
FLAT = TEST_ENGINE + "[flat-add-or-remove]"

OF_THE_ENGINE = [
    Fault(
        "audited: half the noise",
        NOISE,
        {"GridScale(noise.unit, noise.std, chunk": "GridScale(noise.unit, noise.std / 2, chunk"},
        FLAT,
    ),
    Fault(
        "audited: no clipping",
        CLIPPING,
        {"(bound / norms).clamp_max_(1.0)": "torch.ones_like(norms)"},
        FLAT,
    ),
    Fault(
        "audited: noise divided by the batch size once more",
        PLAN,
        {
            "return multiplier * sensitivity\n": "return multiplier * sensitivity / self.batch_size\n"
        },
        FLAT,
    ),
    Fault(
        "audited: the sum twice as large as what the noise is for",
        UPDATE,
        {
            "self._release_sums(self._sums, noise, bits, scales=scales, parameters=parameters)": ""
            "[total.mul_(2.0) for total in self._sums.values()]\n"
            "            self._release_sums("
            "self._sums, noise, bits, scales=scales, parameters=parameters)"
        },
        FLAT,
    ),
    Fault(
        "audited: examples that take part twice in a step",
        UPDATE,
        {
            "        clipped.add_to(self._sums)\n": "        clipped.add_to(self._sums)\n"
            "        clipped.add_to(self._sums)\n"
        },
        FLAT,
    ),
    Fault(
        "audited: sensitivity of one layer for all of them",
        CLIPPING,
        {"reach *= math.sqrt(groups)": "reach *= 1"},
        TEST_ENGINE + "[per-layer-add-or-remove]",
    ),
    Fault(
        "audited: sensitivity of removal under replace-one",
        CLIPPING,
        {"Relation.REPLACE_ONE: 2.0": "Relation.REPLACE_ONE: 1.0"},
        TEST_ENGINE + "[flat-replace-one]",
    ),
    Fault(
        "audited: examples drawn four times as often as accounted",
        SAMPLING,
        {"int(self.sampling_prob * 2.0**64)": "int(4 * self.sampling_prob * 2.0**64)"},
        TEST_SAMPLING + "[replace-one]",
    ),
]

OF_THE_BOUNDS = [
    Fault(
        "leakage in either direction taken for leakage",
        BOUNDS,
        {
            "float(scores.inside.mean() - scores.outside.mean())": ""
            "abs(float(scores.inside.mean() - scores.outside.mean()))"
        },
        TEST_BOUNDS + "test_gaussian_scores_without_any_leakage_seldom_show_some",
    ),
    Fault(
        "the threshold chosen on the scores it judges",
        BOUNDS,
        {
            "_best_threshold(inside[:first_inside], outside[:first_outside], each)": ""
            "_best_threshold(inside, outside, each)",
            "_rates(inside[first_inside:], outside[first_outside:], threshold, each)": ""
            "_rates(inside, outside, threshold, each)",
        },
        TEST_BOUNDS + "test_the_threshold_is_chosen_on_other_scores_than_are_judged",
    ),
    Fault(
        "rates as they were counted, without their error",
        BOUNDS,
        {
            "return float(betaincinv(errors + 1, trials - errors, 1 - significance))": ""
            "return max(errors, 1) / trials"
        },
        TEST_BOUNDS + "test_a_threshold_seldom_passes_the_claim[100-0.1]",
    ),
    Fault(
        "the largest share of right guesses taken as the one of ε",
        ONE_RUN,
        {"share = 1 / (1 + math.exp(-epsilon))": "share = 1 / (2 + math.exp(-epsilon))"},
        TEST_BOUNDS + "test_guesses_at_randomised_response_seldom_pass_its_epsilon",
    ),
]

FAULTS = [*OF_THE_ENGINE, *OF_THE_BOUNDS]
