"""Killed runs come to their end, and no charge is lost; ``make torture`` kills hundreds."""

import sys

import pytest
from tools.torture import Run, charged, released, torture_all


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_killed_runs_on_a_table_end_whole_and_verified(tmp_path):
    tally = torture_all(3, ["table"], seed=1, place=tmp_path)
    assert tally.problems == []
    assert tally.kills >= 3
    assert tally.releases >= 5 * tally.runs  # the watch on releases sees them


def test_a_release_that_nothing_was_charged_for_is_seen(tmp_path):
    run = Run(tmp_path / "run", ())
    run.folder.mkdir()
    (run.folder / "ledger.jsonl").write_text('{"plan": {}}\n{"steps": 2}\n{"steps": 1}')
    run.observed.write_text("step a\nstep b\nstep b\nsum c\n")
    assert charged(run.folder) == {"ledger.jsonl": 2}  # a line without its end does not count
    assert released(run) == 3
