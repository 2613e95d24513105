"""The package as its users see it."""

import os
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


USER_PROGRAM = """
import torch

import dpvd
from dpvd.privacy import Relation

plan = dpvd.PrivacyPlan(
    examples=100, batch_size=10, steps=5, clipping=dpvd.Clipping("flat", 1.0),
    sampling="poisson", relation="replace-one", noise="seeded", seed=0,
)
relation: Relation = plan.relation
model = dpvd.variational(torch.nn.Linear(4, 2), "additive", rates="layer")


def loss(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = model(x).square().sum(1)
    return result


batch = (torch.zeros(3, 4),)
dpvd.clipped_grad(model, loss, batch, clipping=plan.clipping, engine="factored")
"""


def check_types(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The program under ``mypy --strict``, as a user of the package runs it."""
    (folder / "program.py").write_text(program)
    options = ["--strict", "--config-file=", "--ignore-missing-imports"]
    return subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--follow-imports=silent", "program.py"],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
    )


def test_documented_options_as_strings_type_check(tmp_path):
    done = check_types(USER_PROGRAM, tmp_path)
    assert done.returncode == 0, done.stdout
    wrong = check_types(USER_PROGRAM.replace('"poisson"', "0.5"), tmp_path)
    assert wrong.returncode == 1
    assert 'Argument "sampling"' in wrong.stdout


def test_a_guarantee_prints_as_its_sentence(capsys):
    plan = dpvd.PrivacyPlan(examples=100, batch_size=10, steps=5, noise_multiplier=2.0)
    guarantee = plan.guarantee(delta=1e-5)
    print(guarantee)
    assert capsys.readouterr().out == guarantee.sentence() + "\n"
    assert "differentially private" in guarantee.sentence()
