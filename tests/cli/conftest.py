"""Runs that many tests look at: made once, never written to."""

from pathlib import Path

import pytest

from dpvd.data import load
from dpvd.runs import RunOptions, execute, prepare_run
from tests.cli.program import SMALL, Outcome, call, train_line


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> tuple[Path, Outcome]:
    """A finished private run, and what the command said."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, call(*train_line(folder, json=True))


@pytest.fixture(scope="session")
def run(finished) -> Path:
    return finished[0]


@pytest.fixture
def unfinished(tmp_path) -> Path:
    """A run like the finished one, interrupted after five steps."""

    def interrupt(progress):
        if progress.step == 5:
            raise KeyboardInterrupt

    folder = tmp_path / "unfinished"
    with pytest.raises(KeyboardInterrupt):
        execute(prepare_run(RunOptions(**SMALL), load("digits")), folder, on_step=interrupt)
    return folder
