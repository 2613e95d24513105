"""Tables, figures and the page say what the records say."""

import csv
import re
from pathlib import Path

import pytest

from dpvd.experiments import Folder, Tuning, TuningCell, Variant, write_artefacts
from dpvd.experiments.catalogue import cell_specs, delta_specs, sweep_specs
from dpvd.experiments.protocols import MNIST_QUICK, Protocol
from dpvd.experiments.tables import Table, as_csv, as_latex, as_markdown
from dpvd.experiments.tuning import Trial
from tests.experiments.small import TINY, made_up

CHOSEN = {TuningCell("tiny", "DPVD-zCDP", 1.0): (0.3, 0.5)}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Folder(tmp_path_factory.mktemp("reproduction"))
    for cell, (rate, gamma) in CHOSEN.items():
        folder.tuning.write(Tuning(cell, rate, gamma, True, (Trial(rate, gamma, 0.7, "x"),)))
    specs = [
        *cell_specs(TINY, "DPVD-zCDP", Variant.AS_PRINTED, 1.0, {}, 2),
        *cell_specs(TINY, "DPVD-zCDP", Variant.TUNED, 1.0, CHOSEN, 2),
        *cell_specs(TINY, "DPVD-AC", Variant.AS_PRINTED, 0.1, {}, 2),
        *cell_specs(TINY, "NP", Variant.AS_PRINTED, None, {}, 2),
        *(spec for points in sweep_specs(TINY, CHOSEN).values() for each in points.values() for spec in each),
        *(spec for each in delta_specs(TINY).values() for spec in each),
    ]
    for spec in dict.fromkeys(specs):
        folder.records.write(made_up(spec, 0.8 + 0.02 * spec.seed + 0.1 * (spec.variant is Variant.TUNED)))
    return write_artefacts(folder, [TINY]).parent


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_table_has_published_and_own_figures(written: Path) -> None:
    by_cell = {(row["method"], row["ε asked for"]): row for row in rows(written / "tables" / "table1.csv")}
    row = by_cell["DPVD-zCDP", "1"]
    assert (row["published"], row["as printed"], row["tuned"], row["recipe"], row["ε spent"]) == (
        "92.78",
        "81.0 ± 1.4 (2)",
        "91.0 ± 1.4 (2)",
        "–",
        "1",
    )
    assert by_cell["NP", "∞"]["as printed"] == "81.0 ± 1.4 (2)"
    assert by_cell["SVI-zCDP", "1"]["as printed"] == "–"
    assert by_cell["DPVD-PLD", "1"]["published"] == "–"


def test_choices_are_listed_with_their_cost(written: Path) -> None:
    (row,) = rows(written / "tables" / "tuning.csv")
    assert (row["η₀"], row["γ"], row["at the edge of the grid"]) == ("0.3", "0.5", "yes")
    words = (written / "tables" / "tuning.md").read_text(encoding="utf-8")
    assert "not in the account" in words
    assert "no finite ε covers that" in words  # the choice looks at held-out accuracies as they are


def test_every_claim_has_a_verdict(written: Path) -> None:
    found = rows(written / "tables" / "claims.csv")
    assert {row["verdict"] for row in found} == {"holds", "fails", "cannot be judged"}
    assert all(row["reason"] for row in found)


def test_figures_are_there_twice_and_their_words_are_text(written: Path) -> None:
    figures = written / "figures"
    assert {path.stem for path in figures.glob("*.png")} == {"fig2-tiny", "fig3", "fig4", "fig5-tiny"}
    assert {path.stem for path in figures.glob("*.svg")} == {path.stem for path in figures.glob("*.png")}
    for path in figures.glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        assert "test accuracy" in text or "σ = noise / (2C)" in text
        assert "$" not in text  # a formula that nobody set
    assert "published" in (figures / "fig2-tiny.svg").read_text(encoding="utf-8")


def test_the_page_stands_alone(written: Path) -> None:
    page = (written / "reproduction.html").read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|href)="(?!#)', page.replace("xlink:", ""))
    assert "<script" not in page
    assert 'class="fails"' in page
    assert page.count("<figure>") == 4


def test_nothing_is_drawn_of_runs_that_are_not_there(tmp_path) -> None:
    quick = Protocol(**{**MNIST_QUICK.__dict__, "name": "nothing"})
    page = write_artefacts(Folder(tmp_path), [quick])
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"fig3.png", "fig3.svg"}
    assert "0 runs" in page.read_text(encoding="utf-8")


AWKWARD = Table("awkward", "50 % & more", "note_1", ("a|b", "ε"), (("x,y", "±1 #2"),))


def test_special_characters_survive_in_every_format() -> None:
    assert "| a\\|b | ε |" in as_markdown(AWKWARD)
    assert as_csv(AWKWARD) == 'a|b,ε\n"x,y",±1 #2\n'
    latex = as_latex(AWKWARD)
    assert r"\caption{50 \% \& more. note\_1}" in latex
    assert r"x,y & $\pm$1 \#2 \\" in latex
