"""Faults of the estimators: fits that are not counted, facts that nobody declared."""

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

ACCOUNT, BASE, CLASSIFIER = "sklearn/account.py", "sklearn/base.py", "sklearn/classifier.py"
TEST_ACCOUNT = "tests/estimators/test_account.py::"
TEST_FIT = "tests/estimators/test_fit.py::"

FAULTS = [
    Fault(
        "of several fits only the last counted",
        ACCOUNT,
        {"        _fits.append(done)": "        _fits[:] = [done]"},
        TEST_ACCOUNT + "test_each_fold_is_charged_and_the_sum_is_the_composed_account",
    ),
    Fault(
        "of each fit only one release in the sum of fits",
        ACCOUNT,
        {"plan for fit in fits for plan in fit]": "plan for fit in fits for plan in fit[:1]]"},
        TEST_ACCOUNT + "test_each_fold_is_charged_and_the_sum_is_the_composed_account",
    ),
    Fault(
        "fits that share their noise added up as if it were independent",
        ACCOUNT,
        {"return len(set(seeds)) < len(seeds)": "return False"},
        TEST_ACCOUNT + "test_fits_with_one_seed_share_their_noise_and_have_no_finite_sum",
    ),
    Fault(
        "folds whose sum nobody hears of",
        BASE,
        {"        if len(fits) == 1:\n": "        if True:\n"},
        TEST_ACCOUNT + "test_folds_say_their_sum_though_they_are_clones",
    ),
    Fault(
        "classes read off the data called public",
        CLASSIFIER,
        {"Source.DATA if self.classes is None else Source.PUBLIC": "Source.PUBLIC"},
        TEST_FIT + "test_bounds_are_public_and_classes_that_were_read_off_are_not_covered",
    ),
    Fault(
        "bounds estimated elsewhere passed over in silence",
        BASE,
        {"if each.source is Source.PRIVATE and each.name not in estimated:": "if False:"},
        TEST_FIT + "test_bounds_that_were_estimated_before_are_not_in_this_account",
    ),
    Fault(
        "groups ignored: the guarantee is for a row",
        BASE,
        {"return choose_people(groups, rows, most, seed)": "return None"},
        TEST_FIT + "test_groups_make_the_guarantee_one_for_a_person",
    ),
    Fault(
        "a seed taken without being asked for by name",
        BASE,
        {"if seeded != (self.random_state is not None):": "if False:"},
        TEST_FIT + "test_a_seed_must_be_asked_for_by_name",
    ),
]
