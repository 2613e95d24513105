"""The page of the reproduction says what is there, and what is missing."""

from pathlib import Path

import pytest
from reproduction.page import documents

from dpvd.experiments import Artefacts, ExperimentProtocol, Folder, Variant
from dpvd.experiments.catalogue import cell_specs
from dpvd.experiments.protocols import DIGITS_100, MNIST_10, MNIST_200
from tests.experiments.small import made_up


def page(path: Path, *runs: tuple[ExperimentProtocol, int]) -> str:
    """Of so many seeds of NP as printed at each protocol."""
    folder = Folder(path)
    for protocol, seeds in runs:
        for spec in cell_specs(protocol, "NP", Variant.AS_PRINTED, None, {}, seeds):
            folder.records.write(made_up(spec, 0.9))
    return documents(folder, Artefacts.of(folder, folder.protocols()))["reproduction.md"].decode()


@pytest.mark.parametrize(("seeds", "complete"), [(2, 0), (3, 1)])
def test_it_counts_the_cells_that_have_runs(tmp_path: Path, seeds: int, complete: int) -> None:
    """32 cells of six methods, as printed and tuned, and three of our recipe."""
    text = page(tmp_path, (MNIST_200, seeds))
    assert f"| the paper's | {seeds} | 1 of 35 | {complete} of 35 |" in text


def test_verdicts_come_first_and_a_second_protocol_is_called_one(tmp_path: Path) -> None:
    text = page(tmp_path, (DIGITS_100, 2), (MNIST_10, 2))
    first_screen = text.split("\n## ")[0]
    assert "| claim | verdict | DIGITS | reason |" in first_screen
    assert "claims of the paper: 1 reproduced, " in first_screen
    assert "Does dropout help at low ε?" in first_screen or "cannot be said yet" in first_screen
    assert "mnist-10" not in first_screen
    assert "### MNIST (mnist-10, a second protocol: not the paper's length)" in text
    assert "### DIGITS (digits-100)" in text
