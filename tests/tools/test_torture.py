"""Killed runs come to their end, and no charge is lost; ``make torture`` kills hundreds."""

import sys

import pytest
from tools.torture import Run, charged, drawn, losses, released, torture_all

from dpvd.privacy import Cost, DataAccount, poisson_event


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


def test_a_charge_that_the_account_does_not_count_is_seen(tmp_path):
    run = Run(tmp_path / "run", (), draws=True)
    run.folder.mkdir()
    account = DataAccount.create(run.account, epsilon=9.0, delta=1e-5)
    number = account.reserve("run", Cost.of(poisson_event(2.0, 0.5, 3)))
    (run.folder / "ledger.jsonl").write_text('{"plan": {}}\n{"steps": 3}\n')
    assert drawn(run.account) == 3
    assert losses(run, {}, charged(run.folder)) == []
    account.settle(number, Cost.of(poisson_event(2.0, 0.5, 2)))
    assert losses(run, {}, charged(run.folder)) == [f"{run.folder}: 2 drawn, 3 charged"]
