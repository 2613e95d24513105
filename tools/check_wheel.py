"""Build the package as for a release, install it where nothing else of it is, and run it there.

The sdist is built from the tracked files alone, the wheel from the sdist, so that a file missing
from either is noticed. The environment that runs the wheel borrows the dependencies of the Python
that runs this script: nothing large is downloaded, and the wheel is the only dpvd in it.

    .venv/bin/python tools/check_wheel.py
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

from dpvd.native import implementation_in_use

ROOT = Path(__file__).resolve().parents[1]
PYTHON = Path(sys.executable)
BUILD_SDIST = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
DEMO = ("train", "digits", "--epsilon", "1", "--delta", "1e-5", "--out", "demo")


def main() -> None:
    """Run all steps; the first that fails ends the program with an exit code other than 0."""
    with tempfile.TemporaryDirectory(prefix="dpvd-wheel-") as temporary:
        work = Path(temporary)
        wheel = build(work)
        print(f"built {wheel.name} ({wheel.stat().st_size // 1024} KB)", flush=True)
        environment = install(wheel, work / "environment")
        try_out(environment, work)
    print("the wheel works", flush=True)


def build(work: Path) -> Path:
    """Return the wheel made from the sdist made from a copy of the tracked files."""
    checkout = work / "checkout"
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        target = checkout / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    run(PYTHON, "-c", BUILD_SDIST, work, cwd=checkout)
    (sdist,) = work.glob("dpvd-*.tar.gz")
    # Without isolation pip uses the setuptools that is here instead of downloading one.
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", work, sdist)
    (wheel,) = work.glob("dpvd-*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> Path:
    """Install the wheel alone, and let its environment see the dependencies of this Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    pip("--python", python, "install", "--no-deps", "--no-index", wheel)
    (packages,) = folder.glob("lib/python*/site-packages")
    # Python adds the folder to its path but does not follow the .pth files inside: an editable
    # installation of dpvd there stays out of sight.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def try_out(python: Path, work: Path) -> None:
    """Check where dpvd comes from, run doctor and the demo, and look for what they should leave."""
    home = run(python, "-c", "import dpvd; print(dpvd.__file__)", cwd=work)
    if not home.startswith(str(work)):
        sys.exit(f"dpvd is not imported from the wheel but from {home}")
    dpvd = python.parent / "dpvd"
    facts = json.loads(run(dpvd, "doctor", "--json", cwd=work))
    compiled = facts["noise_made_by"] == "compiled kernels"
    if implementation_in_use().compiled and not compiled:
        # The extension is optional, so a source file missing from the sdist stops no build.
        sys.exit("the wheel has no compiled kernels, although this machine can build them")
    print(f"doctor: {facts['noise_made_by']}, safe: {facts['safe']}", flush=True)
    run(dpvd, *DEMO, cwd=work)
    if not (work / "demo" / "report.html").is_file():
        sys.exit("the demo wrote no report page")
    print("demo: trained, with a report page", flush=True)


def pip(*arguments: object) -> None:
    run(PYTHON, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments, cwd=ROOT)


def run(program: Path, *arguments: object, cwd: Path) -> str:
    """Run a program that sees no module path but its own, and return what it printed.

    A program that fails ends this one, too, after showing all that it printed.
    """
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=clean, text=True, capture_output=True)
    if done.returncode != 0:
        print(done.stdout + done.stderr, file=sys.stderr)
        sys.exit(f"exit code {done.returncode} of: {' '.join(command)}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
