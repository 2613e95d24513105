"""Without the extension everything works, draws the same noise and says what is missing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

import dpvd.native
from dpvd.native import draw_from_key

PROGRAM = """
import numpy as np
from dpvd.native import draw_from_key, implementation_in_use
noise = np.zeros(5001, np.float32)
draw_from_key(noise, 1.0, bytes(range(32)), 3)
used = implementation_in_use()
print(used.compiled, used.transform, used.cipher, "C compiler" in used.hint, noise.tobytes().hex())
"""


def test_a_package_without_the_extension_draws_the_same_noise(tmp_path: Path) -> None:
    package = Path(dpvd.native.__file__).parents[1]
    shutil.copytree(
        package, tmp_path / "dpvd", ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__")
    )
    environment = {name: value for name, value in os.environ.items() if name != "DPVD_NATIVE"}
    environment["PYTHONPATH"] = str(tmp_path)
    line = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        line, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    noise = np.zeros(5001, np.float32)
    draw_from_key(noise, 1.0, bytes(range(32)), 3)
    assert done.stdout.split() == ["False", "numpy", "openssl", "True", noise.tobytes().hex()]
