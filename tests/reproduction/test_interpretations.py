"""What was measured of the seven points is on the page as it was measured."""

import json
from pathlib import Path
from typing import Any

import pytest
from reproduction.interpretations import _layers as layers
from reproduction.interpretations import measure
from reproduction.interpretations_page import PAGE, WORDS, filled_in, load
from reproduction.page import FOLDER

from dpvd.errors import DpvdError
from dpvd.experiments import PROTOCOLS, Folder, TuningCell, choose, trials
from dpvd.plan import PrivacyPlan


def accuracy(mean: float) -> dict[str, Any]:
    return {"mean": mean, "spread": 0.0123, "runs": 5}


def made_up() -> dict[str, Any]:
    """As ``measure`` would return it, with figures that are easy to find again."""
    tied = {
        "first": 0.0123,
        "last": 0.000123,
        "together": 0.0456,
        "weights": [0.125, 0.0625],
        "noise_larger": [0.0123, 0.0045],
        "without": accuracy(0.801),
        "sampled": accuracy(0.802),
    }
    kl = {
        "accuracy": accuracy(0.7),
        "kl_gradient": [1.5, 2.5],
        "clipped": [0.1, 0.2],
        "factor": [0.25, 0.75],
    }
    schedules = {"printed": [0.05, 1.0], "tuned": [0.3, 0.5]}
    return {
        "about": {"protocol": "", "seeds": 5, "schedules": schedules, "delta": 1e-5},
        "scale": {
            "noise": 11.88,
            "steps": 1437,
            "after_all_steps": 450.3,
            "initial_weight": 0.125,
            "on_weights": accuracy(0.101),
            "on_sum": accuracy(0.834),
            "on_sum_epsilon": 2.0901,
            "for_one": accuracy(0.778),
            "for_one_noise": 24.26,
        },
        "carried": {
            "neighbours": 8,
            "distance": 0.321,
            "distance_median": 0.123,
            "reach": 21.1,
            "small": {"noise": 0.000121, "accuracy": accuracy(0.844), "epsilon": 3_456_789.0},
            "printed": {
                "noise": 11.88,
                "accuracy": accuracy(0.11),
                "epsilon": 0.0501,
                "epsilon_reach": 8.7654,
            },
        },
        "tied": {"printed": tied, "tuned": tied},
        "layers": [{"dataset": "digits", "claimed": 1.0, "true": 1.47001}],
        "kl": {name: {"none": kl, "outside": kl, "inside": kl} for name in ("printed", "tuned")},
        "alpha": [
            {
                "epsilon": 10.0,
                "schedule": "printed",
                "rate": 0.05,
                "gamma": 1.0,
                "alpha_held": accuracy(0.857),
                "zeta_held": accuracy(0.121),
                "kl_gradient": [182.4, 112.6],
            }
        ],
        "schedule": {"published": 0.9535, "as-printed": accuracy(0.851), "tuned": accuracy(0.972)},
    }


def page() -> str:
    return PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "words",
    [
        "On every weight in every step, that is noise of 11.9, and of 450 after all 1,437 steps",
        "10.1 ± 1.2 %, where guessing gives 10 %",
        "83.4 ± 1.2 % at ε = 2.091 (by `pld`, two layers clipped)",
        "ends up to 0.32 apart (8 examples tried; median 0.12)",
        "no ε below 3,400,000 is true of it (84.4 ± 1.2 %)",
        "by up to 21 over the run, for which ε is 8.766",
        (
            "| as printed: η₀ = 0.05, γ = 1 | 0.012 to 0.00012 | 0.046 | 0.12 and 0.062 | 1.2 % and"
            " 0.45 % | 80.1 ± 1.2 %"
        ),
        "| DIGITS | 1 | 1.471 |",
        "| tuned | inside the clip | 70.0 ± 1.2 % | 1.5 and 2.5 | 0.25 and 0.75 |",
        "| 10 | as printed: η₀ = 0.05, γ = 1 | 85.7 ± 1.2 % | 12.1 ± 1.2 % | 182 and 113 |",
        "85.1 ± 1.2 % as printed, 97.2 ± 1.2 % tuned, where the paper prints 95.35 %",
    ],
)
def test_every_figure_reaches_the_page(words: str) -> None:
    assert words in " ".join(filled_in(page(), made_up()).split())


def test_filling_in_twice_changes_nothing_and_the_rest_stays() -> None:
    once = filled_in(page(), made_up())
    assert filled_in(once, made_up()) == once
    assert [line for line in once.splitlines() if line.startswith("#")] == [
        line for line in page().splitlines() if line.startswith("#")
    ]


def test_a_page_without_a_point_is_refused() -> None:
    with pytest.raises(DpvdError, match="each once"):
        filled_in(page().replace("measured: scale", "measured: scales"), made_up())


def test_every_point_has_words() -> None:
    assert set(WORDS) == set(made_up()) - {"about"}


def test_what_was_measured_is_read_back(tmp_path: Path) -> None:
    assert load(Folder(tmp_path)) is None
    (tmp_path / "interpretations.json").write_text(json.dumps(made_up()))
    assert load(Folder(tmp_path)) == made_up()


def test_the_page_has_what_was_measured() -> None:
    """Whoever measures again runs ``python -m reproduction.page``."""
    measured = load(FOLDER)
    assert measured is not None
    assert filled_in(page(), measured) == page()


def test_without_a_reproduction_the_way_to_one_is_told(tmp_path: Path) -> None:
    with pytest.raises(DpvdError, match="dpvd reproduce table1"):
        measure(Folder(tmp_path))


def test_points_that_were_measured_with_these_settings_are_kept(tmp_path: Path) -> None:
    known = made_up()
    known["about"] = about_of(known, tuned=[0.1, 0.5])
    folder = with_choices(tmp_path, (0.1, 0.5))
    assert measure(folder, known) == known


def test_points_of_other_settings_are_measured_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    for name in WORDS:
        part = f"reproduction.interpretations._{name}"
        monkeypatch.setattr(part, lambda *given, name=name: asked.append(name))
    known = made_up()
    known["about"] = about_of(known, tuned=[0.3, 0.5])
    measure(with_choices(tmp_path, (0.1, 0.5)), known)
    assert sorted(asked) == sorted(WORDS)


def about_of(known: dict[str, Any], tuned: list[float]) -> dict[str, Any]:
    schedules = {"printed": [0.05, 1.0], "tuned": tuned}
    return known["about"] | {"protocol": PROTOCOLS["digits-100"].words, "schedules": schedules}


def with_choices(path: Path, best: tuple[float, float]) -> Folder:
    """A reproduction whose searches found this η₀ and γ to be the best at every budget."""
    folder = Folder(path)
    for epsilon in (10.0, 1.0, 0.1):
        cell = TuningCell("digits-100", "DPVD-zCDP", epsilon)
        asked = trials(cell, {})
        scores = {spec.hash: float((spec.learning_rate, spec.gamma) == best) for spec in asked}
        folder.tuning.write(choose(cell, scores))
    return folder


def test_a_forgotten_root_of_two_is_judged_by_the_noise_it_leaves() -> None:
    found = {(row["dataset"], row["claimed"]): row["true"] for row in layers()}
    assert len(found) == 6
    assert all(true > claimed for (_, claimed), true in found.items())
    plan = PrivacyPlan(examples=1437, batch_size=100, epochs=100.0).calibrate(1.0, 1e-5)
    assert plan.noise_multiplier is not None
    weaker = PrivacyPlan(
        examples=1437, batch_size=100, epochs=100.0, noise_multiplier=plan.noise_multiplier / 2**0.5
    )
    assert found["digits", 1.0] == weaker.epsilon(1e-5)
