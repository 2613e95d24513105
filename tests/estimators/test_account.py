"""What several fits cost together."""

import math
import warnings

import numpy as np
import pytest
from dp_accounting import ComposedDpEvent
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate

from dpvd.errors import DpvdError
from dpvd.privacy import epsilon
from dpvd.sklearn import DPVDClassifier, RefitWarning, reset_total_privacy, total_privacy
from tests.estimators.data import numbers

DELTA = 1e-4
X, Y = numbers(300)


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
    assert total.sentence() == "No fit was seen in this process."


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


def test_a_second_fit_warns_once_with_the_sum():
    model = classifier().fit(X, Y)
    with pytest.warns(RefitWarning, match="both fits together cost ε = 1.") as caught:
        model.fit(X, Y)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    said = str(caught[0].message)
    assert f"ε = {math.ceil(total_privacy(DELTA).epsilon * 1000) / 1000} at δ = 0.0001" in said
    assert model.privacy_.epsilon <= 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, Y)
    assert total_privacy(DELTA).fits == 3


def test_delta_is_checked():
    with pytest.raises(DpvdError, match="delta must lie"):
        total_privacy(0.0)
