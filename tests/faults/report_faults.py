"""Faults by which a page says too much, or a sum too little."""

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

SPENT = "runs/spent.py"
TEST_STATEMENT = "tests/report/test_statement_page.py::"
TEST_SWEEP = "tests/runs/test_sweep.py::"

FAULTS = [
    Fault(
        "results on private test data on the page to hand out",
        "report/facts.py",
        {"    if not told:\n": "    if False:\n"},
        TEST_STATEMENT + "test_the_report_holds_what_the_page_to_hand_out_does_not",
    ),
    Fault(
        "a checklist that does not know the account of the data",
        "report/facts.py",
        {"str(words).startswith(DRAWN)": "words is None"},
        "tests/report/test_checklist.py"
        "::test_earlier_runs_are_counted_in_the_account_that_the_run_drew_from"
        "[undeclared]",
    ),
    Fault(
        "the name of the data on the page to hand out",
        "report/statement_page.py",
        {'declared.get("name"), ': 'record.dataset["name"], '},
        TEST_STATEMENT + "test_the_report_holds_what_the_page_to_hand_out_does_not",
    ),
    Fault(
        "the seed of the noise on the page to hand out",
        "report/statement_page.py",
        {'without=("tuned", "public", "seed")': 'without=("tuned", "public")'},
        TEST_STATEMENT + "test_seeds_of_reproducible_noise_are_not_handed_out",
    ),
    Fault(
        "the true size of data whose size is secret",
        "report/wording.py",
        {'record.plan.get("examples", record.dataset["train"])': 'record.dataset["train"]'},
        TEST_STATEMENT + "test_a_secret_size_stays_secret",
    ),
    Fault(
        "a green statement although bounds were read off the data",
        "report/sections.py",
        {'bool(record.guarantee.get("not_covered"))': "False"},
        TEST_STATEMENT + "test_a_statement_with_gaps_is_not_green",
    ),
    Fault(
        "a chance of failure that is told smaller than it is",
        "report/wording.py",
        {"int(1 / Decimal(repr(probability)))": "math.ceil(1 / Decimal(repr(probability)))"},
        "tests/report/test_wording.py::test_a_chance_is_never_told_smaller_than_it_is",
    ),
    Fault(
        "limits for laypeople from an event that the statement is not for",
        SPENT,
        {"    agrees = math.isclose(spent, stated, rel_tol=_AGREEMENT)\n": "    agrees = True\n"},
        TEST_STATEMENT + "test_the_reading_is_of_the_event_that_the_statement_is_for",
    ),
    Fault(
        "the cost of a sweep is that of its costliest run",
        SPENT,
        {"epsilon(ComposedDpEvent(known), delta": "epsilon(known[-1], delta"},
        TEST_SWEEP + "test_the_total_is_the_composition_of_all_runs",
    ),
    Fault(
        "a finished run of a sweep is trained again",
        "runs/sweep.py",
        {"        is_finished = (inside / RECORD).exists()\n": "        is_finished = False\n"},
        TEST_SWEEP + "test_finished_runs_are_not_trained_again",
    ),
    Fault(
        "a record for other steps than were charged to the model",
        "runs/own_run.py",
        {"    if charged != guarantee.steps:\n": "    if False:\n"},
        "tests/report/test_own_run.py"
        "::test_what_does_not_belong_together_is_refused_and_nothing_written",
    ),
    Fault(
        "the audit of another plan beside a statement",
        "runs/audited.py",
        {"if plan != fingerprint(record.plan):": "if not plan:"},
        "tests/report/test_audited.py::test_the_audit_of_another_plan_is_refused",
    ),
    Fault(
        "a run verified although an audit called its claim violated",
        "runs/verify.py",
        {"yield Check(AUDIT, found.is_consistent, detail)": "yield Check(AUDIT, True, detail)"},
        "tests/runs/test_verify.py::test_an_audit_that_found_more_than_is_claimed_is_told",
    ),
    Fault(
        "a run that was resumed twice taken for an earlier copy",
        "runs/verify.py",
        {"if here.has_passed(there.head):": "if here.starts[0] in there.starts:"},
        "tests/runs/test_verify.py::test_a_run_that_was_copied_and_resumed_twice_is_found",
    ),
]
