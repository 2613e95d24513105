"""The examples in docstrings are true, in every module, and the API pages show them as code."""

import doctest
import importlib
import pkgutil
import runpy

import pytest

import dpvd
from tests.docs.markdown import ROOT

MODULES = sorted(module.name for module in pkgutil.walk_packages(dpvd.__path__, "dpvd."))


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    with_examples = {
        name
        for name in MODULES
        if any(test.examples for test in finder.find(importlib.import_module(name)))
    }
    assert {"dpvd.plan", "dpvd.training.schedules", "dpvd.privacy.events"} <= with_examples


def test_api_pages_show_examples_as_code_and_roles_as_names() -> None:
    pytest.importorskip("griffe", reason="only needed to build the site")
    pages = runpy.run_path(str(ROOT / "docs" / "_build" / "docstrings.py"))
    text = (
        "Guarantees: all of it, by :func:`twice`.\n\n    >>> twice(2)\n    4\n\nReturns:\n    A"
        " number."
    )
    assert (
        pages["readable"](text)
        == "**Guarantees:** all of it, by `twice`.\n\n    ```pycon\n    >>> twice(2)\n    4\n  "
        "  ```"
        "\n\nReturns:\n    A number."
    )
