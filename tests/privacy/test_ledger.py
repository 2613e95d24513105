"""Charge before release: what a crash may do to the count, and what it may not."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from dpvd.errors import DpvdError
from dpvd.privacy import Ledger

PLAN = {"steps": 100, "noise_multiplier": 5.1, "sampler": {"kind": "poisson", "q": 0.25}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def without_hash(line):
    return {name: value for name, value in json.loads(line).items() if name != "hash"}


def test_charges_add_up_and_survive(path):
    ledger = Ledger.create(path, PLAN)
    assert ledger.charged == 0
    ledger.charge(10)
    ledger.charge(5)
    assert ledger.charged == 15
    again = Ledger.open(path, PLAN)
    again.charge(1)
    assert Ledger.open(path).charged == 16
    assert Ledger.open(path).plan == PLAN
    assert [without_hash(line) for line in path.read_bytes().splitlines()[1:]] == [
        {"start": ledger.starts[0]},
        {"charged": 10, "steps": 10},
        {"charged": 15, "steps": 5},
        {"start": again.starts[1]},
        {"charged": 16, "steps": 1},
    ]


def test_the_fingerprint_is_of_the_plan_whatever_the_order_of_its_keys(path):
    ledger = Ledger.create(path, dict(reversed(PLAN.items())))
    canonical = json.dumps(PLAN, sort_keys=True, separators=(",", ":")).encode()
    assert (
        ledger.fingerprint
        == Ledger.open(path, PLAN).fingerprint
        == hashlib.sha256(canonical).hexdigest()
    )


def test_a_charge_is_synchronised_to_disk_before_it_returns(path, monkeypatch):
    ledger = Ledger.create(path, PLAN)
    synced, sync = [], os.fsync

    def watch(handle):
        sync(handle)
        synced.append(path.read_bytes())

    monkeypatch.setattr(os, "fsync", watch)
    ledger.charge(7)
    assert synced, "nothing was synchronised"
    assert without_hash(synced[-1].splitlines()[-1]) == {"charged": 7, "steps": 7}


def test_another_plan_is_refused(path):
    Ledger.create(path, PLAN).charge(1)
    with pytest.raises(DpvdError, match="belongs to another plan"):
        Ledger.open(path, {**PLAN, "steps": 101})


def test_an_existing_file_is_kept(path):
    Ledger.create(path, PLAN).charge(3)
    with pytest.raises(DpvdError, match="exists already"):
        Ledger.create(path, PLAN)
    assert Ledger.open(path).charged == 3


@pytest.mark.parametrize("steps", [0, -1, 1.5, True])
def test_only_whole_positive_charges(path, steps):
    ledger = Ledger.create(path, PLAN)
    with pytest.raises(DpvdError, match="steps must be an integer"):
        ledger.charge(steps)
    assert Ledger.open(path).charged == 0


def test_every_torn_last_line_is_a_charge_that_never_returned(path):
    ledger = Ledger.create(path, PLAN)
    ledger.charge(10)
    returned = path.read_bytes()
    ledger.charge(20)
    whole = path.read_bytes()
    for end in range(len(returned), len(whole)):
        path.write_bytes(whole[:end])
        resumed = Ledger.open(path)
        assert resumed.charged == 10
        assert path.read_bytes() == whole[:end]  # looking changes nothing
        resumed.charge(1)
        assert Ledger.open(path).charged == 11
        resumed.charge(1)
        assert path.read_bytes().startswith(returned)
        added = path.read_bytes()[len(returned) :].splitlines()
        assert [without_hash(line) for line in added] == [
            {"start": resumed.starts[1]},
            {"charged": 11, "steps": 1},
            {"charged": 12, "steps": 1},
        ]


def test_damage_that_no_crash_explains_is_an_error(path):
    ledger = Ledger.create(path, PLAN)
    ledger.charge(10)
    ledger.charge(20)
    header, start, first, second = path.read_bytes().splitlines(keepends=True)
    damaged = {
        "garbage": [header, start, b"gar\xffbage\n", second],
        "a line lost": [header, start, second],
        "a start lost": [header, first, second],
        "a line twice": [header, start, first, first],
        "lines swapped": [header, start, second, first],
        "no object": [header, b"[]\n"],
        "no header": [start, first, second],
        "torn header": [header[:-5]],
        "empty": [],
        "plan changed": [header.replace(b"5.1", b"9.9"), start, first],
        "other version": [header.replace(b'"version": 2', b'"version": 3'), start, first],
        "a line without its hash": [header, start, b'{"charged": 10, "steps": 10}\n'],
        "fewer steps": [header, start, first.replace(b"10", b"1 ")],
    }
    for name, lines in damaged.items():
        path.write_bytes(b"".join(lines))
        with pytest.raises(DpvdError):
            pytest.fail(f"{name} was read as {Ledger.open(path).charged}")


def test_every_byte_is_in_the_chain(path):
    ledger = Ledger.create(path, PLAN)
    ledger.charge(10)
    ledger.charge(20)
    whole = path.read_bytes()
    for place in range(len(whole) - 1):  # a last line without its newline is a torn one
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(bytes(changed))
        with pytest.raises(DpvdError):
            pytest.fail(f"byte {place} was changed, and {Ledger.open(path).charged} steps read")


UNCHAINED_CHARGES = {
    "a total that falls": [{"charged": 10, "steps": 10}, {"charged": 5, "steps": 5}],
    "a charge taken back": [{"charged": 10, "steps": 10}, {"charged": 5, "steps": -5}],
    "two writers": [{"charged": 10, "steps": 10}, {"charged": 40, "steps": 40}],
    "no number": [{"charged": "10", "steps": 10}],
}


@pytest.mark.parametrize("entries", UNCHAINED_CHARGES.values(), ids=UNCHAINED_CHARGES)
def test_totals_of_a_ledger_without_a_chain_are_checked(path, entries):
    write_unchained(path, entries)
    with pytest.raises(DpvdError, match="cannot be trusted"):
        Ledger.open(path)


def write_unchained(path, entries):
    """As the first version of the format had it."""
    canonical = json.dumps(PLAN, sort_keys=True, separators=(",", ":"))
    fingerprint = hashlib.sha256(canonical.encode()).hexdigest()
    lines = [{"fingerprint": fingerprint, "plan": PLAN, "version": 1}, *entries]
    path.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))


def test_a_ledger_without_a_chain_is_chained_from_its_next_charge_on(path):
    write_unchained(path, [{"charged": 10, "steps": 10}])
    old = Ledger.open(path)
    assert (old.charged, old.head) == (10, None)
    old.charge(5)
    assert Ledger.open(path).charged == 15
    assert Ledger.open(path).head == old.head is not None
    path.write_bytes(path.read_bytes().replace(b'"charged": 10', b'"charged": 11'))
    with pytest.raises(DpvdError, match="cannot be trusted"):
        Ledger.open(path)


def test_two_copies_that_are_both_charged_differ_from_their_starts_on(path, tmp_path):
    ledger = Ledger.create(path, PLAN)
    ledger.charge(10)
    common = ledger.head
    copy = tmp_path / "copy.jsonl"
    shutil.copy(path, copy)
    ledger.close()
    ones, others = Ledger.open(path), Ledger.open(copy)
    for one in (ones, others):
        one.charge(5)
    assert ones.charged == others.charged == 15
    assert ones.starts[0] == others.starts[0]
    assert ones.starts[1] != others.starts[1]
    assert ones.has_passed(common)
    assert others.has_passed(common)
    assert not ones.has_passed(others.head)


def test_a_second_writer_is_noticed(path):
    mine = Ledger.create(path, PLAN)
    yours = Ledger.open(path)
    mine.charge(10)
    with pytest.raises(DpvdError, match="written to by something else"):
        yours.charge(20)
    assert Ledger.open(path).charged == 10


def test_a_file_that_took_the_ledgers_place_is_noticed(path, tmp_path):
    ledger = Ledger.create(path, PLAN)
    ledger.charge(10)
    shutil.copy(path, tmp_path / "copy")
    os.replace(tmp_path / "copy", path)
    with pytest.raises(DpvdError, match="written to by something else"):
        ledger.charge(20)
    assert ledger.charged == Ledger.open(path).charged == 10


def test_the_name_of_a_new_ledger_is_synchronised_to_disk(path, monkeypatch):
    synced, sync = [], os.fsync

    def watch(handle):
        sync(handle)
        synced.append(os.fstat(handle).st_ino)

    monkeypatch.setattr(os, "fsync", watch)
    Ledger.create(path, PLAN)
    assert synced == [path.stat().st_ino, path.parent.stat().st_ino]


def test_only_a_ledger_without_charges_can_be_deleted(path):
    Ledger.create(path, PLAN).delete()
    assert not path.exists()
    ledger, other = Ledger.create(path, PLAN), Ledger.open(path)
    other.charge(1)
    for one in (ledger, other):
        assert not one.is_unused
        with pytest.raises(DpvdError, match="holds charges: it is not deleted"):
            one.delete()
    assert Ledger.open(path).charged == 1


def test_files_that_cannot_be_read_or_written_are_reported(path, tmp_path):
    with pytest.raises(DpvdError, match="cannot read the ledger"):
        Ledger.open(path)
    with pytest.raises(DpvdError, match="cannot write the ledger"):
        Ledger.create(tmp_path / "missing" / "ledger.jsonl", PLAN)
    ledger = Ledger.create(path, PLAN)
    path.unlink()
    with pytest.raises(DpvdError, match="cannot write the ledger"):
        ledger.charge(1)
    assert ledger.charged == 0
    with pytest.raises(DpvdError, match="plain JSON data"):
        Ledger.create(path, {"steps": {1, 2}})
    with pytest.raises(DpvdError, match="plain JSON data"):
        Ledger.create(path, {"noise_multiplier": float("nan")})


CHARGE_FOREVER = """
import sys
from dpvd.privacy import Ledger
ledger = Ledger.create(sys.argv[1], {"steps": 1})
while True:
    ledger.charge(3)
    print(ledger.charged, flush=True)  # the release: only after charge() has returned
"""


def test_a_killed_process_never_under_counts(path):
    run = subprocess.Popen(
        [sys.executable, "-c", CHARGE_FOREVER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    released = [int(run.stdout.readline()) for _ in range(20)]
    run.send_signal(signal.SIGKILL)
    released += [int(line) for line in run.stdout.read().split("\n") if line]
    run.wait()
    run.stdout.close()
    assert run.returncode == -signal.SIGKILL
    assert released[-1] <= Ledger.open(path).charged <= released[-1] + 3
