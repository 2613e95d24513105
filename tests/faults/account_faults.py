"""Faults by which a data set's account holds less than was spent."""

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

ACCOUNT, COST, DRAW = "privacy/data_account.py", "privacy/cost.py", "runs/draw.py"
TEST_ACCOUNT = "tests/privacy/test_data_account.py::"
TEST_RUNS = "tests/runs/test_account.py::"

FAULTS = [
    Fault(
        "a run that does not draw",
        DRAW,
        {"    if options.account is None:\n        yield None": "    if True:\n        yield None"},
        TEST_RUNS + "test_a_run_is_reserved_before_its_first_step_and_settled_by_its_ledger",
    ),
    Fault(
        "drawn after the run",
        DRAW,
        {
            "    account.reserve(\n        folder": "    reserve = lambda: account.reserve(\n        folder",
            "    draw.settle()\n": "    reserve()\n    draw.settle()\n",
        },
        TEST_RUNS + "test_a_run_is_reserved_before_its_first_step_and_settled_by_its_ledger",
    ),
    Fault(
        "a run given back although steps were charged",
        DRAW,
        {"        if not charged_in(folder).steps:\n": "        if True:\n"},
        TEST_RUNS + "test_an_interrupted_run_keeps_its_reservation",
    ),
    Fault(
        "a copied folder that goes on for nothing",
        ACCOUNT,
        {"        if earlier.start not in starts:\n": "        if False:\n"},
        TEST_ACCOUNT + "test_a_run_that_goes_on_is_charged_once_and_its_copy_is_refused",
    ),
    Fault(
        "an account changed without its lock",
        ACCOUNT,
        {"                fcntl.flock(file, fcntl.LOCK_EX)\n": ""},
        TEST_ACCOUNT + "test_a_change_waits_for_the_lock",
    ),
    Fault(
        "an account changed from what was read before the lock",
        ACCOUNT,
        {"                self._contents = _read(self._path, file)\n": ""},
        TEST_ACCOUNT + "test_what_another_process_drew_is_counted",
    ),
    Fault(
        "the limit compared with the new run alone",
        ACCOUNT,
        {"self._check_limit([*others, cost], others)": "self._check_limit([cost], others)"},
        TEST_ACCOUNT + "test_the_limit_itself_may_be_drawn_and_nothing_beyond",
    ),
    Fault(
        "the limit compared with what was drawn before",
        ACCOUNT,
        {"self._check_limit([*others, cost], others)": "self._check_limit(others, others)"},
        TEST_ACCOUNT + "test_the_limit_itself_may_be_drawn_and_nothing_beyond",
    ),
    Fault(
        "the largest cost in place of the composition",
        COST,
        {"        steps += cost.steps\n": "        steps |= cost.steps\n"},
        TEST_ACCOUNT + "test_runs_are_composed_not_added_up_and_never_under_counted",
    ),
    Fault(
        "failures left out of delta",
        COST,
        {"        failure += cost.failure\n": ""},
        TEST_ACCOUNT + "test_failures_are_taken_from_delta_at_the_limit",
    ),
    Fault(
        "other costs than Gaussian ones left out",
        COST,
        {"        added += cost.epsilon\n": ""},
        TEST_ACCOUNT + "test_what_is_no_gaussian_release_is_added_with_its_delta",
    ),
]
