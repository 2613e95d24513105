"""The kernels touch no byte that is not theirs and do nothing that C leaves undefined: sanitizers watch."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "src" / "dpvd" / "native"
COMPILER = shutil.which(os.environ.get("CC", "cc"))
FLAGS = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def built(folder: Path, *extra: str) -> Path:
    """The program of checked.c with the kernels; skips where it cannot be compiled."""
    if COMPILER is None:
        pytest.skip("no C compiler")
    program = folder / "checked"
    files = [HERE / "checked.c", *(SOURCES / name for name in ("aes.c", "draws.c", "normals.c"))]
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
