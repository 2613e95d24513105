"""Faults by which a run is called verified although its statement says something else."""

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

VERIFY = "runs/verify.py"
TEST_VERIFY = "tests/runs/test_verify.py::"
OTHER_WORDS = TEST_VERIFY + "test_a_statement_that_does_not_follow_from_the_ledgers_is_found"

FAULTS = [
    Fault(
        "a sentence that is compared with nothing",
        VERIFY,
        {'if record.guarantee["sentence"] != stated.sentence():': "if False:"},
        OTHER_WORDS + "[sentence]",
    ),
    Fault(
        "words of a statement that are not made anew",
        VERIFY,
        {"if name not in _SEEN_ONLY and value != anew[name]:": "if False:"},
        OTHER_WORDS + "[noise source]",
    ),
    Fault(
        "releases that are listed with more noise than they had",
        VERIFY,
        {"        if not charged[told]:\n": "        if False:\n"},
        TEST_VERIFY + "test_a_run_on_a_table_holds_and_its_schema_and_releases_are_its_own",
    ),
]
