"""Made-up results in the form that a run leaves behind."""

from typing import Any

from benchmarks.shares import PIECES, REST
from benchmarks.systems import SYSTEMS, applies
from benchmarks.workloads import WORKLOADS

__all__ = ["good_results"]


def good_results() -> Any:
    """Every limit kept: all systems take what the plain step takes."""
    pieces = [*dict.fromkeys(piece for piece, _, _ in PIECES), REST]
    ratio = {"median": 1.0, "low": 0.9, "high": 1.1}
    return {
        "date": "2026-01-02T03:04:05+00:00",
        "machine": {"processor": "abacus", "cores": 2, "platform": "wood"},
        "versions": {"torch": "2"},
        "noise": "dice",
        "clock": "wall",
        "threads": 2,
        "workloads": {
            name: {
                "batch": work.batch,
                "parameters": 1000,
                "variational": "converted to wood: 1",
                "rounds": 3,
                "systems": {system: _entry() for system in SYSTEMS if applies(system, work)},
                "shares": {"dpsgd": dict.fromkeys(pieces, 1 / len(pieces))},
            }
            for name, work in WORKLOADS.items()
        },
        "growth": {
            "batch": {
                "network": "784-10",
                "at": [1, 2],
                "ms": [1.0, 2.0],
                "ratios": {system: [ratio, ratio] for system in ("dpsgd", "dpvd")},
            }
        },
    }


def _entry() -> dict[str, Any]:
    return {
        "ms": 2.0,
        "ms_quartiles": [1.9, 2.1],
        "ratio": 1.0,
        "ratio_quartiles": [0.9, 1.1],
        "ratio_to": {"sparse": 1.0, "plain-channels-last": 1.0},
        "peak_mb": 10.0,
    }
