"""What a kill, a full disk or a lack of anything leaves behind: a clear line, and nothing lost."""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dpvd.errors import DpvdError
from dpvd.files import remove_partials
from dpvd.privacy import Ledger
from dpvd.runs import verify_run
from tests.cli.program import assert_refused, call, train_line

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "images.npz"
    pixels = np.random.default_rng(0).integers(0, 256, (60, 6, 6), dtype=np.uint8)
    np.savez(path, x=pixels, y=np.arange(60) % 3)
    return path


def assert_fails(outcome, words):
    """One clear line after those of the progress, and exit code 2."""
    assert outcome.code == 2, outcome
    said = [line for line in outcome.err.splitlines() if not line.startswith("epoch ")]
    assert len(said) == 1, outcome.err
    assert said[0].startswith("error: ")
    assert words in said[0]


def on_images(images, folder, **changes):
    return train_line(folder, dataset=images, batch_size=20, test_fraction=0.2, **changes)


class TestKilledBetween:
    """The files as they are between two writes of a run."""

    def test_record_and_manifest(self, tmp_path):
        folder = tmp_path / "run"
        assert call(*train_line(folder)).code == 0
        (folder / "manifest.json").unlink()
        (folder / ".manifest.json.12ab.partial").write_bytes(b"{")
        assert call(*train_line(folder, resume=True)).code == 0
        assert verify_run(folder).holds
        assert not list(folder.glob(".*"))

    def test_record_and_manifest_of_another_model(self, tmp_path):
        folder = tmp_path / "run"
        assert call(*train_line(folder)).code == 0
        (folder / "manifest.json").unlink()
        with (folder / "model.safetensors").open("ab") as file:
            file.write(b" ")
        assert_refused(call(*train_line(folder, resume=True)), "is not the one that the record")
        assert not (folder / "manifest.json").exists()

    @pytest.mark.parametrize(
        "left", [".options.json.1f.partial", "checksum.key", ".checksum.key.1f.partial"]
    )
    def test_the_folder_and_the_options(self, images, tmp_path, left):
        folder = tmp_path / "run"
        folder.mkdir()
        (folder / left).write_bytes(b"")
        assert_refused(call(*on_images(images, folder, resume=True)), "leave out --resume")
        assert call(*on_images(images, folder)).code == 0
        assert not list(folder.glob(".*"))

    def test_the_options_and_the_ledger(self, images, tmp_path):
        """Where the options are the key is, so that a run on images can go on."""
        folder = tmp_path / "run"
        assert call(*on_images(images, folder)).code == 0
        for path in folder.iterdir():
            if path.name not in ("options.json", "checksum.key") and path.is_file():
                path.unlink()
        resumed = call(*on_images(images, folder, resume=True))
        assert resumed.code == 0, resumed.err
        assert verify_run(folder).holds


def test_a_folder_with_a_strangers_file_is_not_begun_in(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("precious")
    assert_refused(call(*train_line(tmp_path / "run")), "not empty")
    assert (tmp_path / "run" / "mine.txt").read_text() == "precious"


def test_only_parts_are_removed(tmp_path):
    for name in (".a.json.12.partial", "a.partial", ".a", "a.json"):
        (tmp_path / name).write_bytes(b"")
    remove_partials(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a", "a.json", "a.partial"]
    remove_partials(tmp_path / "nowhere")


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_nobody_else_can_look_into_a_run(tmp_path):
    assert call(*train_line(tmp_path / "run")).code == 0
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


@pytest.fixture
def small_disk(tmp_path):
    """A file system of a few kilobytes, where one may be mounted."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(size: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("nothing may be mounted here")
        return place

    yield mount
    subprocess.run(["umount", str(place)], capture_output=True)


def charge_a_thousand(ledger):
    for _ in range(1000):
        ledger.charge(1)


@LINUX
class TestFullDisk:
    def test_a_charge_that_does_not_fit_is_refused_and_the_ledger_stays_readable(self, small_disk):
        disk = small_disk("16k")
        ledger = Ledger.create(disk / "ledger.jsonl", {"steps": 1000})
        with pytest.raises(DpvdError, match="No space left"):
            charge_a_thousand(ledger)
        paid = ledger.charged
        assert paid > 10
        ledger.close()  # nothing is left to write
        assert Ledger.open(disk / "ledger.jsonl").charged == paid

    @pytest.mark.parametrize("size", ["4k", "12k", "24k", "64k", "100k"])
    def test_a_run_ends_with_one_line_and_goes_on_when_there_is_room(self, small_disk, size):
        disk = small_disk(size)
        assert_fails(call(*train_line(disk / "run")), "No space left")
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        begun = (disk / "run" / "options.json").exists()
        before = 0
        if Ledger.has_begun(disk / "run" / "ledger.jsonl"):
            before = Ledger.open(disk / "run" / "ledger.jsonl").charged
        resumed = call(*train_line(disk / "run", resume=begun or None))
        assert resumed.code == 0, resumed.err
        assert Ledger.open(disk / "run" / "ledger.jsonl").charged >= before
        assert verify_run(disk / "run").holds


@LINUX
def test_a_read_only_folder_is_named(small_disk):
    disk = small_disk("1m")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert_refused(call(*train_line(disk / "run")), "Read-only file system", str(disk))


@LINUX
def test_a_folder_that_turns_read_only_keeps_what_was_charged(small_disk):
    disk = small_disk("8m")
    ledger = Ledger.create(disk / "ledger.jsonl", {"steps": 10})
    ledger.charge(3)
    ledger.close()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(DpvdError, match="Read-only file system"):
        Ledger.open(disk / "ledger.jsonl").charge(1)
    assert Ledger.open(disk / "ledger.jsonl").charged == 3


@LINUX
@pytest.mark.parametrize("free", [0, 1, 2])
def test_without_file_descriptors_the_error_is_one_line(tmp_path, free):
    assert call(*train_line(tmp_path / "warm")).code == 0  # libraries open files when first used
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + free, hard))
    try:
        outcome = call(*train_line(tmp_path / "run"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if outcome.code:
        assert_fails(outcome, "Too many open files")
    begun = (tmp_path / "run" / "options.json").exists()
    assert call(*train_line(tmp_path / "run", resume=begun or None)).code == 0
    assert verify_run(tmp_path / "run").holds


@pytest.mark.parametrize("jump", [-40 * 365 * 86400, 40 * 365 * 86400])
def test_a_clock_that_jumps_changes_nothing_but_the_date(tmp_path, monkeypatch, jump):
    now = time.time
    calls = []

    def jumping() -> float:
        calls.append(1)
        return now() + (jump if len(calls) % 2 else 0)

    monkeypatch.setattr(time, "time", jumping)
    outcome = call(*train_line(tmp_path / "run", json=True))
    assert outcome.code == 0, outcome.err
    assert 0 <= outcome.json["seconds"] < 600
    assert verify_run(tmp_path / "run").holds
