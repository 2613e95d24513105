"""What the measure of readability counts, and what it leaves uncounted."""

import doctest
from pathlib import Path

import pytest
import tools.readability
from tools.readability import files_of_a_step, main, package_sources, source_of

PACKAGE = Path(__file__).parents[2] / "src" / "dpvd"


def test_doctest():
    assert doctest.testmod(tools.readability).failed == 0


def test_docstrings_comments_and_blank_lines_are_not_lines_of_a_body():
    plain = source_of("def f(x):\n    return x\n").functions[0]
    dressed = source_of(
        'def f(x):\n    """Summary.\n\n    More.\n    """\n    # why\n\n    return x\n'
    ).functions[0]
    assert (dressed.nodes, dressed.lines) == (plain.nodes, plain.lines) == (2, 1)


def test_operators_and_contexts_are_not_counted():
    # Return, BinOp, Name, UnaryOp, Name
    assert source_of("def f(x):\n    return x + -x\n").functions[0].nodes == 5


def test_a_function_that_is_only_a_docstring_has_no_density():
    assert source_of('def f():\n    """Nothing."""\n').functions == ()


@pytest.mark.parametrize(
    ("statement", "parallel"),
    [("a, b = 1, 2", 1), ("a, b = f()", 0), ("a = 1, 2", 0), ("(a, b), c = x, y", 1)],
)
def test_only_values_written_beside_each_other_are_parallel(statement, parallel):
    source = source_of(statement + "\n")
    assert (source.assignments, source.parallel_assignments) == (1, parallel)


def test_wide_lines_and_comments_are_counted():
    text = "x = 1  # behind code\n# alone\ny = '# no comment'\n" + "z" * 101 + "\n" + "z" * 100
    source = source_of(text + "\n")
    assert (source.lines, source.comment_lines, source.wide_lines) == (5, 2, 1)


def test_packages_are_named_by_their_first_folder():
    packages = {source.package for source in package_sources()}
    assert {"plan", "errors", "nn", "privacy"} <= packages
    assert len(package_sources()) == len(list(PACKAGE.rglob("*.py")))


def test_a_private_step_passes_through_step_noise_and_layers():
    files = files_of_a_step()
    assert files[0] == "training/step.py"
    assert {"mechanisms/noise.py", "nn/linear.py", "plan.py"} <= set(files)
    assert len(files) == len(set(files))
    # What runs in the first step or in a scheduled check is no part of an ordinary step.
    assert not {"grads/compatibility.py", "grads/isolation.py", "grads/loop.py"} & set(files)


def test_the_command_prints_all_measures(capsys):
    assert main(["--by-package", "--densest", "1", "--no-step"]) == 0
    printed = capsys.readouterr().out
    for measure in ("AST nodes per line", "columns", "parallel", "comment", "tracked files"):
        assert measure in printed
    assert "\nprivacy\n" in printed
