"""The planner: numbers that are those of the library, a table, and a page that works."""

import json

import pytest
from dp_accounting import ComposedDpEvent

from dpvd.plan import PrivacyPlan
from dpvd.privacy import epsilon, interpret, poisson_event
from dpvd.runs import default_steps
from dpvd.runs.recipes import Mlp
from dpvd.runs.rehearsal import Shape
from dpvd.runs.table_rehearsal import rehearse_recipe
from dpvd.statistics import noise_shares
from dpvd.tabular import choose, knots_for
from tests.browser import open_page
from tests.cli.program import call

TABLE = ("plan", "--examples", 800, "--features", 6, "--classes", 3, "--delta", 1e-4)


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """Two budgets, and the page about them."""
    page = tmp_path_factory.mktemp("plan") / "plan.html"
    done = call(*TABLE, "--epsilon", "4,0.05", "--unit-rows", 3, "--html", page, "--json")
    assert done.code == 0, done.err
    return done.json, page


def test_budgets_come_in_order_and_buy_the_recipe_that_a_run_would_take(planned):
    rows, _ = planned
    assert [row["epsilon"] for row in rows] == [0.05, 4.0]
    for row in rows:
        knots = knots_for(800, row["epsilon"], 6)
        recipe = choose(800, 6 * (1 + knots), row["epsilon"], 1e-4, classes=3, hats=6 * knots)
        parts = recipe.parts()
        assert row["recipe"] == recipe.method
        assert row["shares"] == {name: part.share for name, part in parts.items()}
        assert row["steps"] == sum(part.steps for part in parts.values())
        assert row["learning_rate"] == recipe.learning_rate
        assert row["batch_size"] == 800
        # All parts together cost as much as one sum with the multiplier that is shown.
        noise = noise_shares(row["epsilon"], 1e-4, parts)
        events = [poisson_event(noise[name], 1.0, part.steps) for name, part in parts.items()]
        spent = epsilon(ComposedDpEvent(events), 1e-4)
        plan = PrivacyPlan(
            examples=800, batch_size=800, steps=1, noise_multiplier=row["noise_multiplier"]
        )
        assert plan.epsilon(1e-4) == pytest.approx(spent, rel=1e-3)
        assert 0.99 * row["epsilon"] <= spent <= row["epsilon"]
        reading = interpret(plan.event(), 1e-4)
        assert row["true_positive_rate"] == reading.true_positive_rates[0.01]
        assert row["posterior"] == reading.posteriors[0.5]
        assert row["mu"] == pytest.approx(1 / row["noise_multiplier"])
        assert row["noise_on_mean"] == row["noise_multiplier"] / 800
    assert rows[0]["recipe"] == "statistics"
    assert rows[1]["recipe"] != "statistics"


def test_batches_plan_the_network_for_images():
    (row,) = call(*TABLE, "--epsilon", "4", "--batch-size", 400, "--json").json
    assert row["recipe"] == "mlp"
    assert row["batch_size"] == 400
    assert row["steps"] == default_steps(800, 400, Mlp(10, 1000, 2).rule(), private=True)
    plan = PrivacyPlan(
        examples=800,
        batch_size=400,
        steps=row["steps"],
        noise_multiplier=row["noise_multiplier"],
    )
    assert 0.99 * 4 <= plan.epsilon(1e-4) <= 4


def test_larger_and_wider_tables_are_rehearsed_smaller_with_noise_that_matters_as_much():
    """A million rows of 2,000 columns take seconds, and the noise shrinks with the rows."""
    shape = Shape(1_000_000, 2000, 2)
    recipe = choose(1_000_000, 2000, 0.01, 1e-7, classes=2)
    noise = noise_shares(0.01, 1e-7, recipe.parts())
    found = rehearse_recipe(shape, recipe, noise, 0)
    assert found.rows == 10_000
    drowned = rehearse_recipe(shape, recipe, {name: 100 * z for name, z in noise.items()}, 0)
    assert drowned.high < found.high - 0.05


def test_a_group_costs_more_than_one_row(planned):
    for row in planned[0]:
        assert row["unit_rows"] == 3
        assert row["group_epsilon"] > 2 * row["epsilon"]


def test_rehearsals_learn_something_and_stay_below_the_best(planned):
    little, much = planned[0]
    assert much["accuracy_high"] > 0.7  # a third by guessing
    assert much["accuracy_high"] > little["accuracy_high"] + 0.05
    for row in planned[0]:
        assert row["accuracy_low"] <= row["accuracy_high"] <= row["best_high"] + 0.02
        assert row["rehearsed_rows"] == 800


def test_the_same_question_has_the_same_answer():
    one, other = (call(*TABLE, "--epsilon", "1", "--json").json for _ in range(2))
    assert one == other


def test_the_terminal_shows_whole_columns_and_what_they_mean(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = call(*TABLE, "--epsilon", "0.02,1,8").out
    assert "…" not in text
    assert "none proved" in text  # the widest cells
    assert "statistics" in text
    for word in ("noise z", "guess ≤", "found ≤", "belief ≤", "10 rows", "rehearsed", "made-up"):
        assert word in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--epsilon", "1,x"), "--epsilon must be numbers separated by commas"),
        (("--epsilon", "1,-2"), "--epsilon must be a finite number above 0"),
        (("--epsilon", "nan"), "--epsilon must be a finite number above 0"),
        (("--epsilon", ",".join(["1"] * 21)), "--epsilon must be at most 20 numbers"),
        (("--unit-rows", 0), "--unit-rows must be an integer of at least 1"),
        (("--unit-rows", 801), "--unit-rows must be at most the number of examples, 800"),
        (("--classes", 1), "--classes must be at least 2"),
        (("--features", 20_000), "--features must be at most 10,000"),
        (("--batch-size", 900), "--batch-size must be at most the number of examples, 800"),
        (("--delta", 1), "--delta must lie strictly between 0 and 1"),
    ],
)
def test_bad_questions_end_with_one_line(options, message, tmp_path):
    page = tmp_path / "plan.html"
    done = call(*TABLE, *options, "--html", page)
    assert done.code == 2
    assert message in done.err
    assert done.out == ""
    assert not page.exists()


def test_a_page_that_is_there_is_left_alone(planned):
    before = planned[1].read_bytes()
    done = call(*TABLE, "--epsilon", "1", "--html", planned[1])
    assert done.code == 2
    assert "must be a new file" in done.err
    assert planned[1].read_bytes() == before


def test_tiny_tables_are_planned():
    for examples in (1, 2):
        size = ("--examples", examples, "--features", 1, "--classes", 2, "--unit-rows", 1)
        done = call("plan", *size, "--delta", 1e-4, "--epsilon", 1, "--json")
        assert done.code == 0, done.err
        assert done.json[0]["batch_size"] == examples


def test_the_page_loads_nothing_and_has_every_budget_without_scripts(planned):
    page = planned[1].read_text(encoding="utf-8")
    assert "http" not in page
    assert page.count('type="range"') == 1
    still = page.split('<script type="application/json"')[0]
    for row in planned[0]:
        assert f'<th scope="row">{row["epsilon"]:g}</th>' in still


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1200, 420])
def test_browsers_have_nothing_to_complain_about(planned, width, dark):
    view = open_page(planned[1], width=width, dark=dark)
    assert view.messages == []
    assert view.screenshot.startswith(b"\x89PNG")


def test_the_slider_changes_what_is_shown(planned, tmp_path):
    """The page's own script is run; the test moves the slider and waits for nothing else."""
    _, page = planned
    moved = tmp_path / "moved.html"
    move = (
        "<script>slider.value = 1; slider.dispatchEvent(new Event('input'));"
        "document.title = document.getElementById('shown').textContent + '|' +"
        "document.querySelector('[data-field=guess]').textContent;</script></body>"
    )
    moved.write_text(page.read_text(encoding="utf-8").replace("</body>", move), encoding="utf-8")
    data = page.read_text(encoding="utf-8").split('id="data">')[1].split("</script>")[0]
    expected = json.loads(data)[1]["values"]["guess"]
    view = open_page(moved, width=1200)
    assert f"<title>ε = 4|{expected.replace(chr(160), '&nbsp;')}</title>" in view.document


def test_the_browser_would_notice_a_broken_page(tmp_path):
    page = tmp_path / "broken.html"
    page.write_text("<script>missing()</script><img src='gone.png'>", encoding="utf-8")
    assert any("missing is not defined" in text for text in open_page(page, width=420).messages)
