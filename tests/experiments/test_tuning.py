"""Choosing learning rate and decay."""

import json

import pytest

from dpvd.errors import DpvdError
from dpvd.experiments import PROTOCOLS, Part, Spec, TuningCell, TuningStore, choose, trials
from dpvd.experiments.carry import carried_rate
from dpvd.experiments.tuning import Scores
from dpvd.plan import PrivacyPlan

CELL = TuningCell("digits-quick", "DPVD-zCDP", 1.0)  # three points, and no going on
SEARCHED = TuningCell("mnist-10", "DPVD-zCDP", 1.0)
LONG = TuningCell("mnist-200", "DPVD-zCDP", 1.0)


def scored(*accuracies: float) -> Scores:
    return dict(zip((spec.hash for spec in trials(CELL, {})), accuracies, strict=True))


def searched(best_rate: float, best_gamma: float, cell: TuningCell = SEARCHED) -> dict[str, float]:
    """All that a search asks for, where accuracy falls with the distance from a point."""
    scores: dict[str, float] = {}
    while asked := trials(cell, scores):
        scores |= {spec.hash: _accuracy(spec, best_rate, best_gamma) for spec in asked}
    return scores


def _accuracy(spec: Spec, best_rate: float, best_gamma: float) -> float:
    assert spec.learning_rate is not None
    assert spec.gamma is not None
    ratio = max(spec.learning_rate, best_rate) / min(spec.learning_rate, best_rate)
    return 0.9 - 0.001 * ratio - 0.1 * abs(spec.gamma - best_gamma)


def test_trials_are_measured_on_training_data() -> None:
    found = trials(CELL, {})
    assert {spec.part for spec in found} == {Part.HELD_OUT}
    assert [spec.learning_rate for spec in found] == [0.01, 0.1, 1.0]
    assert {spec.gamma for spec in found} == {0.0}


def test_the_best_trial_is_chosen_and_all_are_kept(tmp_path) -> None:
    tuning = choose(CELL, scored(0.2, 0.8, 0.5))
    assert (tuning.learning_rate, tuning.gamma, tuning.at_edge) == (0.1, 0.0, False)
    assert [trial.accuracy for trial in tuning.trials] == [0.2, 0.8, 0.5]
    assert [trial.spec for trial in tuning.trials] == [spec.hash for spec in trials(CELL, {})]
    store = TuningStore(tmp_path / "tuning.json")
    store.write(tuning)
    assert CELL in store
    assert store.read_all() == [tuning]
    assert store.choices() == {CELL: (0.1, 0.0)}
    assert store.scores() == scored(0.2, 0.8, 0.5)


def test_a_choice_at_the_edge_of_the_grid_says_so() -> None:
    assert choose(CELL, scored(0.2, 0.3, 0.5)).at_edge


def test_of_equals_the_smallest_steps_win() -> None:
    assert choose(CELL, scored(0.5, 0.5, 0.5)).learning_rate == 0.01


@pytest.mark.parametrize("best", [(0.003, 0.0), (0.1, 0.5), (10.0, 1.0)])
def test_a_search_goes_on_until_its_best_is_inside(best: tuple[float, float]) -> None:
    """From a grid of 0.03 to 1 and γ of 0 and 0.5."""
    tuning = choose(SEARCHED, searched(*best))
    assert (tuning.learning_rate, tuning.gamma) == best
    assert not tuning.at_edge


def test_a_search_that_was_decided_goes_on_from_its_scores(tmp_path) -> None:
    """Trials have no record in a fresh copy of the project; the choice holds their scores."""
    store = TuningStore(tmp_path / "tuning.json")
    store.write(choose(SEARCHED, searched(3.0, 0.5)))
    assert trials(SEARCHED, store.scores()) == []


def test_nothing_is_chosen_before_all_trials_ran() -> None:
    with pytest.raises(DpvdError, match="3 trials"):
        choose(CELL, {})


def test_a_long_protocol_takes_the_choice_of_the_short_one() -> None:
    scores = searched(1.0, 0.5)
    assert trials(LONG, scores) == []
    short, long = choose(SEARCHED, scores), choose(LONG, scores)
    assert long.trials == short.trials
    assert (short.learning_rate, short.gamma) == (1.0, 0.5)
    assert (long.learning_rate, long.gamma) == (0.18, 0.5)


@pytest.mark.parametrize(("behind", "gamma"), [(0.003, 0.0), (0.005, 0.5)])
def test_the_slowest_decay_close_to_the_best_is_carried(behind: float, gamma: float) -> None:
    """An accuracy of 0.9 on 6,000 held-out images has a standard error of 0.0039."""
    scores = searched(0.3, 0.5)
    best = max(scores, key=lambda name: scores[name])
    grid = trials(SEARCHED, {})
    (slower,) = [spec for spec in grid if (spec.learning_rate, spec.gamma) == (0.1, 0.0)]
    scores |= {best: 0.9, slower.hash: 0.9 - behind}
    assert choose(LONG, scores).gamma == gamma


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_a_rate_is_carried_over_so_that_all_steps_leave_the_same_noise(gamma: float) -> None:
    rate = carried_rate("DPVD-zCDP", 0.1, 1.0, gamma, PROTOCOLS["mnist-10"], PROTOCOLS["mnist-200"])
    left = [noise_left(1.0, gamma, 10), noise_left(rate, gamma, 200)]
    assert left[0] == pytest.approx(left[1], rel=0.05)  # the rate is rounded to two digits


def noise_left(rate: float, gamma: float, epochs: int) -> float:
    """z times the root of the sum of squared learning rates, step by step."""
    plan = PrivacyPlan(examples=60_000, batch_size=600, epochs=float(epochs))
    plan = plan.calibrate(0.1, 1e-5, "zcdp")
    assert plan.noise_multiplier is not None
    steps = [rate / (1 + step // 100) ** gamma for step in range(plan.steps)]
    return plan.noise_multiplier * sum(step**2 for step in steps) ** 0.5


def test_without_noise_a_rate_stays() -> None:
    assert carried_rate("NP", None, 0.3, 0.5, PROTOCOLS["mnist-10"], PROTOCOLS["mnist-200"]) == 0.3


def test_a_damaged_choice_is_refused_by_name(tmp_path) -> None:
    (tmp_path / "tuning.json").write_text("[{}]")
    with pytest.raises(DpvdError, match=r"tuning\.json"):
        TuningStore(tmp_path / "tuning.json").choices()


def test_a_choice_that_was_made_for_other_settings_is_refused(tmp_path) -> None:
    """As one for DPVD with the KL term in its gradient would be."""
    values = choose(CELL, scored(0.2, 0.8, 0.5)).to_dict()
    values["trials"][1]["spec"] = "0" * 64
    (tmp_path / "old.json").write_text(json.dumps([values]))
    with pytest.raises(DpvdError, match="trials of other settings"):
        TuningStore(tmp_path / "old.json").choices()


def test_choices_for_other_cells_stay_and_those_for_the_same_are_replaced(tmp_path) -> None:
    store = TuningStore(tmp_path / "tuning.json")
    store.write(choose(CELL, scored(0.2, 0.8, 0.5)), choose(SEARCHED, searched(3.0, 0.5)))
    store.write(choose(CELL, scored(0.9, 0.8, 0.5)))
    assert store.choices() == {CELL: (0.01, 0.0), SEARCHED: (3.0, 0.5)}


def test_single_choices_of_earlier_versions_are_taken_over(tmp_path) -> None:
    store = TuningStore(tmp_path / "tuning.json", earlier=tmp_path / "tuning")
    store.write(choose(CELL, scored(0.2, 0.8, 0.5)))
    other = choose(SEARCHED, searched(3.0, 0.5))
    (tmp_path / "tuning").mkdir()
    (tmp_path / "tuning" / "mnist-10-dpvd-zcdp-1.json").write_text(json.dumps(other.to_dict()))
    before = store.read_all()
    assert [tuning.cell for tuning in before] == [CELL, SEARCHED]
    store.fold()
    assert store.read_all() == before
    assert not list((tmp_path / "tuning").iterdir())
