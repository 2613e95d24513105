"""What a run ran on: versions, machine, and the commit of the program where it can be told."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import dpvd

__all__ = ["environment", "now"]


def environment() -> dict[str, Any]:
    """Versions and machine; ``commit`` is None unless the program runs from its own checkout."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "commit": _commit(),
    }


def now() -> str:
    """The time in UTC, to the second, such as 2026-01-31T12:00:00Z."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _commit() -> str | None:
    """Name of the commit, with "-dirty" if files differ from it; None outside a checkout."""
    package = Path(dpvd.__file__).resolve().parent
    root = package.parents[1]
    # An installed package may lie inside somebody else's repository, whose commit says nothing.
    if not (root / ".git").exists() or package != root / "src" / "dpvd":
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip() or None
