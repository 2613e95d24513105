"""Tables from rows to statement: what is charged, who counts, what is learnt."""

import logging
import math

import pytest
import torch
from dp_accounting import ComposedDpEvent
from safetensors.torch import load_file, save_file
from sklearn.linear_model import LogisticRegression

from dpvd.errors import DpvdError
from dpvd.privacy import Ledger, Relation, epsilon, poisson_event
from dpvd.tabular import (
    TableMethod,
    TableModel,
    TableRecipe,
    choose,
    choose_plain,
    fit_table,
)
from tests.tabular.tables import area_under_curve, make_table

STATISTICS = TableRecipe(
    TableMethod.STATISTICS, mean=0.2, second=0.1, cross=0.6, calibration=0.1, ridge=2.0
)
STEPS = TableRecipe(
    TableMethod.STEPS, mean=0.1, second=0.15, training=0.75, steps=12, learning_rate=30.0
)
# Mean and calibration with the same noise: only their words tell these two releases apart.
EQUAL = TableRecipe(
    TableMethod.STATISTICS, mean=0.2, second=0.1, cross=0.5, calibration=0.2, ridge=2.0
)
NETWORK = TableRecipe(
    TableMethod.NETWORK,
    mean=0.1,
    second=0.15,
    cross=0.05,
    training=0.7,
    steps=60,
    learning_rate=16.0,
    hidden=5,
    prior_std=2.0,
)
PLAIN = choose_plain(3000, 2.0, 1e-5, classes=2)
PLAIN_NETWORK = choose_plain(3000, 2.0, 1e-5, classes=2, hidden=5, prior_std=1.0)
RECIPES = {
    "statistics": STATISTICS,
    "steps": STEPS,
    "network": NETWORK,
    "plain": PLAIN,
    "plain network": PLAIN_NETWORK,
}
WITHOUT_SAMPLING = [name for name in RECIPES if name != "network"]
SEEDED = {"noise": "seeded", "seed": 3, "delta": 1e-5}


@pytest.mark.parametrize("name", [*RECIPES, "two equal shares"])
@pytest.mark.parametrize("relation", ["add-or-remove", "replace-one"])
def test_the_statement_is_the_composed_account_of_everything_that_touched_the_table(name, relation):
    table = make_table(600, 5)
    found = fit_table(
        table.x,
        table.classes,
        classes=2,
        epsilon=0.7,
        relation=relation,
        recipe=RECIPES.get(name, EQUAL),
        **SEEDED,
    )
    # Written out by hand from the multipliers that were used, not from the plans' own events.
    events = [
        poisson_event(plan.noise_multiplier, 1.0, plan.steps) for plan in found.plans.values()
    ]
    composed = epsilon(ComposedDpEvent(events), 1e-5, relation=relation)
    assert found.guarantee.epsilon == composed
    assert 0.99 * 0.7 < composed <= 0.7
    assert found.guarantee.steps == sum(plan.steps for plan in found.plans.values())
    parts = {
        "steps": ["mean", "moments", "training"],
        "network": ["mean", "moments", "training"],
        "plain": ["training"],
        "plain network": ["training"],
    }
    assert list(found.plans) == parts.get(name, ["mean", "moments", "calibration"])
    assert found.guarantee.relation is Relation.parse(relation)
    assert "every batch drawn by the plan's sampler" in found.guarantee.sentence()
    assert "Not covered" not in found.guarantee.sentence()


def test_regression_by_steps_pays_for_its_residual_too():
    table = make_table(2000, 4)
    recipe = choose(2000, 4, 4.0, 1e-5, classes=None)
    assert recipe.method is TableMethod.STEPS
    found = fit_table(
        table.x, table.numbers, classes=None, target_range=(-8.0, 8.0), epsilon=4.0, **SEEDED
    )
    assert list(found.plans) == ["mean", "moments", "training", "calibration"]
    events = [poisson_event(p.noise_multiplier, 1.0, p.steps) for p in found.plans.values()]
    assert found.guarantee.epsilon == epsilon(ComposedDpEvent(events), 1e-5)


def test_the_model_remembers_what_was_charged_to_it():
    table = make_table(600, 5)
    found = fit_table(table.x, table.classes, classes=2, epsilon=1.0, recipe=STATISTICS, **SEEDED)
    fresh = TableModel(5, 2, whitened=False)
    fresh.load_state_dict(found.model.state_dict())
    kept = vars(fresh)["_dpvd_account"]
    assert sum(entry["charged"] for entry in kept.values()) == 3


@pytest.mark.parametrize("name", RECIPES)
def test_charges_are_on_disk_one_ledger_for_each_part(name, tmp_path):
    table = make_table(600, 5)
    found = fit_table(
        table.x,
        table.classes,
        classes=2,
        epsilon=1.0,
        recipe=RECIPES[name],
        folder=tmp_path / "run",
        **SEEDED,
    )
    for part, plan in found.plans.items():
        file = "ledger.jsonl" if part == "training" else f"ledger-{part}.jsonl"
        assert Ledger.open(tmp_path / "run" / file, plan.to_dict()).charged == plan.steps


def test_a_folder_that_was_charged_before_is_refused(tmp_path):
    table = make_table(600, 5)
    arguments = {"classes": 2, "epsilon": 1.0, "recipe": STATISTICS, "folder": tmp_path, **SEEDED}
    fit_table(table.x, table.classes, **arguments)
    with pytest.raises(DpvdError, match="exists already"):
        fit_table(table.x, table.classes, **arguments)


def test_releases_of_one_fit_come_as_no_surprise(caplog):
    table = make_table(2000, 4)
    with caplog.at_level(logging.WARNING, logger="dpvd"):
        fit_table(
            table.x, table.numbers, classes=None, target_range=(-8.0, 8.0), epsilon=4.0, **SEEDED
        )
    assert not caplog.records


@pytest.mark.parametrize("name", WITHOUT_SAMPLING)
def test_repeating_everybodys_rows_changes_nothing(name):
    """A person is one example: ten times the same row is the same person.

    The variational network samples for every row, so there is no such identity; see below.
    """
    table = make_table(300, 4)
    once = fit_table(table.x, table.classes, classes=2, epsilon=2.0, recipe=RECIPES[name], **SEEDED)
    tenfold = fit_table(
        table.x.repeat(10, 1),
        table.classes.repeat(10),
        unit_index=torch.arange(300).repeat(10),
        people=300,
        rows_per_person=10,
        classes=2,
        epsilon=2.0,
        recipe=RECIPES[name],
        **SEEDED,
    )
    torch.testing.assert_close(tenfold.model(table.x), once.model(table.x), atol=2e-3, rtol=2e-3)


ONE_STEP = {"mean": 0, "second": 0, "training": 1, "steps": 1, "clip_norm": 0.01}
HEADS = {
    "linear": (TableMethod.STEPS, {}),
    "network": (TableMethod.NETWORK, {"hidden": 3, "prior_std": 1.0}),
    "points": (TableMethod.NETWORK, {"hidden": 3, "points": True}),
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("relation", list(Relation))
def test_a_person_with_ten_rows_moves_a_step_by_the_sensitivity_at_most(relation, head):
    """By the weights that two fits left, whose noise and samples of weights are the same."""
    method, options = HEADS[head]
    recipe = TableRecipe(method, learning_rate=0.5, **ONE_STEP, **options)
    table = make_table(20, 4)
    source = torch.Generator().manual_seed(1)
    more = 1e3 * torch.randn(10, 4, generator=source)
    labels = torch.ones(10, dtype=torch.int64)
    alone = torch.arange(20)  # person 20 has no row
    with_them = torch.cat([alone, torch.full((10,), 20)])
    rows = [
        (torch.cat([table.x, more]), torch.cat([table.classes, labels]), with_them),
        (table.x, table.classes, alone),
    ]
    if relation is Relation.REPLACE_ONE:
        rows[1] = (rows[0][0], torch.cat([table.classes, 1 - labels]), with_them)
    people = {"people": 21, "rows_per_person": 10, "relation": relation, "recipe": recipe}
    fits = [
        fit_table(x, y, classes=2, epsilon=1.0, unit_index=whose, **people, **SEEDED)
        for x, y, whose in rows
    ]
    rate = recipe.learning_rate / recipe.clip_norm / 21
    first, second = (torch.nn.utils.parameters_to_vector(f.model.head.parameters()) for f in fits)
    moved = (first - second).norm() / rate
    stated = fits[0].plans["training"].clipping.sensitivity(relation, 1)
    assert 0.98 * stated <= moved <= stated * (1 + 2**-9)


@pytest.mark.parametrize("name", RECIPES)
def test_rows_that_are_not_finite_count_as_none(name):
    table = make_table(400, 4)
    x = table.x.clone()
    x[7] = math.nan
    x[8] = math.inf
    found = fit_table(x, table.classes, classes=2, epsilon=4.0, recipe=RECIPES[name], **SEEDED)
    assert found.model(table.x).isfinite().all()


@pytest.mark.parametrize("name", RECIPES)
def test_it_learns_two_classes(name):
    table = make_table(3000, 5)
    test = make_table(1000, 5, seed=1)
    found = fit_table(
        table.x, table.classes, classes=2, epsilon=2.0, recipe=RECIPES[name], **SEEDED
    )
    told = found.model.predict(test.x)
    rows = found.model.of_unit_length
    ordinary = LogisticRegression(C=1e3).fit(rows(table.x), table.classes)
    possible = torch.tensor(ordinary.predict_proba(rows(test.x))[:, 1])
    reached = area_under_curve(told.probabilities[:, 1], test.classes)
    assert reached > area_under_curve(possible, test.classes) - 0.02
    assert reached > 0.8
    right = (told.probabilities.argmax(1) == test.classes).double().mean()
    confidence = told.probabilities.max(1).values.mean()
    assert abs(right - confidence) < 0.06
    assert (told.mutual_information <= told.entropy).all()
    assert bool((told.mutual_information > 1e-6).any()) is not RECIPES[name].points


@pytest.mark.parametrize("name", RECIPES)
def test_it_learns_many_classes(name):
    table = make_table(6000, 6, classes=4)
    test = make_table(1000, 6, classes=4, seed=1)
    found = fit_table(
        table.x, table.classes, classes=4, epsilon=4.0, recipe=RECIPES[name], **SEEDED
    )
    told = found.model.predict(test.x).probabilities
    assert (told.argmax(1) == test.classes).double().mean() > 0.55
    torch.testing.assert_close(told.sum(1), torch.ones(1000))


@pytest.mark.parametrize("rows", [300, 4000])
def test_it_learns_numbers_and_knows_its_error(rows):
    table = make_table(rows, 4)
    test = make_table(2000, 4, seed=1)
    found = fit_table(
        table.x, table.numbers, classes=None, target_range=(-8.0, 8.0), epsilon=4.0, **SEEDED
    )
    told = found.model.predict(test.x)
    error = (told.mean - test.numbers).square().mean().sqrt()
    assert error < 0.85 * test.numbers.std()
    assert 0.6 < told.std.mean() / error < 1.7


@pytest.mark.parametrize("name", RECIPES)
def test_the_state_is_the_model(name, tmp_path):
    table = make_table(600, 5)
    found = fit_table(
        table.x, table.classes, classes=2, epsilon=1.0, recipe=RECIPES[name], **SEEDED
    )
    save_file(found.model.state_dict(), tmp_path / "model.safetensors")
    recipe = RECIPES[name]
    again = TableModel(
        5, 2, whitened=name != "statistics", hidden=recipe.hidden, points=recipe.points
    )
    again.load_state_dict(load_file(tmp_path / "model.safetensors"))
    again.eval()
    assert torch.equal(
        again.predict(table.x).probabilities, found.model.predict(table.x).probabilities
    )


def test_noise_is_secret_unless_it_is_asked_for_by_name():
    table = make_table(600, 5)
    arguments = {"classes": 2, "epsilon": 1.0, "delta": 1e-5, "recipe": STATISTICS}
    first = fit_table(table.x, table.classes, **arguments)
    second = fit_table(table.x, table.classes, **arguments)
    assert not torch.equal(first.model.mean, second.model.mean)
    assert "the system's cryptographic generator" in first.guarantee.sentence()


TABLE = make_table(20, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": TABLE.x[0]}, "x must be a matrix"),
        ({"x": TABLE.x[:0], "y": TABLE.classes[:0]}, "at least one row"),
        ({"y": TABLE.classes[:19]}, "one entry for each of the 20 rows"),
        ({"classes": 1}, "at least 2"),
        ({"y": TABLE.classes + 1}, "from 0 to 1"),
        ({"classes": None, "y": TABLE.numbers}, "target_range"),
        ({"classes": None, "y": TABLE.numbers, "target_range": (1.0, 1.0)}, "low to high"),
        ({"groups": torch.zeros(4, dtype=torch.int64)}, "groups"),
        ({"hats": torch.ones(3, dtype=torch.bool)}, "hats"),
        ({"hats": torch.zeros(2, dtype=torch.bool)}, "hats"),
        ({"unit_index": torch.arange(20)}, "people and rows_per_person"),
        ({"people": 20}, "need unit_index"),
        (
            {"unit_index": torch.arange(20) // 10, "people": 2, "rows_per_person": 9},
            "more rows",
        ),
        ({"epsilon": 0.0}, "epsilon"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(changes, message, tmp_path):
    arguments = {"x": TABLE.x, "y": TABLE.classes, "classes": 2, "epsilon": 1.0} | changes
    with pytest.raises(DpvdError, match=message):
        fit_table(**arguments, folder=tmp_path / "run", **SEEDED)
    assert not (tmp_path / "run").exists()
