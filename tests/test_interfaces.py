"""A package's interface is its ``__all__``: other packages import from there, and nothing else."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpvd

SOURCE = Path(dpvd.__file__).parent

# The exemptions that ARCHITECTURE.md states: who may import modules of which package directly.
# What they import has to be in the ``__all__`` of that module all the same.
FROM_INSIDE = {("grads", "nn"), ("cli", "runs"), ("cli", "report")}


def imports_in(text: str) -> Iterator[tuple[str, str]]:
    """Module and name of everything that is imported from dpvd, at any depth of the code."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                yield node.module, alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, ""


def public_names(module: str) -> set[str]:
    """The ``__all__`` that stands in a module's source."""
    path = SOURCE.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names |= set(ast.literal_eval(node.value))
    return names


def violations(importer: str, text: str) -> list[str]:
    """What a module of the package ``importer`` imports past another package's interface."""
    found = []
    for module, name in imports_in(text):
        root, *parts = module.split(".")
        if root != "dpvd" or not parts or parts[0] == importer:
            continue
        through_interface = len(parts) == 1 or (importer, parts[0]) in FROM_INSIDE
        if not through_interface or name not in public_names(module):
            found.append(f"{name or 'everything'} from {module}")
    return found


MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_other_packages_are_imported_by_their_interface(path: Path) -> None:
    place = path.relative_to(SOURCE).with_suffix("")
    assert violations(place.parts[0], path.read_text()) == []


@pytest.mark.parametrize(
    ("importer", "line"),
    [
        ("training", "from dpvd.grads.per_example import clip"),
        ("training", "from dpvd.grads import product"),
        ("training", "import dpvd.grads"),
        ("training", "def late():\n    from dpvd.privacy.renyi import integer_rdp"),
        ("grads", "from dpvd.nn.linear import _hidden"),
        ("report", "from dpvd.runs.planner import Offer"),
    ],
)
def test_an_import_past_the_interface_is_found(importer: str, line: str) -> None:
    assert len(violations(importer, line)) == 1


def test_the_exemptions_are_needed_and_stated() -> None:
    page = (Path(__file__).parents[1] / "ARCHITECTURE.md").read_text()
    used = set()
    for path in MODULES:
        importer = path.relative_to(SOURCE).with_suffix("").parts[0]
        for module, _ in imports_in(path.read_text()):
            parts = module.split(".")
            if parts[0] == "dpvd" and len(parts) > 2 and parts[1] != importer:
                used.add((importer, parts[1]))
    assert used == FROM_INSIDE
    for importer, package in FROM_INSIDE:
        assert f"`{importer}/`" in page
        assert f"`{package}`" in page
