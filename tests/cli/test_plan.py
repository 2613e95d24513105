"""The planner: numbers that are those of the library, a table, and a page that works."""

import json
import math

import pytest

from dpvd.plan import PrivacyPlan
from dpvd.privacy import interpret
from dpvd.runs import default_batch_size, default_steps
from dpvd.runs.recipes import Mlp
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


def test_budgets_come_in_order_and_buy_what_the_default_rule_says(planned):
    rows, _ = planned
    assert [row["epsilon"] for row in rows] == [0.05, 4.0]
    batch = default_batch_size(800, private=True)
    for row in rows:
        assert row["batch_size"] == batch
        assert row["steps"] == default_steps(800, batch, Mlp(10, 1000, 2).rule(), private=True)
        plan = PrivacyPlan(
            examples=800,
            batch_size=batch,
            steps=row["steps"],
            noise_multiplier=row["noise_multiplier"],
        )
        assert 0.99 * row["epsilon"] <= plan.epsilon(1e-4) <= row["epsilon"]
        reading = interpret(plan.event(), 1e-4)
        assert row["true_positive_rate"] == reading.true_positive_rates[0.01]
        assert row["posterior"] == reading.posteriors[0.5]
        assert row["mu"] == pytest.approx(math.sqrt(row["steps"]) / row["noise_multiplier"])
        assert row["noise_on_mean"] == row["noise_multiplier"] / batch


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
    text = call(*TABLE, "--epsilon", "0.5,1").out
    assert "…" not in text
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
