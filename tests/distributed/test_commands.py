"""`dpvd train` in several processes: one folder, one ledger, one result on the terminal."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpvd.privacy import Ledger
from tests.cli.program import Outcome, assert_refused, call, train_line

MODULE = (sys.executable, "-m", "dpvd")
LAUNCHER = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
# Point weights and seeded noise: the same weights whatever the number of processes.
SAME = {"method": "dpsgd", "seeded_noise": True, "json": True}


def start(
    *command: object, folder: Path | None = None, **variables: object
) -> subprocess.Popen[str]:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": "1",
        **{name: str(value) for name, value in variables.items()},
    }
    return subprocess.Popen(
        [*map(str, command)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*command: object) -> Outcome:
    process = start(*command)
    out, err = process.communicate(timeout=120)
    return Outcome(process.returncode, out, err)


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    folder = tmp_path_factory.mktemp("together") / "run"
    return folder, run(*MODULE, *train_line(folder, processes=2, **SAME))


def test_two_processes_leave_what_one_would(together: tuple[Path, Outcome], tmp_path: Path) -> None:
    folder, outcome = together
    assert outcome.code == 0, outcome.err
    expected = call(*train_line(tmp_path / "alone", **SAME)).json
    for name in ("epsilon", "steps", "noise_multiplier", "statement", "test_accuracy"):
        assert outcome.json[name] == expected[name]  # one JSON value, or it would not parse
    found = load_file(folder / "model.safetensors")
    for name, weight in load_file(tmp_path / "alone" / "model.safetensors").items():
        torch.testing.assert_close(found[name], weight, rtol=1e-4, atol=1e-5)
    assert [path.name for path in folder.parent.iterdir()] == ["run"]
    names = {path.name for path in folder.iterdir()}
    assert names == {path.name for path in (tmp_path / "alone").iterdir()}
    assert call("verify", folder).code == 0


def test_each_line_is_said_once(together: tuple[Path, Outcome]) -> None:
    _, outcome = together
    lines = outcome.err.splitlines()
    assert lines
    assert len(set(lines)) == len(lines)


def test_a_process_that_is_killed_ends_the_run_which_another_number_goes_on_with(
    tmp_path: Path,
) -> None:
    line = train_line(tmp_path / "run", **SAME | {"epochs": 20.0})
    process = start(*MODULE, *line, "--processes", 2)
    try:
        _wait_for(lambda: (tmp_path / "run" / "ledger.jsonl").exists())
        _wait_for(lambda: _charged(tmp_path / "run") >= 5)
        os.kill(_child(process.pid, 1), signal.SIGKILL)
    except BaseException:
        process.terminate()
        raise
    finally:
        out, err = process.communicate(timeout=60)
    assert_refused(
        Outcome(process.returncode, out, _errors(err)), "was ended by signal 9", "--resume"
    )
    assert not (tmp_path / "run" / "record.json").exists()
    charged = _charged(tmp_path / "run")
    resumed = call(*line, "--resume")
    assert resumed.code == 0, resumed.err
    assert resumed.json["steps"] > charged


class TestRestart:
    """By the launcher: the second start goes on in the folder of the first."""

    @pytest.mark.parametrize("command", [(*LAUNCHER, "--max-restarts=1", "-m", "dpvd"), MODULE])
    def test_a_restarted_run_spends_one_budget(
        self, command: tuple[str, ...], tmp_path: Path
    ) -> None:
        line = train_line(tmp_path, **SAME | {"epochs": 20.0})
        del line[line.index("--out") : line.index("--out") + 2]
        of_its_own = command == MODULE
        more = ("--processes", 2) if of_its_own else ()
        process = start(*command, *line, *more, folder=tmp_path, PET_MAX_RESTARTS=1)
        try:
            _wait_for(lambda: _charged_in(tmp_path) >= 5)
            # The first process, which holds the ledger, and the other one.
            os.kill(_child(process.pid, 0 if of_its_own else 1), signal.SIGKILL)
        finally:
            out, err = process.communicate(timeout=100)
        outcome = Outcome(process.returncode, out, err)
        assert outcome.code == 0, err
        (folder,) = (tmp_path / "runs").iterdir()
        assert outcome.json["run"] == str(folder.relative_to(tmp_path))
        assert _charged(folder) == outcome.json["steps"]
        assert outcome.json["epsilon"] <= 1

    def test_a_restart_that_knows_no_folder_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        line = train_line(tmp_path)
        del line[line.index("--out") : line.index("--out") + 2]
        for name, value in (("RESTART_COUNT", 1), ("RUN_ID", "none")):
            monkeypatch.setenv(f"TORCHELASTIC_{name}", str(value))
        assert_refused(call(*line), "may have started this run before", "--out", "--rdzv-id")
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
        monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
        assert_refused(call(*line), "may have started this run before")
        assert not list(tmp_path.iterdir())

    def test_a_restart_begins_what_the_first_start_did_not(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
        assert call(*train_line(tmp_path / "run")).code == 0
        before = _charged(tmp_path / "run")
        assert call(*train_line(tmp_path / "run")).code == 0
        assert _charged(tmp_path / "run") == before
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
        assert_refused(call(*train_line(tmp_path / "run")), "exists and is not empty")


def _charged_in(place: Path) -> int:
    """The most that a run below a folder was charged."""
    return max((_charged(path.parent) for path in place.glob("runs/*/ledger.jsonl")), default=0)


def _errors(text: str) -> str:
    """What is no progress, and not of gloo, which tells of connections that end."""
    return "\n".join(line for line in text.splitlines() if line.startswith("error: "))


def _wait_for(condition: object) -> None:
    assert callable(condition)
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def _charged(folder: Path) -> int:
    lines = (folder / "ledger.jsonl").read_text().splitlines()
    return max(
        (json.loads(text).get("charged", 0) for text in lines if text[-1:] == "}"), default=0
    )


def _child(parent: int, rank: int) -> int:
    """The process that a launcher has given this rank."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for child in map(int, children):
        if f"RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return child
    raise AssertionError(f"none of {children} has rank {rank}")


class TestErrors:
    def test_an_error_of_all_is_said_once(self, together: tuple[Path, Outcome]) -> None:
        folder, _ = together
        outcome = run(*MODULE, *train_line(folder, processes=2, **SAME))
        assert_refused(outcome, "exists and is not empty")

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"processes": 0}, "--processes must be an integer of at least 1"),
            ({"processes": 2, "seeds": 2}, "leave out --processes for a sweep"),
            ({"processes": 2, "dataset": "rows.csv"}, "a table is learnt by one process"),
        ],
    )
    def test_what_several_cannot_do_is_said_before_any_is_started(
        self, changes: dict[str, object], words: str, tmp_path: Path
    ) -> None:
        assert_refused(call(*train_line(tmp_path / "run", **changes)), words)
        assert not (tmp_path / "run").exists()

    def test_another_number_than_the_launcher_s_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "3")
        outcome = call(*train_line(tmp_path / "run", processes=2))
        assert_refused(outcome, "--processes 2 under a launcher that started 3")


def test_a_table_under_a_launcher_is_learnt_once(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    lines = [f"{x:.3f},{'high' if x > 0.5 else 'low'}" for x in generator.random(200)]
    (tmp_path / "rows.csv").write_text("\n".join(["x,y", *lines]))
    drafted = call("schema", tmp_path / "rows.csv", "--target", "y").out
    (tmp_path / "schema.toml").write_text(drafted.replace('source = "data"', 'source = "public"'))
    line = ("-m", "dpvd", "train", tmp_path / "rows.csv", "--schema", tmp_path / "schema.toml")
    out = ("--out", tmp_path / "runs" / "one", "--json")
    outcome = run(*LAUNCHER, *line, "--epsilon", 1, "--delta", 1e-5, *out)
    assert outcome.code == 0, outcome.err
    assert outcome.json["steps"] >= 1
    assert outcome.err.count("is learnt by one process") == 1
    (folder,) = (tmp_path / "runs").iterdir()
    assert [path.name for path in folder.glob("ledger*")]
    ledgers = [Ledger.open(path) for path in folder.glob("ledger*.jsonl")]
    assert sum(ledger.charged for ledger in ledgers) == outcome.json["steps"]
