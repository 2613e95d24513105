"""The performance page says what the results say, and is the one in the documentation."""

from pathlib import Path

import pytest
from benchmarks.children import ROOT
from benchmarks.opacus_norms import OUTPUT, table
from benchmarks.page import page, write
from benchmarks.results import LATEST, load

from tests.benchmarks.made_up import good_results


def test_the_page_has_every_figure_and_every_failure() -> None:
    results = good_results()
    results["workloads"]["lstm"]["systems"]["opacus-ghost"] = {"failed": "MemoryError: 20 GB"}
    results["workloads"]["cnn"]["systems"]["dpvd"] |= {"ratio": 1.234, "peak_mb": 17.0}
    text = page(results)
    assert "| dpvd: Algorithm 1 | 2 | 1.23 (0.90 to 1.10) | 17 | 1.70 |" in text
    assert (
        "| cnn | dpvd: Algorithm 1 | time to plain PyTorch | 1.23 | 1.15 | **OVER LIMIT** |" in text
    )
    assert "- Opacus, ghost, lstm: MemoryError: 20 GB" in text
    assert "35 of 36 limits met" not in text  # time and memory of one system are over theirs
    assert "34 of 36 limits met" in text
    assert "2026-01-02, abacus, 2 cores, 2 torch threads, elapsed time" in text


def test_the_answer_and_one_table_come_first() -> None:
    results = good_results()
    works = results["workloads"]
    works["cnn"]["systems"]["dpvd"] |= {"ratio": 1.234, "peak_mb": 17.0}
    works["cnn"]["systems"]["opacus-ghost"] = works["cnn"]["systems"]["dpsgd"] | {"ratio": 2.5}
    works["cnn"]["systems"]["jax-privacy"] = {"failed": "MemoryError"}
    first_screen = page(results).split("\n## ")[0]
    assert "1.00 (`digits-mlp`) to 1.23 (`cnn`) times with Algorithm 1" in first_screen
    assert (
        "| cnn | 1.00, 1.00 | 1.23, 1.70 | 2.50, 1.00 | not measured | no result |" in first_screen
    )


def test_figures_are_drawn_also_where_there_is_no_result(tmp_path: Path) -> None:
    results = good_results()
    results["workloads"]["lstm"]["systems"]["opacus-ghost"] = {"failed": "reason"}
    write(results, tmp_path)
    drawn = (tmp_path / "figures" / "ratios.svg").read_text()
    assert drawn.count("no result") == 1
    assert "dpvd: Algorithm 1" in drawn
    assert "Algorithm 1" in (tmp_path / "figures" / "growth.svg").read_text()


@pytest.mark.skipif(not LATEST.exists(), reason="make bench has not been run")
def test_the_page_in_the_documentation_is_that_of_the_latest_results() -> None:
    """Whoever changes the page changes its template and runs ``python -m benchmarks.page``."""
    assert (ROOT / "docs" / "performance.md").read_text(encoding="utf-8") == page(load(LATEST))


def test_the_comparison_of_norms_in_the_documentation_is_the_one_that_was_made() -> None:
    assert table(load(OUTPUT)) in (ROOT / "docs" / "gradients.md").read_text(encoding="utf-8")
