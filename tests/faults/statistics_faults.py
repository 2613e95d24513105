"""Faults of released statistics: sums that one person moves too far, noise that is too small, and
releases that nobody pays for.
"""

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

MOMENTS, PEOPLE = "statistics/moments.py", "statistics/people.py"
RELEASE, CATEGORIES = "statistics/release.py", "statistics/categories.py"
KEPT = "statistics/kept.py"
FIT, ACCOUNT = "tabular/fit.py", "training/account.py"
TEST_MOMENTS = "tests/statistics/test_moments.py::"
TEST_CATEGORIES = "tests/statistics/test_categories.py::"
TEST_BOUNDS = "tests/statistics/test_bounds.py::"
TEST_FIT = "tests/tabular/test_fit.py::"
TEST_RESUME = "tests/runs/test_resume_tables.py::"
RESUMED_SAME = "test_an_interrupted_run_goes_on_to_the_same_end_and_pays_nothing_twice"

TEST_RUNS = (
    "tests/runs/test_tables.py::test_the_statement_is_the_sum_of_everything_private_bounds_included"
)

TEN_ROWS = "test_adding_a_person_with_ten_rows_moves_the_sums_by_the_sensitivity_at_most"
TEN_ROWS_OF_THE_MEAN = (
    "test_adding_a_person_with_ten_rows_moves_the_mean_by_the_sensitivity_at_most"
)
COMPOSED = "test_the_statement_is_the_composed_account_of_everything_that_touched_the_table"

SENSITIVITY = [
    Fault(
        "products of features with the noise of the diagonal, twice as visible",
        MOMENTS,
        {"(size, size), math.sqrt(2), dtype": "(size, size), 1.0, dtype"},
        TEST_MOMENTS + "test_noise_on_every_part_has_the_stated_scale[0.5]",
    ),
    Fault(
        "the products with the target left out of the sensitivity",
        MOMENTS,
        {"math.sqrt(1 + self.cross**2 + self.square**2)": "math.sqrt(1 + self.square**2)"},
        TEST_MOMENTS + TEN_ROWS + "[weights0-on an axis]",
    ),
    Fault(
        "exchanging a person taken for adding one",
        MOMENTS,
        {"if relation is Relation.ADD_OR_REMOVE:": "if relation in Relation:"},
        TEST_MOMENTS + "test_replacing_a_person_moves_the_sums_by_the_sensitivity_at_most",
    ),
    Fault(
        "every row a vote, not every person",
        PEOPLE,
        {"    return 1 / counts[unit_index]": "    return torch.ones_like(counts[unit_index])"},
        TEST_MOMENTS + TEN_ROWS + "[weights0-on an axis]",
    ),
    Fault(
        "rows as long as they are",
        PEOPLE,
        {"/ norms.clamp_min(1.0)": "/ norms.clamp(1.0, 1.0)"},
        TEST_MOMENTS + TEN_ROWS + "[weights0-far too long]",
    ),
    Fault(
        "rows of the mean as long as they are",
        MOMENTS,
        {"@ bounded_rows(x[rows])": "@ x[rows].double()"},
        TEST_MOMENTS + TEN_ROWS_OF_THE_MEAN + "[far too long]",
    ),
    Fault(
        "exchanging a person taken for adding one, in the mean",
        MOMENTS,
        {"is Relation.ADD_OR_REMOVE else 2.0": "is Relation.ADD_OR_REMOVE else 1.0"},
        TEST_MOMENTS + "test_replacing_a_person_moves_the_mean_by_the_sensitivity_at_most",
    ),
    Fault(
        "gradients of people twice as long as the noise of a step is for",
        "grads/clipping.py",
        {"bound = self.clip_norm * (1": "bound = 2 * self.clip_norm * (1"},
        TEST_FIT + "test_a_person_with_ten_rows_moves_a_step_by_the_sensitivity_at_most"
        "[add-or-remove-linear]",
    ),
    Fault(
        "targets as long as they are",
        MOMENTS,
        {"targets = bounded_rows(t[rows])": "targets = t[rows].double().nan_to_num(0.0)"},
        TEST_MOMENTS + TEN_ROWS + "[weights0-far too long]",
    ),
    Fault(
        "counts taken to move as far when a person is exchanged as when one is added",
        RELEASE,
        {"Relation.REPLACE_ONE: math.sqrt(2)": "Relation.REPLACE_ONE: 1.0"},
        TEST_BOUNDS + "test_replacing_a_person_moves_the_counts_by_the_root_of_two",
    ),
]

NOISE = [
    Fault(
        "half the noise on released sums",
        RELEASE,
        {"plan.noise_std(rounded)": "0.5 * plan.noise_std(rounded)"},
        TEST_MOMENTS + "test_noise_on_every_part_has_the_stated_scale[0.5]",
    ),
    Fault(
        "half the noise on counts",
        RELEASE,
        {"plan.noise_std(rounded)": "0.5 * plan.noise_std(rounded)"},
        TEST_BOUNDS + "test_noise_on_counts_has_the_planned_scale",
    ),
    Fault(
        "a threshold that forgets the person's own vote",
        CATEGORIES,
        {"return 1 + std": "return std"},
        TEST_CATEGORIES + "test_a_category_of_one_person_appears_as_often_as_stated_at_most[1]",
    ),
    Fault(
        "a threshold for one row of a person with many",
        CATEGORIES,
        {"stats.norm.isf(failure / rows_per_person)": "stats.norm.isf(failure)"},
        TEST_CATEGORIES + "test_more_rows_and_a_smaller_failure_ask_for_more_people",
    ),
    Fault(
        "the failure of a threshold charged for one direction only",
        CATEGORIES,
        {"return (1 + math.exp(epsilon)) * sum(failures)": "return sum(failures)"},
        TEST_CATEGORIES + "test_failures_are_taken_from_delta_with_the_factor_of_both_directions",
    ),
]

CHARGES = [
    Fault(
        "private bounds that are not charged to the model",
        FIT,
        {
            "        charge_release(model, plan, names.get(fingerprint(plan.to_dict())))\n": (
                "        pass\n"
            )
        },
        TEST_RUNS + "[ill-None]",
    ),
    Fault(
        "private bounds that the noise of the rest makes no room for",
        FIT,
        {"earlier=[plan.event() for plan in before.values()]": "earlier=[]"},
        TEST_RUNS + "[ill-person]",
    ),
    Fault(
        "categories of one person alone that delta does not pay for",
        "tabular/estimate.py",
        {"_FAILING_PART = 0.01": "_FAILING_PART = 0.3"},
        TEST_RUNS + "[ill-None]",
    ),
    Fault(
        "releases that nobody pays for",
        FIT,
        {"        charge_release(self.model, plan, name)\n": "        pass\n"},
        TEST_FIT + COMPOSED + "[add-or-remove-statistics]",
    ),
    Fault(
        "half the noise of the steps of a network on a table",
        FIT,
        {'self.multipliers["training"]': '0.5 * self.multipliers["training"]'},
        TEST_FIT + COMPOSED + "[add-or-remove-network]",
    ),
    Fault(
        "two releases under one name, charged once",
        RELEASE,
        {'initial_weights=f"none: {name} was released before training"': 'initial_weights="none"'},
        "tests/statistics/test_budget.py::test_releases_with_the_same_noise_are_two_entries",
    ),
    Fault(
        "a second release under a plan for free",
        ACCOUNT,
        {
            '    if account.charged:\n        raise DpvdError(\n            "this release': '    if False:\n        raise DpvdError(\n            "this release'
        },
        "tests/training/test_release.py::test_a_release_is_charged_once_and_refused_after_that",
    ),
    Fault(
        "a release used before it is paid for",
        RELEASE,
        {"            charge(plan)\n": ""},
        TEST_MOMENTS + "test_a_release_is_charged_before_and_refused_charges_release_nothing",
    ),
    Fault(
        "a budget whose parts are each given the whole",
        RELEASE,
        {"whole * math.sqrt(self.steps / self.share)": "whole * math.sqrt(self.steps)"},
        "tests/statistics/test_budget.py::test_shares_divide_the_budget_as_they_say",
    ),
    Fault(
        "private bounds of other rows than those that take part",
        "data/splitting.py",
        {"    takes_part[takes_part] = is_chosen\n": ""},
        "tests/data/test_parsed.py::test_cells_to_estimate_from_are_those_that_are_trained_on",
    ),
    Fault(
        "a table that is parsed again for every pass",
        "runs/tables/prepare.py",
        {"source = parsed_once(choice.open(), memory=_MEMORY)": "source = choice.open()"},
        "tests/runs/test_tables.py::test_a_file_is_parsed_once_and_read_once_more_for_its_checksum",
    ),
    Fault(
        "the checksum of a file that is not the one that was read",
        "runs/tables/prepare.py",
        {"if stamp != self.stamps[what]:": "if False:"},
        "tests/runs/test_tables.py::test_a_refusal_before_the_first_charge_leaves_no_folder",
    ),
    Fault(
        "the split of a table known in advance",
        "runs/tables/prepare.py",
        {"options.seed if options.seeded_noise else _split_seed(secret)": "options.seed"},
        "tests/runs/test_tables.py::test_nobody_can_know_the_split_in_advance",
    ),
]

RESUMED = [
    Fault(
        "a kept release that nobody pays for",
        RELEASE,
        {"        keeper.keep(plan, total)\n": ""},
        TEST_RESUME + "test_a_whole_run_writes_these_files_and_its_owner_alone_reads_the_releases",
    ),
    Fault(
        "a resumed run that draws the noise of a release again",
        KEPT,
        {
            "        if not ledger.charged:\n": "        if True:\n",
            "        if ledger.charged:\n": "        if False:\n",
        },
        TEST_RESUME + "test_noise_from_the_system_is_not_drawn_again",
    ),
    Fault(
        "a kept release that the account of a resumed run leaves out",
        KEPT,
        {'        self.paid(plan, ledger.kept["name"])\n': ""},
        TEST_RESUME + RESUMED_SAME + "[ledger-moments.jsonl]",
    ),
    Fault(
        "a run that goes on with another table",
        "runs/run_dir.py",
        {"before.get(name) != checksum": "False"},
        TEST_RESUME + "test_a_file_that_has_changed_since_is_refused[table]",
    ),
    Fault(
        "private bounds of an estimator that are not in its budget",
        "sklearn/base.py",
        {"            earlier=found.plans,\n": ""},
        "tests/estimators/test_account.py::test_private_bounds_are_in_the_statement_and_in_the_sum",
    ),
]

FAULTS = SENSITIVITY + NOISE + CHARGES + RESUMED
