"""Measure how much the package asks of a reader.

    python -m tools.readability                 the package as a whole
    python -m tools.readability --by-package    and each of its packages
    python -m tools.readability --files         and the files one private step passes through

Line counts, AST density and the step are measured on the source tree this tool stands in.
"""

import argparse
import ast
import io
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import FrameType

__all__ = ["Function", "Source", "files_of_a_step", "functions_of", "source_of"]

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "dpvd"
WIDTH = 100
# Part of the expression they stand in, not something more to read.
UNCOUNTED = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
# The isolation checks run in steps 2, 4, 8, ...: the 7th step is an ordinary one.
MEASURED_STEP = 7


@dataclass(frozen=True)
class Function:
    """One function: where it stands and how much its body holds."""

    place: str
    nodes: int
    lines: int

    @property
    def density(self) -> float:
        """AST nodes per line of the body."""
        return self.nodes / self.lines


@dataclass(frozen=True)
class Source:
    """What was counted in one file."""

    path: str
    functions: tuple[Function, ...]
    lines: int
    wide_lines: int
    comment_lines: int
    assignments: int
    parallel_assignments: int

    @property
    def package(self) -> str:
        """The package of dpvd that the file is in; the module itself for those at the top."""
        return self.path.split("/")[0].removesuffix(".py")


def source_of(text: str, path: str = "text.py") -> Source:
    """Count one file.

    >>> source = source_of("def f(x):\\n    a, b = g(), x\\n    return a + b\\n")
    >>> source.functions[0].nodes, source.functions[0].lines, source.parallel_assignments
    (12, 2, 1)
    """
    tree = ast.parse(text)
    comments = _comment_lines(text)
    lines = text.splitlines()
    assignments = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    return Source(
        path=path,
        functions=tuple(functions_of(tree, lines, comments, path)),
        lines=len(lines),
        wide_lines=sum(len(line) > WIDTH for line in lines),
        comment_lines=len(comments),
        assignments=len(assignments),
        parallel_assignments=sum(_is_parallel(node) for node in assignments),
    )


def functions_of(
    tree: ast.AST, lines: list[str], comments: set[int], path: str
) -> Iterator[Function]:
    """Yield every function with a body; a docstring is not part of it."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        if not body:
            continue
        first = body[0].lineno
        last = body[-1].end_lineno or first
        numbers = [
            number
            for number in range(first, last + 1)
            if lines[number - 1].strip() and not _is_whole_comment(lines, comments, number)
        ]
        yield Function(f"{path}:{node.lineno} {node.name}", _nodes(body), len(numbers))


def _nodes(body: list[ast.stmt]) -> int:
    everything = (node for statement in body for node in ast.walk(statement))
    return sum(not isinstance(node, UNCOUNTED) for node in everything)


def _is_whole_comment(lines: list[str], comments: set[int], number: int) -> bool:
    return number in comments and lines[number - 1].lstrip().startswith("#")


def _comment_lines(text: str) -> set[int]:
    """Numbers of the lines with a comment, alone or behind code."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.start[0] for token in tokens if token.type == tokenize.COMMENT}


def _is_parallel(node: ast.Assign) -> bool:
    """Whether the assignment is ``a, b = x, y``: values written beside each other."""
    return isinstance(node.value, ast.Tuple) and isinstance(node.targets[0], ast.Tuple)


def package_sources(package: Path = PACKAGE) -> list[Source]:
    """Count every Python file of the package."""
    paths = sorted(package.rglob("*.py"))
    return [source_of(path.read_text(), path.relative_to(package).as_posix()) for path in paths]


def files_of_a_step() -> list[str]:
    """The package's files in which Python code is called in an ordinary private step.

    The step: an MLP whose noise scale is tied to the step's, plain SGD, no ledger on disk.
    """
    import torch
    from torch import nn

    import dpvd

    data = (torch.randn(64, 8), torch.randint(3, (64,)))
    layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    model = dpvd.variational(layers, rates="layer", learned=False)
    plan = dpvd.PrivacyPlan(examples=64, batch_size=16, steps=MEASURED_STEP, noise_multiplier=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cross_entropy = nn.CrossEntropyLoss(reduction="none")
    step = dpvd.PrivateStep(
        model,
        lambda model, inputs, targets: cross_entropy(model(inputs), targets),
        plan,
        optimizer,
        kl_weight=lambda _: 1.0,
    )
    *before, measured = plan.batches(data)
    for batch in before:
        step(batch)

    seen: dict[str, None] = {}  # in the order of the first visit

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            seen[frame.f_code.co_filename] = None

    sys.setprofile(note)
    try:
        step(measured)
    finally:
        sys.setprofile(None)
    home = Path(dpvd.__file__).parent
    inside = (Path(name) for name in seen if Path(name).is_relative_to(home))
    return [path.relative_to(home).as_posix() for path in inside]


def report(sources: Iterable[Source], densest: int) -> Iterator[str]:
    """Yield what was counted in these files, a line each."""
    sources = list(sources)
    functions = [function for source in sources for function in source.functions]
    lines = sum(source.lines for source in sources)
    wide = sum(source.wide_lines for source in sources)
    comments = sum(source.comment_lines for source in sources)
    assignments = sum(source.assignments for source in sources)
    parallel = sum(source.parallel_assignments for source in sources)
    yield f"files {len(sources)}, lines {lines}, functions {len(functions)}"
    if functions:
        yield f"AST nodes per line of body, median: {median(f.density for f in functions):.2f}"
    yield f"lines over {WIDTH} columns: {wide} ({_percent(wide, lines)})"
    yield f"parallel assignments: {parallel} of {assignments} ({_percent(parallel, assignments)})"
    yield f"lines with a comment: {comments} ({_percent(comments, lines)})"
    if densest:
        yield from _ranking("densest by nodes per line", functions, densest, by_density=True)
        yield from _ranking("densest by nodes", functions, densest, by_density=False)


def _ranking(
    title: str, functions: list[Function], count: int, *, by_density: bool
) -> Iterator[str]:
    ranked = sorted(functions, key=lambda f: f.density if by_density else f.nodes, reverse=True)
    yield f"{title}:"
    for function in ranked[:count]:
        yield f"  {function.density:5.1f} {function.nodes:4d} {function.place}"


def _percent(part: int, whole: int) -> str:
    return f"{100.0 * part / whole:.1f} %" if whole else "none"


def by_package(sources: Iterable[Source]) -> dict[str, list[Source]]:
    """Sort the files by the package of dpvd that they are in."""
    packages: dict[str, list[Source]] = {}
    for source in sources:
        packages.setdefault(source.package, []).append(source)
    return packages


def tracked_files() -> int | None:
    """How many files git tracks; None outside a repository."""
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    return len(listing.stdout.splitlines()) if listing.returncode == 0 else None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--by-package", action="store_true", help="each package by itself, too")
    parser.add_argument("--files", action="store_true", help="list the files of a private step")
    parser.add_argument("--densest", type=int, default=10, help="how many functions to list")
    parser.add_argument("--no-step", action="store_true", help="do not run a private step")
    options = parser.parse_args(arguments)

    sources = package_sources()
    print("\n".join(report(sources, options.densest)))
    print(f"tracked files: {tracked_files()}")
    if not options.no_step:
        files = files_of_a_step()
        print(f"files a private step passes through: {len(files)}")
        if options.files:
            print("\n".join(f"  {name}" for name in files))
    if options.by_package:
        for name, inside in by_package(sources).items():
            print(f"\n{name}")
            print("\n".join(f"  {line}" for line in report(inside, options.densest)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
