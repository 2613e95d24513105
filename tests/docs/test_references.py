"""What the documentation points at exists: pages, headings, files, tests, names, dependencies."""

import ast
import importlib
import json
import re
import tomllib
from pathlib import Path

import pytest

import dpvd
from tests.docs.markdown import PAGES, ROOT, anchors, blocks, images, links, prose, table_names

LINKS = [(page, target) for page in PAGES for target in links(page)]
TESTS = sorted(
    {name for page in PAGES for name in re.findall(r"`(tests/[\w/]+\.py::[\w:]+)`", prose(page))}
)
FOLDERS = r"`((?:src|tests|docs|tools|examples|benchmarks|reproduction)/[\w/.-]+)`"
PATHS = sorted({(page, name) for page in PAGES for name in re.findall(FOLDERS, prose(page))})
MODULES = sorted(
    {name for page in PAGES for name in re.findall(r"`([a-z]+/[a-z_/]+\.py)`", prose(page))}
)
NAMES = sorted(
    {
        name
        for page in PAGES
        for name in re.findall(r"`(dpvd(?:\.\w+)+)(?:\([^`]*\))?`", prose(page))
    }
)


def ident(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize(
    ("page", "target"), LINKS, ids=[f"{ident(page)}:{target}" for page, target in LINKS]
)
def test_links_lead_somewhere(page: Path, target: str) -> None:
    name, _, anchor = target.partition("#")
    leads_to = (page.parent / name).resolve() if name else page
    assert leads_to.is_file(), f"{ident(page)} links to {target}, which does not exist"
    assert leads_to.is_relative_to(ROOT)
    if anchor:
        assert anchor in anchors(leads_to)


def test_pictures_exist_and_are_described() -> None:
    shown = [(page, *image) for page in PAGES for image in images(page)]
    assert {"README.md", "index.md"} <= {page.name for page, _, _ in shown}
    for page, description, path in shown:
        assert (page.parent / path).is_file(), f"{ident(page)} shows {path}, which does not exist"
        assert len(description.split()) > 2, f"{ident(page)}: describe {path} in a few words"


def test_there_are_links_tests_paths_and_names_to_check() -> None:
    assert min(map(len, (LINKS, TESTS, PATHS, MODULES, NAMES))) > 5


@pytest.mark.parametrize("test", TESTS)
def test_named_tests_exist(test: str) -> None:
    file, *names = test.split("::")
    tree: ast.AST = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    for name in names:
        inside = {node.name: node for node in ast.iter_child_nodes(tree) if hasattr(node, "name")}
        assert name in inside, f"{file} has no {name}"
        tree = inside[name]


@pytest.mark.parametrize(
    ("page", "path"), PATHS, ids=[f"{ident(page)}:{path}" for page, path in PATHS]
)
def test_named_files_exist(page: Path, path: str) -> None:
    assert (ROOT / path).exists(), f"{ident(page)} names {path}, which does not exist"


@pytest.mark.parametrize("module", [name for name in MODULES if not re.match(FOLDERS, f"`{name}`")])
def test_named_modules_exist(module: str) -> None:
    assert (ROOT / "src" / "dpvd" / module).is_file()


@pytest.mark.parametrize("name", NAMES)
def test_named_objects_exist(name: str) -> None:
    value = dpvd
    for part in name.split(".")[1:]:
        try:
            value = getattr(value, part)
        except AttributeError:
            value = importlib.import_module(f"{value.__name__}.{part}")
    assert value is not dpvd


def test_every_public_name_is_in_the_overview_of_the_api() -> None:
    assert table_names(ROOT / "docs" / "api" / "index.md", "# API") == set(dpvd.__all__)


def test_every_package_has_an_api_page() -> None:
    packages = {
        path.stem
        for path in (ROOT / "src" / "dpvd").iterdir()
        if not path.name.startswith(("_", "py."))
    }
    pages = {path.stem for path in (ROOT / "docs" / "api").glob("*.md")} - {"index"}
    assert pages == packages - {"cli"}  # described in its own page


@pytest.mark.parametrize(
    "name",
    sorted(path.stem for path in (ROOT / "docs" / "api").glob("*.md") if path.stem != "index"),
)
def test_api_pages_cover_all_that_is_public(name: str) -> None:
    """A page shows a package, or its modules one by one. A module would hide a function of the same
    name.
    """
    package = importlib.import_module(f"dpvd.{name}")
    shown = re.findall(
        r"^::: ([\w.]+)$", (ROOT / "docs" / "api" / f"{name}.md").read_text(), re.MULTILINE
    )
    public = {public for module in shown for public in importlib.import_module(module).__all__}
    hidden = {
        public
        for public in package.__all__
        if (ROOT / "src" / "dpvd" / name / f"{public}.py").exists()
    }
    assert public >= set(package.__all__)
    assert {f"{package.__name__}.{public}" for public in hidden} <= set(shown)


@pytest.mark.parametrize(
    ("heading", "group"),
    [
        ("## To run", ""),
        ("## To export to ONNX", "export"),
        ("## To develop", "dev"),
        ("## To build this site", "docs"),
    ],
)
def test_every_dependency_is_justified(heading: str, group: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["optional-dependencies"][group] if group else project["dependencies"]
    names = {re.match(r"[\w-]+", requirement)[0] for requirement in wanted}
    assert table_names(ROOT / "docs" / "dependencies.md", heading) == names


def test_the_readme_has_the_times_and_the_memory_that_were_measured() -> None:
    workloads = json.loads((ROOT / "benchmarks" / "results" / "latest.json").read_text())[
        "workloads"
    ]
    systems = workloads["mnist-mlp"]["systems"]
    small = workloads["digits-mlp"]["systems"]
    text = " ".join((ROOT / "README.md").read_text().split())
    ghost = systems["opacus-ghost"]
    hooks = systems["opacus-hooks"]
    ghost_memory = ghost["peak_mb"] / systems["plain"]["peak_mb"]
    for claim in (
        f"{systems['dpsgd']['ratio']:.1f} × (DP-SGD)",
        f"{systems['dpvd']['ratio']:.1f} × (Algorithm 1)",
        f"{ghost['ratio']:.1f} × (ghost clipping), {hooks['ratio']:.0f} × (hooks)",
        f"{ghost_memory:.1f} × (ghost clipping)",
        f"takes {small['dpsgd']['ratio']:.1f} × and {small['dpvd']['ratio']:.1f} ×",
        f"(Opacus ghost: {small['opacus-ghost']['ratio']:.1f} ×)",
    ):
        assert claim in text, f"README.md should say {claim!r}"


def test_the_first_screen_of_the_readme_compares_and_shows_code() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:45])
    assert "(docs/performance.md)" in first_screen
    assert "print(step.guarantee" in first_screen


def test_the_changelog_speaks_of_this_version_and_of_privacy() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    current = text.split("\n## ")[1]
    assert current.startswith(dpvd.__version__)
    assert "\n### Privacy\n" in current


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    named = set(re.findall(r"([\w/-]+\.md)", navigation))
    assert named == {
        str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")
    }


ANSWERING = [
    page
    for page in sorted((ROOT / "docs").glob("*.md"))
    if page.name not in {"compression.md", "how-we-read-the-paper.md", "performance.md"}
]


@pytest.mark.parametrize("page", ANSWERING, ids=ident)
def test_a_table_is_on_the_first_screen(page: Path) -> None:
    """A page begins with its answer and one table; method and history come later."""
    first_screen = page.read_text().splitlines()[:25]
    assert any(line.startswith("|---") for line in first_screen)


def test_python_in_the_pages_is_marked_as_such() -> None:
    for page in PAGES:
        assert not [block.line for block in blocks(page, "py")], (
            f"{ident(page)}: use ```python, so that it is run"
        )
