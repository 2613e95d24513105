"""What several fits cost together."""

import math
import warnings

import numpy as np
import pandas as pd
import pytest
from dp_accounting import ComposedDpEvent
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate

from dpvd.errors import DpvdError
from dpvd.privacy import epsilon
from dpvd.sklearn import (
    DPVDClassifier,
    DPVDRegressor,
    RefitWarning,
    reset_total_privacy,
    total_privacy,
)
from tests.estimators.data import numbers

DELTA = 1e-4
X, Y = numbers(300)
MANY = numbers(4000)


def classifier(**settings) -> DPVDClassifier:
    given = {"epsilon": 1.0, "delta": DELTA, "bounds": (0, 1), "classes": [0, 1]}
    return DPVDClassifier(**given | settings)


@pytest.fixture(autouse=True)
def counted_anew():
    reset_total_privacy()
    yield
    reset_total_privacy()


def test_nothing_was_fitted():
    total = total_privacy(DELTA)
    assert (total.fits, total.epsilon) == (0, 0.0)
    assert total.sentence().startswith("No fit was seen in this process; those in other processes")


def test_each_fold_is_charged_and_the_sum_is_the_composed_account():
    found = cross_validate(classifier(), X, Y, cv=4, return_estimator=True)
    events = [plan.event() for model in found["estimator"] for plan in model.plans_.values()]
    total = total_privacy(DELTA)
    assert total.fits == 4
    assert total.epsilon == pytest.approx(epsilon(ComposedDpEvent(events), DELTA), rel=1e-9)
    largest = max(model.privacy_.epsilon for model in found["estimator"])
    assert 1.5 * largest < total.epsilon < 4 * largest
    assert str(total).startswith("4 fits in this process, together (2.")
    assert "Not seen: fits in other processes" in str(total)


def test_a_grid_search_is_charged_with_its_last_fit():
    GridSearchCV(classifier(), {"epsilon": [0.5, 1.0]}, cv=3).fit(X, Y)
    assert total_privacy(DELTA).fits == 7


def test_resetting_begins_anew():
    classifier().fit(X, Y)
    reset_total_privacy()
    cross_val_score(classifier(), X, Y, cv=2)
    assert total_privacy(DELTA).fits == 2


def test_fits_with_one_seed_share_their_noise_and_have_no_finite_sum():
    seeded = classifier(noise="seeded", random_state=0)
    cross_val_score(seeded, X, Y, cv=2)
    total = total_privacy(DELTA)
    assert total.epsilon == math.inf
    assert "not differentially private" in str(total)
    reset_total_privacy()
    for seed in (0, 1):
        classifier(noise="seeded", random_state=seed).fit(X, Y)
    assert total_privacy(DELTA).epsilon < 2


def test_fits_for_different_units_or_relations_have_no_sum():
    classifier().fit(X, Y)
    classifier(relation="replace-one").fit(X, Y)
    with pytest.raises(DpvdError, match="no joint statement"):
        total_privacy(DELTA)
    reset_total_privacy()
    classifier().fit(X, Y)
    classifier(rows_per_person=2).fit(X, Y, groups=np.arange(300) // 2)
    with pytest.raises(DpvdError, match="different relations or units"):
        total_privacy(DELTA)


def said_by(caught: list[warnings.WarningMessage]) -> list[str]:
    assert all(warning.category is RefitWarning for warning in caught)
    return [str(warning.message) for warning in caught]


def sum_in_words() -> str:
    return f"cost ε = {math.ceil(total_privacy(DELTA).epsilon * 1000) / 1000} at δ = 0.0001"


def test_every_further_fit_warns_with_the_sum():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = classifier().fit(X, Y)
    for further in (2, 3):
        with pytest.warns(RefitWarning, match=f"this is fit {further} in this process") as caught:
            model.fit(X, Y)
        assert caught[0].filename == __file__
        assert [sum_in_words() in said for said in said_by(caught)] == [True]
    assert model.privacy_.epsilon <= 1


def test_folds_say_their_sum_though_they_are_clones():
    with pytest.warns(RefitWarning) as caught:
        cross_val_score(classifier(), X, Y, cv=3)
    said = said_by(caught)
    assert len(said) == 2
    assert "all 3 together" in said[1]
    assert sum_in_words() in said[1]


def test_fits_without_a_sum_say_so():
    classifier().fit(X, Y)
    with pytest.warns(RefitWarning, match="cost more than any of their statements says"):
        classifier(relation="replace-one").fit(X, Y)


def test_other_peoples_data_are_not_warned_of():
    classifier().fit(X, Y)
    reset_total_privacy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classifier().fit(X, Y)


def test_delta_is_checked():
    with pytest.raises(DpvdError, match="delta must lie"):
        total_privacy(0.0)


def test_private_bounds_are_in_the_statement_and_in_the_sum():
    model = classifier(bounds=None, private_bounds=0.4, epsilon=2.0).fit(*MANY)
    events = [plan.event() for plan in model.plans_.values()]
    estimates = [plan.event() for name, plan in model.plans_.items() if "bounds of" in name]
    assert len(estimates) == 6  # two for each of the columns
    assert 0.39 < epsilon(ComposedDpEvent(estimates), DELTA) <= 0.4
    stated = model.privacy_.epsilon
    assert stated == pytest.approx(epsilon(ComposedDpEvent(events), DELTA), rel=1e-9)
    assert 1.99 < stated <= 2.0
    assert total_privacy(DELTA).epsilon == pytest.approx(stated, rel=1e-9)
    assert "bounds estimated within the budget: x0, x1, x2" in model.privacy_.sentence()
    assert "bounds of the" not in model.privacy_.sentence()
    assert model.score(*MANY) > 0.8


def test_bounds_that_are_declared_are_not_estimated():
    x, y = MANY
    frame = pd.DataFrame(x, columns=["a", "b", "target"])
    model = classifier(bounds={"a": (0, 1)}, private_bounds=0.4, epsilon=2.0).fit(frame, y)
    assert sum("bounds of" in name for name in model.plans_) == 4
    assert model.encoder_.schema.column("a").bounds == (0, 1)
    low, high = model.encoder_.schema.column("target").bounds
    assert -0.1 <= low < 0.2
    assert 0.8 < high <= 1.1
    assert "bounds of the 1 columns" in model.privacy_.sentence()


def test_a_regressor_estimates_bounds_of_its_target():
    x, _ = MANY
    model = DPVDRegressor(epsilon=4.0, delta=DELTA, bounds=(0, 1), private_bounds=1.0)
    model.fit(x, 50 * x[:, 0])
    low, high = model.encoder_.schema.target.bounds
    assert -5 <= low <= 5
    assert 40 <= high <= 70
    assert abs(model.predict(x) - 50 * x[:, 0]).mean() < 10
    assert "bounds estimated within the budget: target" in model.privacy_.sentence()


def test_people_with_many_rows_have_one_vote_in_private_bounds():
    x, y = MANY
    people = np.arange(len(y)) // 4
    model = classifier(bounds=None, private_bounds=1.0, epsilon=4.0, rows_per_person=2)
    model.fit(x, y, groups=people)
    assert {plan.examples for plan in model.plans_.values()} == {len(y) // 4}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"private_bounds": 1.0, "bounds": None}, "must be below 1, got 1"),
        ({"private_bounds": 0.0, "bounds": None}, "private_bounds"),
        ({"private_bounds": True, "bounds": None}, "private_bounds"),
        ({"private_bounds": 0.5}, "nothing to estimate"),
        ({"private_bounds": 0.01, "bounds": None}, "too few .* nothing was charged"),
    ],
)
def test_private_bounds_that_make_no_sense_charge_nothing(settings, words):
    with pytest.raises(DpvdError, match=words):
        classifier(**settings).fit(X, Y)
    assert total_privacy(DELTA).fits == 0


def test_categories_are_declared_or_refused():
    frame = pd.DataFrame({"a": ["p", "q"] * 150})
    schema = {
        "target": {"name": "y", "classes": ["0", "1"], "source": "public"},
        "columns": {"a": {"kind": "categorical", "source": "private"}},
    }
    model = DPVDClassifier(epsilon=1.0, delta=DELTA, schema=schema, private_bounds=0.5)
    with pytest.raises(DpvdError, match="no categories for 'a': declare them"):
        model.fit(frame, Y)
    with pytest.raises(DpvdError, match="give private_bounds"):
        DPVDClassifier(epsilon=1.0, delta=DELTA, schema=schema).fit(frame, Y)
