"""Numbers are never flattering and the words fit the record."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpvd.report.wording import guess_limit, noise_warning, one_in, plain, promises, uncovered
from dpvd.runs import RunRecord

Record = dict[str, Any]


read = RunRecord.from_dict


@given(st.floats(0.0, 10.0), st.floats(0.0, 0.1), st.floats(0.0, 1.0))
def test_no_allowed_test_guesses_better_than_the_limit(
    epsilon: float, delta: float, false_positive: float
) -> None:
    """The best true positive rate that (ε, δ) allows at a false positive rate never beats the
    limit.
    """
    best = min(
        1.0,
        math.exp(epsilon) * false_positive + delta,
        1.0 - math.exp(-epsilon) * (1.0 - delta - false_positive),
    )
    assert (best + 1.0 - false_positive) / 2 <= guess_limit(epsilon, delta) + 1e-12


def test_the_limit_is_reached_by_randomised_response() -> None:
    """Telling the truth with probability e^ε/(1 + e^ε) is ε-private and makes a guess right that
    often.
    """
    assert guess_limit(math.log(3.0), 0.0) == pytest.approx(0.75, abs=1e-15)


@pytest.mark.parametrize("probability", [1e-5, 3e-6, 7.7e-9, 0.3, 1.0, 1e-20])
def test_a_chance_is_never_told_smaller_than_it_is(probability: float) -> None:
    cases = int(one_in(probability).split()[-1].replace(",", ""))
    assert Fraction(1, cases + 1) < Fraction(repr(probability)) <= Fraction(1, cases)


def test_epsilon_one_in_plain_words(record: Record) -> None:
    words = dict(promises(read(record)))
    assert "at most 73.1\N{NO-BREAK SPACE}% of the time" in words["What ε = 0.9996 means"]
    assert "added to or removed from the training data" in words["Against what"]
    assert "worst case" not in words["What ε = 0.9996 means"]


def test_replace_one_and_other_units_are_named(record: Record) -> None:
    record["guarantee"].update(relation="replace-one", unit="patient")
    words = dict(promises(read(record)))
    assert "one patient of the training data was replaced" in words["Against what"]
    assert words["Who is protected"].startswith("One patient")


def test_a_large_epsilon_is_called_little_protection(record: Record) -> None:
    record["guarantee"]["epsilon"] = 50.0
    assert "little protection" in dict(promises(read(record)))["What ε = 50 means"]


@pytest.mark.parametrize(("delta", "warned"), [(1e-5, False), (1 / 1437, True), (0.01, True)])
def test_a_delta_that_would_allow_disclosure_is_called_out(
    record: Record, delta: float, warned: bool
) -> None:
    record["guarantee"]["delta"] = delta
    text = dict(promises(read(record)))[f"What δ = {delta:g} means"]
    assert ("Caution" in text) is warned


def test_what_was_tuned_on_the_data_is_listed(record: Record) -> None:
    assert (
        "names nothing that was tuned"
        in dict(uncovered(read(record)))["Choices made by looking at the data"]
    )
    record["guarantee"]["tuned"] = ["learning rate", "steps"]
    assert (
        "learning rate, steps"
        in dict(uncovered(read(record)))["Choices made by looking at the data"]
    )


@pytest.mark.parametrize(
    "claim",
    [
        {"epsilon": None, "delta": 1e-5},
        {"epsilon": "inf", "delta": 1e-5},
        {"epsilon": math.inf, "delta": 1e-5},
        {"epsilon": math.nan, "delta": 1e-5},
        {"epsilon": "1.0", "delta": 1e-5},
        {"epsilon": True, "delta": 1e-5},
        {"epsilon": -1.0, "delta": 1e-5},
        {"epsilon": 1.0, "delta": None},
        {"epsilon": 1.0, "delta": 1.0},
    ],
)
def test_anything_but_a_finite_epsilon_and_a_delta_is_not_private(
    record: Record, claim: Any
) -> None:
    private = read(record)
    assert private.is_private
    other = replace(private, guarantee=private.guarantee | claim)
    assert not other.is_private
    assert promises(other) == []


def test_only_the_systems_generator_goes_without_a_warning(record: Record) -> None:
    assert noise_warning(read(record)) == ""
    record["plan"]["noise"] = "seeded"
    assert (
        noise_warning(read(record)) == "Reproducible: not private against whoever knows the seed."
    )
    assert "cannot repeat the noise" in dict(promises(read(record)))["Who the adversary may be"]
    del record["plan"]["noise"]
    assert noise_warning(read(record)) == "The record does not say where the noise came from."


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "yes"), (1e-5, "1e-05"), ([1, "a"], "1, a"), ({}, "none"), (None, "not recorded")],
)
def test_values_in_tables(value: Any, text: str) -> None:
    assert plain(value) == text
