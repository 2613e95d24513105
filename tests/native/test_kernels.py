"""The C code: no byte that is not its own, nothing that C leaves undefined, the same bits by every
instruction set.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "src" / "dpvd" / "native"
COMPILER = shutil.which(os.environ.get("CC", "cc"))
FLAGS = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
KERNELS = ("aes.c", "dawson.c", "draws.c", "normals.c", "release.c", "squares.c")
CHECKED = (HERE / "checked.c", *(SOURCES / name for name in KERNELS))
SHIPPED = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]  # as in setup.py
NOTHING_TO_COMPARE = 77
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def built(folder: Path, *extra: str, files: tuple[Path, ...] = CHECKED) -> Path:
    """A program; skips where it cannot be compiled."""
    if COMPILER is None:
        pytest.skip("no C compiler")
    program = folder / "checked"
    line = [COMPILER, *FLAGS, *extra, f"-I{SOURCES}", *map(str, files), "-lm", "-o", str(program)]
    outcome = subprocess.run(line, capture_output=True, text=True)
    if "cannot find" in outcome.stderr:
        pytest.skip("no sanitizers")
    assert outcome.returncode == 0, outcome.stderr
    return program


def test_no_byte_too_many_and_nothing_undefined(tmp_path: Path) -> None:
    outcome = subprocess.run([built(tmp_path, *SANITIZERS)], capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr


def test_a_byte_too_many_would_be_noticed(tmp_path: Path) -> None:
    program = built(tmp_path, *SANITIZERS, "-DMISSING=1")
    outcome = subprocess.run([program], capture_output=True, text=True)
    assert "heap-buffer-overflow" in outcome.stderr


@pytest.mark.parametrize(
    "flags", [SHIPPED, [*SHIPPED, "-march=native"]], ids=["as shipped", "for this processor"]
)
def test_every_instruction_set_gives_the_same_bits(tmp_path: Path, flags: list[str]) -> None:
    """Also where the compiler may use fused operations: they must stay switched off."""
    program = built(tmp_path, *flags, "-Wno-unused-function", files=(HERE / "variants.c",))
    outcome = subprocess.run([program], capture_output=True, text=True)
    if outcome.returncode == NOTHING_TO_COMPARE:
        pytest.skip("this processor has one instruction set only")
    assert outcome.returncode == 0, outcome.stdout
