"""``dpvd budget``: noise for ε and ε for noise, by every accountant."""

import pytest

from tests.cli.program import assert_refused, call

# As on MNIST.
SETTING = ("--delta", 1e-5, "--examples", 60_000, "--batch-size", 600, "--epochs", 20)
ALL = ["pld", "rdp", "zcdp", "advanced"]


def test_noise_for_a_budget_by_every_accountant_in_order():
    outcome = call("budget", *SETTING, "--epsilon", 1, "--json")
    assert outcome.code == 0, outcome.err
    rows = outcome.json
    assert [row["accountant"] for row in rows] == ALL
    noises = [row["noise_multiplier"] for row in rows]
    assert noises == sorted(noises)
    assert noises[0] < 0.95 * noises[1]  # the tight accountant is worth having
    assert all(0.9 < row["epsilon"] <= 1 for row in rows)
    assert all(row["steps"] == 2000 for row in rows)


def test_epsilon_for_a_noise_is_the_reverse():
    noise = call("budget", *SETTING, "--epsilon", 1, "--json").json[0]["noise_multiplier"]
    rows = call("budget", *SETTING, "--noise-multiplier", noise, "--json").json
    epsilons = [row["epsilon"] for row in rows]
    assert [row["accountant"] for row in rows] == ALL
    assert {row["noise_multiplier"] for row in rows} == {noise}
    assert 0.999 < epsilons[0] <= 1
    assert epsilons == sorted(epsilons)


def test_the_papers_sigma_is_noise_over_twice_the_clipping_bound():
    row = call("budget", *SETTING, "--noise-multiplier", 2, "--json").json[0]
    assert row["sigma"] == 1.0  # sensitivity C
    replaced = call(
        "budget", *SETTING, "--noise-multiplier", 2, "--relation", "replace-one", "--json"
    ).json[0]
    assert replaced["sigma"] == 2.0  # sensitivity 2C


def test_no_noise_has_no_epsilon():
    rows = call("budget", *SETTING, "--noise-multiplier", 0, "--json").json
    assert [row["epsilon"] for row in rows] == [None] * 4


@pytest.mark.parametrize("question", [("--epsilon", 1), ("--noise-multiplier", 1)])
def test_the_table_fits_80_columns_and_names_everything(question):
    outcome = call("budget", *SETTING, *question)
    assert max(map(len, outcome.out.splitlines())) <= 80
    for word in (
        *ALL,
        "noise z",
        "the paper's σ",
        "δ = 1e-05",
        "60,000 examples",
        "2,000 steps",
        "add-or-remove",
    ):
        assert word in outcome.out


def test_a_delta_of_one_over_n_warns():
    outcome = call("budget", *SETTING, "--delta", 1e-4, "--noise-multiplier", 5, "--json")
    assert outcome.code == 0
    assert outcome.err.startswith("warning: --delta 0.0001 is not below 1/N")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["--epsilon or --noise-multiplier"]),
        (("--epsilon", 1, "--noise-multiplier", 1), ["--epsilon or --noise-multiplier"]),
        (("--epsilon", 0), ["--epsilon must ", "above 0"]),
        (("--epsilon", "nan"), ["--epsilon must ", "nan"]),
        (("--epsilon", "inf"), ["--epsilon must "]),
        (("--noise-multiplier", -1), ["--noise-multiplier must ", "-1"]),
        (("--noise-multiplier", "nan"), ["--noise-multiplier must ", "nan"]),
        (("--noise-multiplier", 1e300), ["--noise-multiplier must ", "1e+300"]),
        (("--epsilon", 1, "--delta", 0), ["--delta must "]),
        (("--epsilon", 1, "--delta", 1), ["--delta must "]),
        (("--epsilon", 1, "--delta", 1e-300), ["1e-300"]),
        (("--epsilon", 1, "--examples", 0), ["--examples must "]),
        (("--epsilon", 1, "--batch-size", 0), ["--batch-size must "]),
        (("--epsilon", 1, "--batch-size", 60_001), ["--batch-size must ", "60000"]),
        (("--epsilon", 1, "--epochs", 0), ["--epochs must "]),
        (("--epsilon", 1, "--epochs", 1e308), ["steps"]),
        (("--epsilon", 1, "--examples", 10**26), ["steps"]),
        (("--epsilon", 1, "--sampling", "fixed-size"), ["fixed-size", "add-or-remove"]),
        (("--epsilon", 1, "--relation", "cousins"), ["--relation", "replace-one"]),
    ],
)
def test_bad_questions_are_refused(arguments, words):
    assert_refused(call("budget", *SETTING, "--json", *arguments), *words)
