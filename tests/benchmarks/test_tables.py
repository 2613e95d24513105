"""The comparison of tables: its measures, its encoding, and what its page admits."""

import numpy as np
import pytest
from benchmarks.table_data import Column, Table, encode
from benchmarks.tables import area_under_curve, calibration_error, page
from sklearn.metrics import roc_auc_score


def test_the_area_is_that_of_scikit_learn_ties_included():
    source = np.random.default_rng(0)
    scores = source.integers(0, 20, 300) / 20
    y = source.integers(0, 2, 300)
    assert area_under_curve(scores, y) == pytest.approx(roc_auc_score(y, scores))


def test_calibration_error_sees_overconfidence_and_nothing_else():
    source = np.random.default_rng(0)
    honest = source.random(60_000)
    y = (source.random(60_000) < honest).astype(int)
    assert calibration_error(honest, y) < 0.012
    bold = np.where(honest > 0.5, 0.99, 0.01)
    assert calibration_error(bold, y) == pytest.approx(0.24, abs=0.01)


def test_encoded_rows_stay_within_their_bounds():
    numbers = Column(np.array([5.0, -100.0, np.nan, 20.0]), 0.0, 10.0, may_be_missing=True)
    colours = Column(np.array([0.0, 1.0, 2.0, 0.0]), categories=3)
    features, groups = encode(Table("made up", [numbers, colours], np.zeros(4, int)), knots=3)
    assert groups.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert features[:, 0].tolist() == [0.0, -1.0, 0.0, 1.0]
    assert features[:, 1].tolist() == [0, 0, 1, 0]
    assert np.abs(features).max() <= 1


def test_the_page_says_where_another_system_is_ahead():
    entry = {"table": "pima", "epsilon": 1.0, "ece": [0.1], "accuracy": [0.7]}
    ours = entry | {"system": "dpvd", "auc": [0.8]}
    theirs = entry | {"system": "ridge", "auc": [0.81]}
    assert "dpvd is behind noisy-statistics ridge on pima at ε = 1" in page([ours, theirs])
    assert "ahead everywhere" in page([ours, theirs | {"auc": [0.7]}])
