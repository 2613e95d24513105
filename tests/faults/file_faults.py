"""Faults by which others than the owner read what the package writes, or a log tells of a cell."""

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

TEST_FILES = "tests/test_files.py::"

FAULTS = [
    Fault(
        "files with the mode that the system gives",
        "files.py",
        {"PRIVATE = 0o600": "PRIVATE = 0o666"},
        TEST_FILES + "test_files_and_folders_are_for_their_owner_alone",
    ),
    Fault(
        "a mode for the last folder only",
        "files.py",
        {
            "        make_folder(folder.parent, mode=mode)\n": "        folder.parent.mkdir("
            "parents=True, exist_ok=True)\n"
        },
        TEST_FILES + "test_files_and_folders_are_for_their_owner_alone",
    ),
    Fault(
        "an error that quotes a cell",
        "data/cells.py",
        {'return "the cell is no number: correct it': 'return f"{cell!r} is no number: correct it'},
        "tests/cli/test_outputs.py::test_errors_name_the_cell_and_do_not_quote_it[number]",
    ),
]
