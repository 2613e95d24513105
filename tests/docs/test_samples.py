"""The output that the documentation shows is what the commands print.

In a console block, lines after ``$ dpvd ...`` are its output. Line breaks and column widths do not
count; every word and every number does. Numbers may differ only on lines that depend on secret
noise or on the clock, which ``VARIES`` lists.
"""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dpvd.cli import app
from dpvd.data import load
from tests.docs.markdown import PAGES, ROOT, blocks

# How lines begin whose numbers are blanked: results of secret noise, and times.
VARIES = re.compile(r"test accuracy|calibration error|trained in|training  |prunable  |\d+,\d+,")
NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")
STATEMENT = re.compile(
    r"^> \([\d.]+, [\d.e-]+\)-differentially private:.*\n(?:> .*\n)*", re.MULTILINE
)
TRAINING = "dpvd train digits --epsilon 1 --delta 1e-5 --out runs/first"


@dataclass(frozen=True)
class Sample:
    """A command in the documentation, and the output that is shown below it."""

    page: Path
    line: int
    command: str
    output: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def samples_of(page: Path) -> list[Sample]:
    """Return all commands of dpvd on a page that are shown with their output."""
    found = []
    for block in blocks(page, "console"):
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            if output.strip() and command.startswith("dpvd "):
                found.append(Sample(page, block.line, command, output))
    return found


def comparable(output: str) -> list[str]:
    """Return the words of an output, with those numbers blanked that differ from run to run."""
    lines = [NUMBER.sub("#", line) if VARIES.match(line) else line for line in output.splitlines()]
    return " ".join(lines).split()


SAMPLES = [sample for page in PAGES for sample in samples_of(page)]
STATEMENTS = [(page, quote) for page in PAGES for quote in STATEMENT.findall(page.read_text())]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return what a command prints to stdout, run once, in a folder that holds `runs/first`."""
    folder = tmp_path_factory.mktemp("reader")
    np.savetxt(folder / "new.csv", load("digits").test_x[:2].flatten(1), delimiter=",")

    @cache
    def run(command: str) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            if "runs/first" in command and command != TRAINING:
                run(TRAINING)
            done = CliRunner().invoke(app, shlex.split(command)[1:])
        assert done.exit_code == 0, done.output
        return done.stdout

    return run


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_shown_output_is_what_the_command_prints(
    sample: Sample, printed: Callable[[str], str]
) -> None:
    assert comparable(sample.output) == comparable(printed(sample.command))


@pytest.mark.parametrize(("page", "quote"), STATEMENTS, ids=[page.name for page, _ in STATEMENTS])
def test_quoted_statements_are_that_of_the_first_run(
    page: Path, quote: str, printed: Callable[[str], str]
) -> None:
    assert quote.replace("> ", "").split() == printed(TRAINING).splitlines()[0].split()


def test_there_are_samples_and_statements() -> None:
    assert {sample.command.split()[1] for sample in SAMPLES} >= {
        "train",
        "budget",
        "show",
        "predict",
    }
    assert {page.name for page, _ in STATEMENTS} == {"index.md", "guarantee.md"}


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("test accuracy 0.9 (95 % interval", "test accuracy 0.9 (90 % range"),
        ("trained in 3 s, report a.html", "trained in 3 s, page a.html"),
        ("Gaussian noise of multiplier 37.31", "Gaussian noise of multiplier 37.32"),
        ("60,000 examples, 20,000 steps", "60,000 examples, 2,000 steps"),
        ("0,4,0.99,4e-06", "0,4,0.99"),
    ],
)
def test_another_word_or_a_number_that_should_not_vary_is_noticed(line: str, changed: str) -> None:
    assert comparable(line) != comparable(changed)


def test_only_results_and_times_may_vary() -> None:
    assert comparable("test accuracy 0.9, calibration error 1e-2") == comparable(
        "test accuracy 0.87, calibration error 0.03"
    )
