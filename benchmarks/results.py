"""What a benchmark leaves behind: one JSON file, from which tables, figures and verdicts follow."""

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import torch

import dpvd
from benchmarks.children import ROOT
from benchmarks.timing import Clock, ratios, spread
from dpvd.mechanisms import SystemBits

__all__ = ["LATEST", "QUICK", "Results", "Times", "circumstances", "entry", "load", "save"]

LATEST = ROOT / "benchmarks" / "results" / "latest.json"
QUICK = ROOT / "benchmarks" / "results" / "quick.json"

Times = dict[str, list[float]]
"""By system, the milliseconds of a step in each round."""

Results = dict[str, Any]
"""date, machine, versions, clock, threads; ``workloads``: name to
``{date, batch, parameters, variational, rounds, runs, systems, shares, two_threads}``;
``systems``: name to ``{ms, ms_quartiles, ratio, ratio_quartiles, ratio_to, peak_mb}`` or ``{failed:
reason}``; ``growth``: what grows to ``{at, ratios}``."""


def circumstances(clock: Clock, threads: int) -> Results:
    """When, where and with what the figures were measured."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "platform": platform.platform(),
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "dpvd": dpvd.__version__,
        },
        "noise": SystemBits().description,
        "clock": str(clock),
        "threads": threads or torch.get_num_threads(),
        "workloads": {},
        "growth": {},
    }


def entry(times: Times, system: str, baselines: tuple[str, ...]) -> Results:
    """A system's figures, from its milliseconds and the baselines' in the same rounds."""
    own = spread(times[system])
    ratio = ratios(times, "plain")[system]
    return {
        "ms": own.median,
        "ms_quartiles": [own.low, own.high],
        "ratio": ratio.median,
        "ratio_quartiles": [ratio.low, ratio.high],
        "ratio_to": {
            base: ratios(times, base)[system].median for base in baselines if base in times
        },
    }


def load(path: Path) -> Results:
    results: Results = json.loads(path.read_text(encoding="utf-8"))
    return results


def save(path: Path, results: Results) -> None:
    """Write the figures; they are rounded to what was measured."""
    rounded = _rounded(results)
    text = json.dumps(rounded, indent=1, ensure_ascii=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n", encoding="utf-8")


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return value


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                _, name = line.split(":", 1)
                return name.strip()
    return platform.processor()
