"""The sentence, in full."""

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpvd.errors import DpvdError
from dpvd.privacy import AccountantName, Guarantee, Relation
from dpvd.privacy.guarantee import round_up

CLAIM = Guarantee(
    epsilon=0.99951,
    delta=1e-5,
    relation=Relation.ADD_OR_REMOVE,
    unit="example",
    accountant=AccountantName.PLD,
    sampling="Poisson sampling with probability 0.25",
    noise_source="the system's cryptographic generator",
    steps=40,
    noise_multiplier=5.1,
    public=("the number of examples (1437)",),
    tuned=(),
    seen=("every batch drawn",),
)


def test_a_private_run():
    assert (
        CLAIM.sentence()
        == "(0.9996, 1e-05)-differentially private: adding or removing one example; Poisson"
        " sampling with probability 0.25 for 40 steps; Gaussian noise of multiplier 5.1 from the"
        " system's cryptographic generator; accounted with privacy loss distributions. Seen by"
        " the program: every batch drawn. Public: the number of examples (1437). Tuned on the"
        " data: nothing."
    )


def test_steps_with_different_noise_are_told_apart():
    claim = dataclasses.replace(CLAIM, noise_by_steps=((9.63339, 1), (35.5, 39)))
    assert "noise of multiplier 9.633 in 1 step and 35.5 in 39 steps from" in claim.sentence()
    assert Guarantee.from_dict(json.loads(json.dumps(claim.to_dict()))) == claim


def test_a_plan_that_nobody_carried_out():
    sentence = dataclasses.replace(CLAIM, seen=None).sentence()
    assert sentence.startswith(
        "(0.9996, 1e-05)-differentially private if it is carried out as planned: adding"
    )


def test_what_was_not_seen_and_not_declared():
    claim = dataclasses.replace(
        CLAIM, seen=(), not_covered=("the sampling",), undeclared=("the unit",), tuned=None
    )
    assert claim.sentence().endswith(
        "distributions. Not covered: the sampling. Public: the number of examples (1437). Not"
        " declared: the unit; what was tuned on the data."
    )


def test_a_seeded_run_that_was_tuned():
    claim = dataclasses.replace(
        CLAIM,
        relation="replace-one",
        unit="patient",
        accountant="moments",
        noise_source="reproducible: not private against whoever knows the seed",
        steps=1,
        noise_multiplier=5.33628,
        public=(),
        tuned=("the learning rate", "the clipping norm"),
    )
    assert (
        claim.sentence()
        == "(0.9996, 1e-05)-differentially private: replacing one patient; Poisson sampling with"
        " probability 0.25 for 1 step; Gaussian noise of multiplier 5.336 from a seeded"
        " generator (reproducible: not private against whoever knows the seed); accounted with"
        " Renyi differential privacy. Seen by the program: every batch drawn. Public: nothing."
        " Tuned on the data: the learning rate; the clipping norm (not in the account)."
    )


@pytest.mark.parametrize(("steps", "times"), [(1, "1 step"), (40, "40 steps")])
def test_a_run_without_noise(steps, times):
    claim = dataclasses.replace(CLAIM, epsilon=math.inf, noise_multiplier=0.0, steps=steps)
    assert (
        claim.sentence()
        == "Not differentially private: no noise was added; Poisson sampling with probability 0.25"
        f" for {times}. Seen by the program: every batch drawn. Public: the number of examples"
        " (1437). Tuned on the data: nothing."
    )


def test_a_run_that_has_not_begun_has_spent_nothing():
    claim = dataclasses.replace(CLAIM, epsilon=0.0, noise_multiplier=0.0, steps=0)
    assert claim.sentence().startswith("(0, 1e-05)-differentially private: ")


def test_a_run_whose_account_is_infinite():
    sentence = dataclasses.replace(CLAIM, epsilon=math.inf).sentence()
    assert sentence.startswith(
        "Not differentially private: no finite epsilon holds at delta 1e-05; adding or"
    )


@given(st.floats(0, 1e6, allow_subnormal=False))
def test_epsilon_is_never_printed_below_its_value(epsilon):
    assert epsilon <= float(round_up(epsilon)) <= epsilon * (1 + 1.01e-3)


@pytest.mark.parametrize("epsilon", [0.3, math.inf])
def test_plain_data_comes_back(epsilon):
    claim = dataclasses.replace(CLAIM, epsilon=epsilon, tuned=("width",))
    plain = json.loads(json.dumps(claim.to_dict(), allow_nan=False))
    assert Guarantee.from_dict(plain) == claim
    assert plain["sentence"] == claim.sentence()


@pytest.mark.parametrize(
    "damage",
    [
        {"epsilon": None},
        {"epsilon": "0.01"},
        {"surprise": 1},
        {"epsilon": -1},
        {"delta": 2},
        {"relation": "x"},
        {"unit": ""},
        {"steps": -1},
        {"noise_multiplier": -1.0},
        {"noise_by_steps": [["much", 1]]},
        {"public": 3},
    ],
)
def test_damaged_data_is_refused(damage):
    with pytest.raises(DpvdError):
        Guarantee.from_dict({**CLAIM.to_dict(), **damage})
    with pytest.raises(DpvdError, match="not a privacy guarantee"):
        Guarantee.from_dict({})
