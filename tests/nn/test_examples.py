"""The examples in the docstrings are true."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "module",
    ["noise", "functional", "divergences", "priors", "pull", "linear", "tree", "convert", "unroll", "recurrent"],
)
def test_examples_in_docstrings(module: str) -> None:
    failed, attempted = doctest.testmod(importlib.import_module(f"dpvd.nn.{module}"))
    assert attempted > 0
    assert failed == 0
