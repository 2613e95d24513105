"""Faults by which a stranger's folder takes memory or time that it has no bytes for."""

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

TEST_STRANGERS = "tests/runs/test_strangers.py::"

FAULTS = [
    Fault(
        "a network as large as a record says, before its file is looked at",
        "runs/model_file.py",
        {'    with torch.device("meta"):\n        expected': "    if True:\n        expected"},
        TEST_STRANGERS
        + "test_a_record_cannot_ask_for_memory_that_its_model_does_not_fill[10000000]",
    ),
    Fault(
        "files of any size",
        "files.py",
        {"    if status.st_size > most:\n": "    if False:\n"},
        TEST_STRANGERS + "test_files_that_are_larger_than_their_kind_are_refused[options.json]",
    ),
]
