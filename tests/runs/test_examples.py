"""The examples in the docstrings are true."""

import doctest

from dpvd.runs import measure


def test_examples_in_docstrings():
    failed, attempted = doctest.testmod(measure)
    assert attempted > 0
    assert failed == 0
