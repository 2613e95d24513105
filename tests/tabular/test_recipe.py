"""Recipes: chosen by public numbers alone, and written down whole."""

import pytest

from dpvd.errors import DpvdError
from dpvd.tabular import TableMethod, TableRecipe, choose, class_codes, knots_for


@pytest.mark.parametrize(
    ("examples", "features", "epsilon", "method"),
    [
        (800, 61, 0.5, "statistics"),
        (455, 30, 1.0, "statistics"),
        (614, 13, 1.0, "steps"),
        (32_561, 168, 0.5, "steps"),
        (32_561, 168, 0.02, "statistics"),
    ],
)
def test_steps_are_for_those_whose_signal_outweighs_the_noise(examples, features, epsilon, method):
    assert choose(examples, features, epsilon, 1e-5, classes=2).method == method


@pytest.mark.parametrize("classes", [2, 5, None])
@pytest.mark.parametrize("examples", [200, 5000, 1_000_000])
def test_the_shares_of_every_recipe_add_up(classes, examples):
    recipe = choose(examples, 30, 1.0, 1e-6, classes=classes)
    assert sum(part.share for part in recipe.parts().values()) == pytest.approx(1.0)
    assert TableRecipe.from_dict(recipe.to_dict()) == recipe
    assert recipe.steps <= (200 if recipe.hidden else 100)
    assert recipe.learning_rate <= 128


def test_replace_one_counts_as_half_as_many_people():
    """Its sensitivity is twice as large, and so is the noise."""
    assert choose(1500, 61, 1.0, 1e-5, classes=2).method is TableMethod.STEPS
    replaced = choose(1500, 61, 1.0, 1e-5, classes=2, relation="replace-one")
    assert replaced.method is TableMethod.STATISTICS


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": "network"},
        {"training": 0.1},
        {"cross": 0.0},
        {"calibration": 0.0},
        {"mean": 0.0},
        {"ridge": -1.0},
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(wrong):
    good = choose(300, 30, 1.0, 1e-5, classes=2).to_dict()
    with pytest.raises(DpvdError):
        TableRecipe.from_dict(good | wrong)


def test_few_people_get_no_knots_and_many_get_a_limited_number():
    assert knots_for(800, 1.0, 20) == 0
    assert knots_for(32_561, 1.0, 20) == 14
    assert knots_for(10**9, 1.0, 20) == 16


def test_few_columns_get_knots_with_fewer_people():
    assert knots_for(500, 1.0, 8) == 5
    assert knots_for(499, 1.0, 8) == 0
    assert knots_for(800, 0.31, 8) == 5
    assert knots_for(800, 0.29, 8) == 0
    assert knots_for(800, 1.0, 11) == 0
    assert knots_for(800, 1.0, 8, is_regression=True) == 0
    assert knots_for(32_561, 1.0, 8) == 14
    assert knots_for(10**9, 1.0, 8) == 16


def test_hats_do_not_count_where_steps_are_weighed_against_statistics():
    assert choose(700, 60, 1.0, 1e-5, classes=2).method is TableMethod.STATISTICS
    assert choose(700, 60, 1.0, 1e-5, classes=2, hats=50).method is TableMethod.STEPS


def test_the_bound_on_gradients_is_tight_where_noise_is_large():
    assert choose(700, 10, 1.0, 1e-5, classes=2).clip_norm == 0.5
    assert choose(7000, 10, 1.0, 1e-5, classes=2, network="linear").clip_norm == 0.7
    assert choose(700, 10, 1.0, 1e-5, classes=None).clip_norm == 0.7


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_codes_are_the_corners_of_a_simplex(classes):
    codes = class_codes(classes)
    products = codes @ codes.T
    assert codes.shape == (classes, classes - 1)
    for row in range(classes):
        for column in range(classes):
            expected = 1.0 if row == column else -1 / (classes - 1)
            assert products[row, column].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("classes", [1, 0, True, 2.0])
def test_fewer_than_two_classes_have_no_codes(classes):
    with pytest.raises(DpvdError, match="at least 2"):
        class_codes(classes)
