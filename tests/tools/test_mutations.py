"""Every kind of change is made, one at a time, and words are left alone."""

import ast
import doctest
from pathlib import Path

import pytest
import tools.mutations
from tools.mutations import mutations_of

ROOT = Path(__file__).parents[2]


def results_of(source: str) -> set[str]:
    return {change.put_into(source) for change in mutations_of(source)}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", {"(a <= b)"}),
        ("a <= b != c", {"(a < b != c)", "(a <= b == c)"}),
        ("a is None", {"(a is not None)"}),
        ("a in b", {"(a not in b)"}),
        ("a * b", {"(a / b)"}),
        ("a and not b", {"(a or not b)", "a and (b)"}),
        ("x if a else y", {"x if (not a) else y"}),
        ("x = 3", {"x = 4"}),
        ("x = True", {"x = False"}),
        ("f(a, b, c)", {"pass", "(f(b, a, c))"}),
        ("a.b = c", {"pass"}),
        ("a[b] = c", {"pass"}),
        ("a += b", {"pass"}),
        (
            "if a:\n    raise E(1 + 2, f'{b < c}')",
            {"if a:\n    pass", "if (not a):\n    raise E(1 + 2, f'{b < c}')"},
        ),
    ],
)
def test_the_changes_of_a_line(source: str, expected: set[str]) -> None:
    assert results_of(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring with 1 < 2."""',
        "log.warning('words', 1 + 2)",
        "def f(x: Literal[3] = a) -> Literal[4]: return x",
        "@dataclass(frozen=True)\nclass C: pass",
        "x = f'{a + b}'",
        "from a import b",
        "x = max(a, b)",
        "x = zip(a, strict=True)",
    ],
)
def test_words_and_annotations_are_left_alone(source: str) -> None:
    assert results_of(source) == set()


def test_places_are_right_behind_letters_of_several_bytes() -> None:
    source = "class Δ:\n    def ε(self):\n        return 'ζ', a < b, 'η'\n"
    (change,) = mutations_of(source)
    assert change.put_into(source) == source.replace("a < b", "(a <= b)")
    assert change.place == "Δ.ε"
    assert change.in_words() == "Δ.ε: a < b → (a <= b) in return 'ζ', a < b, 'η'"


def test_every_change_of_a_whole_module_can_be_read_by_python() -> None:
    source = (ROOT / "src" / "dpvd" / "plan.py").read_text()
    changes = mutations_of(source)
    assert len(changes) > 100
    for change in changes:
        changed = change.put_into(source)
        assert changed != source
        ast.parse(changed)


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(tools.mutations).failed == 0
