"""The package as its users see it."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dpvd

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "dpvd"
MODULES = {path.stem for path in PACKAGE.iterdir() if not path.name.startswith(("_", "py."))} - {
    "cli"
}


def output_of(program: str) -> str:
    """What a Python program prints in a process of its own, where nothing has been imported yet."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_every_public_name_is_there():
    for name in dpvd.__all__:
        assert getattr(dpvd, name).__name__ == name


def test_dir_shows_public_names_and_nothing_else():
    assert set(dir(dpvd)) == {*dpvd.__all__, *MODULES, "__version__"}


def test_packages_resolve_after_importing_dpvd_alone():
    program = f"import dpvd; print(*[getattr(dpvd, name).__name__ for name in {sorted(MODULES)!r}])"
    assert output_of(program).split() == [f"dpvd.{name}" for name in sorted(MODULES)]


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'unheard_of'"):
        _ = dpvd.unheard_of


@pytest.mark.parametrize(
    "statement", ["import dpvd; dir(dpvd)", "import dpvd; dpvd.privacy.Relation"]
)
def test_neither_the_package_nor_accounting_loads_torch(statement):
    assert output_of(f"{statement}; import sys; print('torch' in sys.modules)") == "False"


def test_the_version_stands_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "dpvd.__version__"}
