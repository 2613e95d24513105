"""What estimators learn, say and refuse."""

import io
from dataclasses import replace

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import dpvd
from dpvd.data import Target, schema_text
from dpvd.errors import DpvdError
from dpvd.sklearn import DPVDClassifier, DPVDRegressor, reset_total_privacy, total_privacy
from tests.estimators.data import SCHEMA, numbers, patients

DELTA = 1e-4


def classifier(**settings) -> DPVDClassifier:
    given = {"epsilon": 5.0, "delta": DELTA, "bounds": (0, 1), "classes": [0, 1]}
    return DPVDClassifier(**given | settings)


def by_schema(**settings) -> DPVDClassifier:
    return classifier(**{"bounds": None, "classes": None, "schema": SCHEMA} | settings)


def regressor(**settings) -> DPVDRegressor:
    given = {"epsilon": 5.0, "delta": DELTA, "bounds": (0, 1), "target_bounds": (0, 100)}
    return DPVDRegressor(**given | settings)


@pytest.fixture(autouse=True)
def counted_anew():
    reset_total_privacy()
    yield
    reset_total_privacy()


def test_the_package_has_both_estimators():
    assert dpvd.DPVDClassifier is DPVDClassifier
    assert dpvd.DPVDRegressor is DPVDRegressor


def test_it_learns_and_keeps_to_its_budget():
    x, y = numbers()
    model = classifier().fit(x, y)
    assert model.score(x, y) > 0.85
    assert 4.9 < model.privacy_.epsilon <= 5.0
    assert model.privacy_.delta == DELTA
    assert model.privacy_.epsilon == pytest.approx(total_privacy(DELTA).epsilon, abs=1e-12)
    other = classifier(epsilon=0.01).fit(x, y)
    assert other.privacy_.epsilon <= 0.01


def test_breast_cancer_is_told_apart_at_a_budget_of_one():
    x, y = load_breast_cancer(return_X_y=True)
    bounds = [(0, limit) for limit in 3 * [50, 60, 300, 5000, 1, 1, 2, 1, 1, 1]]
    areas = []
    for seed in range(3):
        train, test, train_y, test_y = train_test_split(x, y, test_size=0.2, random_state=seed)
        model = classifier(epsilon=1, bounds=bounds, noise="seeded", random_state=seed)
        odds = model.fit(train, train_y).decision_function(test)
        areas.append(roc_auc_score(test_y, odds))
    assert np.mean(areas) > 0.95


def test_everything_a_classifier_says_agrees():
    x, y = numbers()
    model = classifier().fit(x, y)
    told = model.predict_dist(x)
    np.testing.assert_array_equal(told.probabilities, model.predict_proba(x))
    np.testing.assert_allclose(told.probabilities.sum(1), 1, atol=1e-12)
    np.testing.assert_array_equal(model.predict(x), told.probabilities.argmax(1))
    odds = np.log(told.probabilities[:, 1] / told.probabilities[:, 0])
    np.testing.assert_allclose(model.decision_function(x), odds, atol=1e-9)
    entropy = -(told.probabilities * np.log(told.probabilities)).sum(1)
    np.testing.assert_allclose(told.entropy, entropy, atol=1e-9)
    assert (told.mutual_information >= 0).all()
    assert (told.mutual_information <= told.entropy).all()
    assert told.mutual_information.max() > 0


def test_a_regressor_knows_how_far_off_it_is():
    x, _ = numbers(2000)
    y = 100 * (0.6 * x[:, 0] + 0.2 * x[:, 1]) + np.random.default_rng(1).normal(0, 8, len(x))
    model = regressor().fit(x, y)
    told = model.predict_dist(x)
    np.testing.assert_array_equal(told.mean, model.predict(x))
    assert model.score(x, y) > 0.5
    error = np.sqrt(np.mean((told.mean - y) ** 2))
    assert 0.7 * error < told.std.mean() < 1.5 * error


# What is declared, and what the statement says of it.


def test_bounds_are_public_and_classes_that_were_read_off_are_not_covered():
    x, y = numbers()
    declared = classifier().fit(x, y).privacy_
    assert "bounds of the 3 columns" in declared.public
    assert "classes of target" in declared.public
    assert not any("classes" in gap for gap in declared.not_covered)
    read = classifier(classes=None).fit(x, y).privacy_
    assert "classes of target" not in read.public
    assert "classes of target, read off the data" in read.not_covered
    assert "Not covered: classes of target, read off the data" in read.sentence()


def test_declarations_reach_the_statement_and_none_is_made_up():
    x, y = numbers()
    silent = classifier().fit(x, y).privacy_
    assert "Not declared: what one example stands for; other public facts" in silent.sentence()
    assert silent.tuned is None
    said = classifier(unit="patient", tuned="the bounds", public=["the year"]).fit(x, y).privacy_
    assert said.unit == "patient"
    assert said.tuned == ("the bounds",)
    assert "the year" in said.public
    assert not said.undeclared


def test_a_schema_says_what_was_read_off_the_data():
    x, y = patients()
    privacy = by_schema().fit(x, y).privacy_
    assert "bounds of age" in privacy.public
    assert "categories of ward, read off the data" in privacy.not_covered


def test_bounds_that_were_estimated_before_are_not_in_this_account():
    x, y = patients()
    age = replace(SCHEMA.column("age"), source="private")
    privacy = by_schema(schema=SCHEMA.with_column(age)).fit(x, y).privacy_
    assert "bounds of age, which the schema says were estimated before" in privacy.not_covered
    assert "bounds of age" not in privacy.public
    open_age = replace(age, bounds=None)
    with pytest.raises(DpvdError, match="give private_bounds"):
        by_schema(schema=SCHEMA.with_column(open_age)).fit(x, y)


@pytest.mark.parametrize("given", ["path", "text", "dictionary"])
def test_a_schema_comes_as_a_file_or_a_dictionary(given, tmp_path):
    path = tmp_path / "schema.toml"
    path.write_text(schema_text(SCHEMA), encoding="utf-8")
    schema = {"path": path, "text": str(path), "dictionary": SCHEMA.to_dict()}[given]
    x, y = patients()
    assert by_schema(schema=schema).fit(x, y).encoder_.schema == SCHEMA


def test_bounds_by_name_by_column_and_for_all_are_the_same():
    x, y = numbers()
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    seeded = {"noise": "seeded", "random_state": 0}
    by_name = {"c": (0, 1), "a": (0, 1), "b": (0, 1)}
    answers = [
        classifier(bounds=bounds, **seeded).fit(frame, y).predict_proba(frame)
        for bounds in [(0, 1), [(0, 1)] * 3, np.array([[0, 1]] * 3), by_name]
    ]
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer, answers[0])


# Frames.


def test_pandas_polars_and_dictionaries_give_the_same_by_name():
    x, y = patients()
    model = by_schema(noise="seeded", random_state=0).fit(x, y)
    assert list(model.feature_names_in_) == ["age", "ward", "smoker"]
    assert set(model.classes_) == {"ill", "well"}
    expected = model.predict_proba(x)
    assert (model.predict(x) == y).mean() > 0.8
    frame = pl.from_pandas(x)
    again = by_schema(noise="seeded", random_state=0).fit(frame, y)
    np.testing.assert_array_equal(again.predict_proba(frame), expected)
    reordered = x[["smoker", "age", "ward"]].assign(further=1)
    np.testing.assert_array_equal(model.predict_proba(reordered), expected)
    columns = {name: x[name].to_numpy() for name in x}
    for other in (columns, frame.to_arrow()):
        np.testing.assert_array_equal(model.predict_proba(other), expected)
        fitted = by_schema(noise="seeded", random_state=0).fit(other, y)
        np.testing.assert_array_equal(fitted.predict_proba(x), expected)
    with pytest.raises(DpvdError, match='no column "ward"'):
        model.predict(x.drop(columns="ward"))
    with pytest.raises(DpvdError, match="not one of the declared categories"):
        model.predict(x.assign(ward="east"))


def test_probabilities_stand_in_the_order_of_classes_whatever_the_schema_says():
    x, y = patients()
    turned = replace(SCHEMA, target=replace(SCHEMA.target, classes=("ill", "well")))
    for schema in (SCHEMA, turned):
        model = by_schema(schema=schema).fit(x, y)
        assert model.classes_.tolist() == ["ill", "well"]
        assert model.predict_proba(x)[y == "ill", 0].mean() > 0.6


@pytest.mark.parametrize(
    ("labels", "names"), [((0, 1), ("0", "1")), ((False, True), ("no", "yes"))]
)
def test_labels_keep_their_type_under_a_schema(labels, names):
    x, y = patients()
    target = Target("state", classes=names, source="public")
    coded = np.array(labels)[(y == "ill").astype(int)]
    model = by_schema(schema=replace(SCHEMA, target=target)).fit(x, coded)
    assert model.predict(x).dtype == coded.dtype
    assert model.score(x, coded) > 0.8


def test_an_array_with_a_schema_has_its_columns_in_order():
    x, y = patients()
    array = x.to_numpy(dtype=object)
    model = by_schema(noise="seeded", random_state=0).fit(array, y)
    again = by_schema(noise="seeded", random_state=0).fit(x, y)
    np.testing.assert_array_equal(model.predict_proba(array), again.predict_proba(x))
    with pytest.raises(DpvdError, match="declares 3 columns, X has 2"):
        by_schema().fit(array[:, :2], y)


# People with several rows.


def test_groups_make_the_guarantee_one_for_a_person():
    x, y = numbers(600)
    person = np.repeat([f"p{i}" for i in range(150)], 4)
    model = classifier(rows_per_person=2).fit(x, y, groups=person)
    assert model.privacy_.unit == "value of groups"
    assert {plan.examples for plan in model.plans_.values()} == {150}
    assert (
        classifier(rows_per_person=2, unit="patient").fit(x, y, person).privacy_.unit == "patient"
    )


def test_the_id_of_a_schema_is_found_in_the_frame():
    x, y = patients()
    schema = SCHEMA.by_unit("patient", 2, "patient")
    frame = x.assign(patient=np.arange(len(x)) // 3)
    model = by_schema(schema=schema).fit(frame, y)
    assert model.privacy_.unit == "patient"
    assert {plan.examples for plan in model.plans_.values()} == {200}
    model.predict(x)  # nobody needs an identifier to predict
    with pytest.raises(DpvdError, match="pass groups"):
        by_schema(schema=schema).fit(x, y)


# Refusals: nothing is charged.

X, Y = numbers(40)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bounds": None}, "read off the data tell something"),
        ({"schema": SCHEMA}, "bounds or schema, not both"),
        ({"bounds": (1, 0)}, "lower number first"),
        ({"bounds": 3}, "pairs of numbers"),
        ({"bounds": [(0, 1)] * 2}, "one for each of the 3"),
        ({"bounds": {"x0": (0, 1)}}, "has none for column 'x1'"),
        ({"bounds": {"x0": (0, 1), "x1": (0, 1), "x2": (0, 1), "y": (0, 1)}}, "not there: 'y'"),
        ({"bounds": [(0, 1), (0, 1), 5]}, "column 'x2' must be two numbers"),
        ({"epsilon": 0}, "epsilon must be"),
        ({"epsilon": "1"}, "epsilon must be"),
        ({"epsilon": np.inf}, "epsilon must be"),
        ({"delta": 1}, "delta must lie"),
        ({"delta": None}, "delta must lie"),
        ({"noise": "loud"}, "noise must be one of"),
        ({"classes": [0]}, "two or more classes"),
        (
            {"classes": [1, 2]},
            "row 2 of y has the class 0, which was not declared: the classes are 1, 2",
        ),
        ({"rows_per_person": 2}, "needs groups"),
        ({"tuned": 3}, "tuned must be"),
        ({"relation": "next-door"}, "relation"),
        ({"accountant": "mine"}, "accountant"),
        ({"schema": 3, "bounds": None}, "schema must be"),
        ({"schema": "nowhere.toml", "bounds": None, "classes": None}, "cannot be read"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(DpvdError, match=words):
        classifier(**settings).fit(X, Y)
    assert total_privacy(DELTA).fits == 0


def test_a_seed_must_be_asked_for_by_name():
    for settings in ({"random_state": 0}, {"noise": "seeded"}):
        with pytest.raises(DpvdError, match="noise='seeded'"):
            classifier(**settings).fit(X, Y)
    assert total_privacy(DELTA).fits == 0


def broken(value: float) -> np.ndarray:
    x = X.copy()
    x[3, 1] = value
    return x


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (broken(np.nan), Y, "NaN"),
        (broken(np.inf), Y, "infinity"),
        (X, np.zeros(40, dtype=int), "all rows of y have the class"),
        (X[:0], Y[:0], "0 sample"),
        (X[:1], Y[:1], "1 sample"),
        (X, Y[:30], "inconsistent numbers"),
        (X[:, 0], Y, "Expected 2D array"),
        (X, X[:, 0], "Unknown label type"),
        (X, None, "requires y"),
        (np.full((40, 3), "a"), Y, "could not convert"),
    ],
)
def test_data_that_make_no_sense_are_refused(x, y, words):
    with pytest.raises(ValueError, match=words):
        classifier().fit(x, y)
    assert total_privacy(DELTA).fits == 0


def test_sparse_matrices_are_refused():
    with pytest.raises(TypeError, match="dense data is required"):
        classifier().fit(sparse.csr_matrix(X), Y)


def test_tables_that_a_schema_does_not_allow_are_refused():
    x, y = patients(30)
    for wrong, labels, words in [
        (x.assign(ward=None), y, 'column "ward": the cell is empty'),
        (x.drop(columns="age"), y, 'no column "age"'),
        (x, np.where(y == "ill", "sick", y), "which was not declared"),
        (x, np.arange(30) % 2, "y holds numbers"),
        (x.iloc[:1], y[:1], "two or more are needed"),
        (x.iloc[:0], y[:0], "no rows"),
        (x, None, "requires y"),
    ]:
        with pytest.raises(DpvdError, match=words):
            by_schema().fit(wrong, labels)
    with pytest.raises(ValueError, match="inconsistent numbers"):
        by_schema().fit(x, y[:20])
    with pytest.raises(DpvdError, match="use DPVDClassifier"):
        regressor(bounds=None, target_bounds=None, schema=SCHEMA).fit(x, np.arange(30.0))
    assert total_privacy(DELTA).fits == 0


def test_groups_that_make_no_sense_are_refused():
    person = np.arange(40) // 2
    with pytest.raises(DpvdError, match="rows_per_person must be given"):
        classifier().fit(X, Y, groups=person)
    with pytest.raises(DpvdError, match="one entry for each of the 40 rows"):
        classifier(rows_per_person=2).fit(X, Y, groups=person[:5])
    with pytest.raises(DpvdError, match="two or more people"):
        classifier(rows_per_person=2).fit(X, Y, groups=np.zeros(40))
    with pytest.raises(DpvdError, match='row 1, column "groups": the identifier is missing'):
        classifier(rows_per_person=2).fit(X, Y, groups=np.where(person == 0, np.nan, person))
    assert total_privacy(DELTA).fits == 0


def test_a_regressor_needs_declared_bounds_of_its_target():
    with pytest.raises(DpvdError, match="target_bounds must be given"):
        regressor(target_bounds=None).fit(X, X[:, 0])
    with pytest.raises(DpvdError, match="bounds of the target must be two numbers"):
        regressor(target_bounds=3).fit(X, X[:, 0])


# As a part of scikit-learn.


def test_pipelines_clones_grids_and_files():
    x, y = numbers()
    model = classifier(noise="seeded", random_state=0)
    pipeline = make_pipeline(FunctionTransformer(), model).fit(x, y)
    search = GridSearchCV(classifier(), {"epsilon": [0.1, np.float64(5)]}, cv=2).fit(x, y)
    assert search.best_params_["epsilon"] == 5
    copied = clone(model).set_params(epsilon=2).fit(x, y)
    assert copied.privacy_.epsilon <= 2
    file = io.BytesIO()
    joblib.dump(pipeline, file)
    file.seek(0)
    loaded = joblib.load(file)
    np.testing.assert_array_equal(loaded.predict_proba(x), pipeline.predict_proba(x))
    assert loaded[-1].privacy_ == pipeline[-1].privacy_


def test_noise_of_the_system_cannot_be_repeated_and_seeded_noise_can():
    x, y = numbers()
    one, two = classifier().fit(x, y), classifier().fit(x, y)
    assert not np.array_equal(one.predict_proba(x), two.predict_proba(x))
    seeded = [classifier(noise="seeded", random_state=s).fit(x, y) for s in (3, 3, 4)]
    first, same, other = [model.predict_proba(x) for model in seeded]
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)
    assert "reproducible" in seeded[0].privacy_.noise_source
