"""scikit-learn's own checks of estimators."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from dpvd.sklearn import DPVDClassifier, DPVDRegressor

# The checks ask for accuracy and repeat fits with one seed: much budget and seeded noise.
CLASSIFIER = DPVDClassifier(epsilon=1e4, delta=1e-5, bounds=(-5, 5), noise="seeded", random_state=0)
REGRESSOR = DPVDRegressor(
    epsilon=1e4,
    delta=1e-5,
    bounds=(-5, 5),
    target_bounds=(-5, 5),
    noise="seeded",
    random_state=0,
)

# By design, with the reason.
EXPECTED: dict[type, dict[str, str]] = {DPVDClassifier: {}, DPVDRegressor: {}}


@parametrize_with_checks(
    [CLASSIFIER, REGRESSOR],
    expected_failed_checks=lambda estimator: EXPECTED[type(estimator)],
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)
