"""The survivors that docs/mutants.md gives reasons for are changes of the present code."""

import re

from tools.mutants import PACKAGE, PAGE, TESTS
from tools.mutations import mutations_of


def listed() -> dict[str, str]:
    """By the words of a change, the module that the page lists it under."""
    page = PAGE.read_text()
    section = page.partition("## Survivors that stay\n")[2].partition("\n## ")[0]
    found = {}
    module = ""
    for line in section.splitlines():
        if re.fullmatch(r"`[a-z_/]+\.py`", line):
            module = line.strip("`")
        elif entry := re.match(r"- `(.+)`: ", line):
            found[entry[1]] = module
    return found


def test_every_survivor_on_the_page_is_a_change_of_the_module_it_is_listed_under() -> None:
    survivors = listed()
    assert survivors
    for words, module in survivors.items():
        changes = mutations_of((PACKAGE / module).read_text())
        assert any(words == change.in_words() for change in changes), words


def test_every_module_is_there_and_has_tests_that_are_there() -> None:
    root = PAGE.parents[1]
    for module, tests in TESTS.items():
        assert (PACKAGE / module).is_file(), module
        for test in tests:
            assert (root / test.partition("::")[0]).is_file(), test
