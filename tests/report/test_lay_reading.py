"""The reading for laypeople: numbers rounded up, "at most" beside each, no more than was proved."""

import re

import pytest

from dpvd.privacy import Relation, interpret, poisson_event
from dpvd.report.lay_reading import lay_reading, percent_up
from dpvd.report.wording import one_in

PRIVATE = interpret(poisson_event(2.0, 0.03, 300), 1e-5)


@pytest.mark.parametrize("share", [0.5, 0.55371, 0.01989, 0.002402, 1.2e-5, 0.99949, 0.9999999])
def test_percentages_are_never_below_their_share(share):
    printed = float(percent_up(share).rstrip("%").strip())
    assert share - 1e-9 <= printed / 100 <= min(1.0, share * 1.05 + 1e-3)


@pytest.mark.parametrize("relation", list(Relation))
def test_every_bound_is_there_and_said_to_be_a_limit(relation):
    numbers = interpret(poisson_event(2.0, 0.03, 300), 1e-5, relation=relation)
    text = " ".join(lay_reading(numbers, unit="patient", relation=relation))
    bounds = [
        numbers.correct_guesses,
        *numbers.true_positive_rates.values(),
        *numbers.posteriors.values(),
    ]
    for bound in bounds:
        assert f"at most {percent_up(bound)}" in text
    assert text.count("at most") == len(bounds) + 1  # and the probability of the exception
    assert "patient" in text
    assert one_in(1e-5) in text


def test_it_is_short_and_made_of_sentences():
    paragraphs = lay_reading(PRIVATE, unit="example", relation="add-or-remove")
    assert 3 <= len(paragraphs) <= 5
    for paragraph in paragraphs:
        assert paragraph.endswith(".")
        assert re.match(r"[A-Z]", paragraph)
        assert not re.search(r"[{}]", paragraph)
        assert len(paragraph) < 330


def test_the_two_relations_ask_different_questions():
    one, other = (lay_reading(PRIVATE, unit="row", relation=relation)[0] for relation in Relation)
    assert "whether one particular row is in it" in one
    assert "two candidates" in other


@pytest.mark.parametrize("noise", [0.0, 0.06])
def test_without_a_limit_none_is_claimed(noise):
    numbers = interpret(poisson_event(noise, 0.5, 100), 1e-5)
    (text,) = lay_reading(numbers, unit="row", relation="add-or-remove")
    assert "no limit" in text
    assert "at most" not in text


def test_mu_names_what_it_leaves_out():
    sampled = lay_reading(PRIVATE, unit="row", relation="add-or-remove")[3]
    assert f"but for a probability of {one_in(1e-10)}" in sampled
    full = interpret(poisson_event(20.0, 1.0, 100), 1e-5)
    assert "but for" not in lay_reading(full, unit="row", relation="add-or-remove")[3]
    assert "μ = 0.5:" in lay_reading(full, unit="row", relation="add-or-remove")[3]
