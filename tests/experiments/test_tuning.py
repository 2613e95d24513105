"""Choosing learning rate and decay."""

import pytest

from dpvd.errors import DpvdError
from dpvd.experiments import Part, RecordStore, TuningCell, TuningStore, choose, trials
from tests.experiments.small import made_up

CELL = TuningCell("digits-quick", "DPVD-zCDP", 1.0)


def store_with(tmp_path, *accuracies: float) -> RecordStore:
    store = RecordStore(tmp_path / "trials")
    for spec, accuracy in zip(trials(CELL), accuracies, strict=True):
        store.write(made_up(spec, accuracy))
    return store


def test_trials_are_measured_on_training_data() -> None:
    assert {spec.part for spec in trials(CELL)} == {Part.HELD_OUT}
    assert [(spec.learning_rate, spec.gamma) for spec in trials(CELL)] == [(0.01, 0.0), (0.1, 0.0), (1.0, 0.0)]


def test_the_best_trial_is_chosen_and_all_are_kept(tmp_path) -> None:
    tuning = choose(CELL, store_with(tmp_path, 0.2, 0.8, 0.5))
    assert (tuning.learning_rate, tuning.gamma, tuning.at_edge) == (0.1, 0.0, False)
    assert [trial.accuracy for trial in tuning.trials] == [0.2, 0.8, 0.5]
    assert [trial.spec for trial in tuning.trials] == [spec.hash for spec in trials(CELL)]
    store = TuningStore(tmp_path)
    store.write(tuning)
    assert CELL in store
    assert store.read_all() == [tuning]
    assert store.choices() == {CELL: (0.1, 0.0)}


def test_a_choice_at_the_edge_of_the_grid_says_so(tmp_path) -> None:
    assert choose(CELL, store_with(tmp_path, 0.2, 0.3, 0.5)).at_edge


def test_of_equals_the_smallest_steps_win(tmp_path) -> None:
    assert choose(CELL, store_with(tmp_path, 0.5, 0.5, 0.5)).learning_rate == 0.01


def test_nothing_is_chosen_before_all_trials_ran(tmp_path) -> None:
    with pytest.raises(DpvdError, match="run its spec first"):
        choose(CELL, RecordStore(tmp_path))


def test_a_damaged_choice_is_refused_by_name(tmp_path) -> None:
    (tmp_path / "digits-quick-x.json").write_text("{}")
    with pytest.raises(DpvdError, match="digits-quick-x"):
        TuningStore(tmp_path).choices()
