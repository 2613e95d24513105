"""``dpvd doctor``: what it tells of a healthy installation, and that it does not call a broken one
safe.
"""

import os

import pytest

from dpvd.cli import doctor
from dpvd.mechanisms import SystemBits
from dpvd.native import implementation_in_use
from tests.cli.program import call


def no_entropy(size):
    raise OSError("no entropy")


def test_a_healthy_installation_is_safe():
    shown = call("doctor")
    assert shown.code == 0
    assert shown.out.count("passed") == 3
    assert "FAILED" not in shown.out
    assert SystemBits.description in shown.out
    assert max(len(line.rstrip()) for line in shown.out.splitlines()) <= 80


@pytest.mark.parametrize("native", ["1", "0"])
def test_it_says_what_draws_the_noise(native, monkeypatch):
    monkeypatch.setenv("DPVD_NATIVE", native)
    answer = call("doctor", "--json").json
    used = implementation_in_use()
    assert answer["noise_made_by"] == ("compiled kernels" if used.compiled else "NumPy")
    assert (answer["transform"], answer["cipher"], answer["safe"]) == (
        used.transform,
        used.cipher,
        True,
    )
    assert bool(answer["hint"]) == (not used.compiled)


def test_without_entropy_it_is_unsafe(monkeypatch):
    monkeypatch.setattr(os, "urandom", no_entropy)
    shown, answer = call("doctor"), call("doctor", "--json")
    assert shown.code == answer.code == 1
    assert shown.out.count("passed") == 2
    assert "gave no randomness" in answer.json["failures"]["private noise"]
    assert answer.json["safe"] is False


@pytest.mark.parametrize(
    ("expected", "test"), [("_STREAM", "key stream"), ("_SEEDED_NOISE", "seeded noise")]
)
def test_another_value_than_the_known_one_is_unsafe(expected, test, monkeypatch):
    monkeypatch.setattr(doctor, expected, "another")
    answer = call("doctor", "--json")
    assert answer.code == 1
    assert list(answer.json["failures"]) == [test]
