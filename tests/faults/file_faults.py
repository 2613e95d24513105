"""Faults by which others than the owner read what the package writes, a log tells of a cell, or
files that were changed are taken.
"""

from tests.faults.fault import Fault

__all__ = ["FAULTS"]

TEST_FILES = "tests/test_files.py::"
TEST_OWN = "tests/report/test_own_run.py::"
TEST_TABLES = "tests/cli/test_train_tables.py::"

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
    Fault(
        "predictions by a record that was changed",
        "runs/manifest.py",
        {"for name in (RECORD, MODEL):": "for name in (MODEL,):"},
        "tests/cli/test_show.py::test_a_model_with_a_changed_record_is_refused",
    ),
    Fault(
        "predictions on a table by a record that was changed",
        "runs/tables/load.py",
        {
            "runs.manifest import intact_record": "runs.record import RunRecord",
            "intact_record(folder)": "RunRecord.read(folder)",
        },
        TEST_TABLES + "test_a_damaged_model_is_refused_and_runs_nothing[record]",
    ),
    Fault(
        "a model of one's own that was changed",
        "runs/own_run.py",
        {"record = intact_record(place)": "record = RunRecord.read(place)"},
        TEST_OWN + "test_weights_are_not_loaded_by_changed_files[model.safetensors]",
    ),
]
