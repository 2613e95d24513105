"""One budget for a data set: what it refuses, what it counts, and what a crash may do to it."""

import fcntl
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from dp_accounting import ComposedDpEvent

from dpvd.errors import DpvdError
from dpvd.privacy import Cost, DataAccount, epsilon, poisson_event, whole_budget

STEPS = poisson_event(2.0, 0.1, 100)
COST = Cost.of(STEPS)
DELTA = 1e-5
ALONE = epsilon(STEPS, DELTA)
TWICE = epsilon(ComposedDpEvent([STEPS, STEPS]), DELTA)
THRICE = epsilon(ComposedDpEvent([STEPS] * 3), DELTA)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "patients.account"


def made(path, limit, **options):
    return DataAccount.create(path, epsilon=limit, delta=DELTA, **options)


def test_a_reservation_counts_at_once_and_a_settlement_takes_its_place(path):
    account = made(path, 5.0)
    assert account.spent == 0
    run = account.reserve("first", COST)
    assert account.spent == DataAccount.open(path).spent == ALONE
    part = poisson_event(2.0, 0.1, 40)
    account.settle(run, Cost.of(part))
    assert DataAccount.open(path).spent == epsilon(part, DELTA) < ALONE
    assert [each.settled for each in DataAccount.open(path).drawn] == [True]


def test_runs_are_composed_not_added_up_and_never_under_counted(path):
    account = made(path, 50.0)
    account.reserve("first", COST)
    account.reserve("second", COST)
    # Exactly the composition: above the larger one and the root of squares, below the sum.
    assert account.spent == TWICE
    assert (2 * ALONE**2) ** 0.5 * 0.9 < TWICE < 2 * ALONE


def test_the_limit_itself_may_be_drawn_and_nothing_beyond(path):
    account = made(path, TWICE)
    account.reserve("first", COST)
    account.reserve("second", COST)
    before = path.read_bytes()
    with pytest.raises(DpvdError, match=r"has a limit of .* with this run it would be"):
        account.reserve("third", Cost.of(poisson_event(2.0, 0.1, 5)))
    assert path.read_bytes() == before


@pytest.mark.parametrize(("budget", "delta"), [(1.0, 1e-5), (0.1, 1e-6), (8.0, 1e-9)])
def test_a_budget_that_is_the_whole_limit_fits_and_is_no_less_than_that(path, budget, delta):
    account = DataAccount.create(path, epsilon=budget, delta=delta)
    account.reserve("all of it", whole_budget(budget, delta))
    assert budget * (1 - 1e-9) < account.spent <= budget


def test_what_is_no_gaussian_release_is_added_with_its_delta(path):
    account = made(path, 10.0)
    account.reserve("selection", Cost(epsilon=1.0, delta=DELTA / 2))
    assert account.spent == 1.0
    account.reserve("steps", COST)
    assert account.spent == pytest.approx(1.0 + epsilon(STEPS, DELTA / 2))
    with pytest.raises(DpvdError, match="would be inf"):
        account.reserve("delta is used up", Cost(epsilon=0.1, delta=DELTA))


def test_failures_are_taken_from_delta_at_the_limit(path):
    account = made(path, 3.0)
    account.reserve("categories", Cost.of(STEPS, failure=1e-7))
    left = DELTA - (1 + math.exp(3.0)) * 1e-7
    assert account.spent == pytest.approx(epsilon(STEPS, left), rel=1e-12)


def test_other_data_are_refused_and_the_checksum_has_a_key(path):
    account = made(path, 50.0)
    own, other = account.checksum([b"rows"]), account.checksum([b"other rows"])
    assert account.checksum([b"ro", b"ws"]) == own
    account.reserve("first", COST, data=own)
    account.reserve("again", COST, data=own)
    with pytest.raises(DpvdError, match="is of other data"):
        account.reserve("other", COST, data=other)
    elsewhere = made(path.with_name("second.account"), 50.0)
    assert elsewhere.checksum([b"rows"]) != own
    path.with_name(path.name + ".key").unlink()
    with pytest.raises(DpvdError, match=r"key .* cannot be read"):
        account.checksum([b"rows"])


def test_another_relation_is_refused(path):
    account = made(path, 50.0, relation="replace-one")
    with pytest.raises(DpvdError, match="under replace-one, the run under add-or-remove"):
        account.reserve("first", COST)


def test_a_run_that_goes_on_is_charged_once_and_its_copy_is_refused(path):
    account = made(path, ALONE)
    run = account.reserve("first", COST, run="r", start="s1")
    DataAccount.open(path).reserve("first", COST, run=run, start="s2", starts=["s1"])
    assert DataAccount.open(path).spent == ALONE
    with pytest.raises(DpvdError, match="went on elsewhere"):
        account.reserve("copy", COST, run=run, start="s3", starts=["s1"])
    with pytest.raises(DpvdError, match="another cost"):
        account.reserve("less", Cost.of(poisson_event(9.0, 0.1, 1)), run=run, starts=["s2"])
    account.settle(run, COST)
    with pytest.raises(DpvdError, match="has ended"):
        account.reserve("again", COST, run=run, start="s3", starts=["s1", "s2"])


def test_every_line_is_chained(path):
    account = made(path, 50.0)
    account.settle(account.reserve("first", COST), COST)
    account.reserve("second", COST)
    lines = path.read_bytes().splitlines(keepends=True)
    smaller = lines[1].replace(b'"count": 100', b'"count": 1')
    for changed in (
        [lines[0].replace(b"50.0", b"90.0"), *lines[1:]],
        [lines[0], smaller, *lines[2:]],
        [lines[0], *lines[2:]],
        [lines[0], lines[2], lines[1], lines[3]],
        [*lines, lines[3]],
    ):
        path.write_bytes(b"".join(changed))
        with pytest.raises(DpvdError, match=r"does not follow|damaged"):
            DataAccount.open(path)


@pytest.mark.parametrize("content", [b"", b"{}\n", b"[]\n", b"\xff\n", b"[" * 10_000 + b"\n"])
def test_what_is_no_account_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(DpvdError):
        DataAccount.open(path)


def test_a_torn_line_is_a_reservation_that_never_returned(path):
    account = made(path, 50.0)
    account.reserve("first", COST)
    whole = path.read_bytes()
    account.reserve("second", COST)
    path.write_bytes(path.read_bytes()[:-1])
    assert DataAccount.open(path).spent == ALONE
    DataAccount.open(path).reserve("third", COST)
    assert [each.who for each in DataAccount.open(path).drawn] == ["first", "third"]
    assert path.read_bytes().startswith(whole)


def test_a_reservation_is_synchronised_to_disk_before_it_returns(path, monkeypatch):
    account = made(path, 50.0)
    synced, sync = [], os.fsync

    def watch(descriptor):
        sync(descriptor)
        synced.append(path.read_bytes())

    monkeypatch.setattr(os, "fsync", watch)
    account.reserve("first", COST)
    assert synced[-1] == path.read_bytes()
    assert b'"who": "first"' in synced[-1]


DRAW = """
import sys
from dpvd.errors import DpvdError
from dpvd.privacy import Cost, DataAccount, poisson_event
account = DataAccount.open(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[2])):
    try:
        account.reserve("child", Cost.of(poisson_event(2.0, 0.1, 100)))
        print("drawn", flush=True)
    except DpvdError as problem:
        print("refused" if "limit" in str(problem) else problem, flush=True)
"""


def child(path, times):
    command = [sys.executable, "-c", DRAW, str(path), str(times)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_processes_at_once_do_not_pass_the_limit_together(path):
    made(path, THRICE)
    children = [child(path, 3) for _ in range(2)]
    for each in children:
        assert each.stdout.readline() == "ready\n"
    for each in children:
        each.stdin.write("go\n")
        each.stdin.flush()
    words = [word for each in children for word in each.communicate(timeout=120)[0].split()]
    assert sorted(words) == ["drawn"] * 3 + ["refused"] * 3
    assert DataAccount.open(path).spent == THRICE


def test_a_change_waits_for_the_lock(path):
    account = made(path, 50.0)
    waiting = threading.Thread(target=account.reserve, args=("second", COST))
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        assert DataAccount.open(path).spent == 0
    waiting.join(60)
    assert DataAccount.open(path).spent == ALONE


def test_what_another_process_drew_is_counted(path):
    account = made(path, ALONE)
    DataAccount.open(path).reserve("elsewhere", COST)
    with pytest.raises(DpvdError, match="with this run"):
        account.reserve("here", COST)


def test_whatever_returned_before_a_kill_is_counted(path):
    made(path, 100.0)
    killed = child(path, 10_000)
    assert killed.stdout.readline() == "ready\n"
    killed.stdin.write("go\n")
    killed.stdin.flush()
    assert killed.stdout.readline() == "drawn\n"
    time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    told = 1 + killed.communicate(timeout=60)[0].split().count("drawn")
    assert len(DataAccount.open(path).drawn) >= told


def test_an_account_is_private_and_not_made_twice(path):
    made(path, 1.0)
    key = path.with_name(path.name + ".key")
    assert [file.stat().st_mode & 0o777 for file in (path, key)] == [0o600, 0o600]
    with pytest.raises(DpvdError, match="exists already"):
        made(path, 100.0)
    assert json.loads(path.read_text())["epsilon"] == 1.0
