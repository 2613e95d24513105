"""Faults of prediction sets: scores that move too far, examples in both parts, a free release."""

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

COUNTS, SETS = "statistics/score_counts.py", "runs/prediction_sets.py"
PREPARE, EXECUTE = "runs/prepare.py", "runs/execute.py"
TEST_COUNTS = "tests/statistics/test_score_counts.py::"
TEST_SETS = "tests/runs/test_prediction_sets.py::"
COMPOSED = TEST_SETS + "test_the_statement_is_the_composed_account_of_training_and_release"

FAULTS = [
    Fault(
        "counts of scores released as longer vectors than they are charged for",
        COUNTS,
        {"_numbers_by_place(places, points) / norm": "_numbers_by_place(places, points)"},
        TEST_COUNTS + "test_adding_a_person_moves_the_sums_by_one_at_most[-3.0]",
    ),
    Fault(
        "half of the noise on counts of scores",
        COUNTS,
        {
            "    sensitivity = simplex_sensitivity(plan.relation)\n": (
                "    sensitivity = 0.5 * simplex_sensitivity(plan.relation)\n"
            )
        },
        TEST_COUNTS + "test_noise_has_the_stated_scale_at_the_last_point_and_is_smaller_before",
    ),
    Fault(
        "scores that jump between points, so that rounding shows",
        COUNTS,
        {"part = exact - below  #": "part = torch.zeros_like(exact)  #"},
        TEST_COUNTS + "test_counts_are_those_of_people_below_each_point",
    ),
    Fault(
        "parts chosen by position: one example moves those behind it",
        SETS,
        {
            "_coin(secret, row.tobytes()) < limit for row in inputs": (
                "_coin(secret, bytes([i % 251])) < limit for i, row in enumerate(inputs)"
            )
        },
        TEST_SETS + "test_leaving_out_an_example_moves_no_other[17]",
    ),
    Fault(
        "calibration with examples that were trained on",
        SETS,
        {"train_x=dataset.train_x[~kept], train_y=dataset.train_y[~kept]": ""},
        TEST_SETS + "test_the_kept_examples_take_no_part_in_training",
    ),
    Fault(
        "noise of training calibrated as if nothing else were released",
        PREPARE,
        {"[] if beside is None else [beside.event()]": "[]"},
        COMPOSED,
    ),
    Fault(
        "a statement for training alone",
        EXECUTE,
        {
            "                    result = replace(result, guarantee=_joint(run, run.kept, model, result, sets))\n": ""
        },
        COMPOSED,
    ),
]
