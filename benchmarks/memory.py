"""Peak memory of one system, in a process that does nothing else."""

import contextlib
import gc
import resource
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.workloads import Step, Workload

__all__ = ["limit_memory", "peak_mb"]

STEPS = 3
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_INFO = Path("/proc/meminfo")
_RESET_PEAK = "5"  # proc(5): reset the peak resident set size to the present one


def peak_mb(make: Callable[[Workload], Step], work: Workload) -> float:
    """How far resident memory rises while a model and its batch are made and trained, in 10⁶ bytes.

    A miniature of the workload takes a step first, so that libraries which are loaded on first use
    do not count. The kernel's high-water mark is then reset; it sees every page, also of
    temporaries inside torch's own code.

    Args:
        make: builds the system.
        work: what it is to train.

    Raises:
        OSError: where there is no /proc (Linux has it), or it may not be written.
    """
    make(work.miniature)()
    gc.collect()
    before = _kilobytes(_STATUS, "VmRSS")
    _CLEAR.write_text(_RESET_PEAK)
    step = make(work)
    for _ in range(STEPS):
        step()
    return (_kilobytes(_STATUS, "VmHWM") - before) * 1024 / 1e6


def limit_memory(share: float = 0.9) -> None:
    """Let allocations beyond this share of the free memory fail, instead of the machine."""
    with contextlib.suppress(OSError):
        free = 1024 * _kilobytes(_INFO, "MemAvailable")
        limit = int(share * free)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _kilobytes(file: Path, field: str) -> int:
    for line in file.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            kilobytes, *_ = value.split()
            return int(kilobytes)
    raise OSError(f"{file} has no {field} on {sys.platform}")
