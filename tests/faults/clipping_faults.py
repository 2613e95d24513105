"""Faults of adaptive clipping, whose count of unclipped gradients is a release of its own."""

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

CLIPPING, PLAN, QUANTILE = "grads/clipping.py", "plan.py", "training/quantile.py"
TESTS = "tests/training/test_adaptive_clipping.py::"

FAULTS = [
    Fault(
        "a count of unclipped gradients without noise",
        QUANTILE,
        {
            "        release_sums(sums, self.noise, bits, "
            'scales={"count": 1 / self._batch_size}, parameters={})\n': ""
            '        sums["count"] /= self._batch_size\n'
        },
        TESTS + "test_the_count_has_its_noise[add-or-remove]",
    ),
    Fault(
        "a count that is noised as if nobody could be replaced",
        CLIPPING,
        {"return _TIMES[relation] / 2": "return 0.5"},
        TESTS + "test_the_count_has_its_noise[replace-one]",
    ),
    Fault(
        "a count that is not paid for by the gradient's noise",
        CLIPPING,
        {"noise_multiplier / math.sqrt(1 - self.count_share),": "noise_multiplier,"},
        TESTS
        + "test_what_one_example_moves_is_covered_by_the_planned_multiplier[0.3-add-or-remove]",
    ),
    Fault(
        "a centred bit that counts whole",
        CLIPPING,
        {"within.double().sub_(0.5).sum()": "within.double().sum()"},
        TESTS
        + "test_what_one_example_moves_is_covered_by_the_planned_multiplier[0.3-add-or-remove]",
    ),
    Fault(
        "noise for the clip norm of the first step in all steps",
        "training/step.py",
        {
            "clipping = self.clipper.clipping  # which might not": ""
            "clipping = self.plan.clipping  # which might not"
        },
        TESTS + "test_noise_follows_the_norm_in_force",
    ),
    Fault(
        "a count divided by the realised batch size",
        QUANTILE,
        {
            "        self._total += clipped.": "        self._batch_size = len(clipped.losses) or 1\n"
            "        self._total += clipped."
        },
        TESTS + "test_the_count_is_divided_by_the_planned_batch_size",
    ),
    Fault(
        "a statement that does not name the count",
        PLAN,
        {'also_released=COUNT if self.clipping.is_adaptive else "",': 'also_released="",'},
        TESTS + "test_plan_statement_and_fingerprint_know_of_it",
    ),
]
