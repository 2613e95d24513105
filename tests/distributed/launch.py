"""Real processes, started as a user starts them."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_alone(out: Path, *jobs: str) -> None:
    """The jobs of `worker` in one process that knows of no group."""
    _run([sys.executable, "-m", "tests.distributed.worker", str(out), *jobs])


def run_together(processes: int, out: Path, *jobs: str, restarts: int = 0) -> int:
    """The jobs of `worker` under torchrun; returns its exit code."""
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={processes}",
        f"--max-restarts={restarts}",
        "-m",
    ]
    return _run([*launcher, "tests.distributed.worker", str(out), *jobs], check=False)


def _run(command: list[str], check: bool = True) -> int:
    paths = [str(ROOT), *(path for path in sys.path if path)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        # Or a restart would be given the addresses of processes that are gone.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
    )
    if check and done.returncode:
        raise AssertionError(done.stderr)
    print(done.stderr)  # seen if a test fails
    return done.returncode
