"""Per-example gradient norms, ours and those of Opacus, on the same weights and the same batch.

    make opacus-norms           or: python -m benchmarks.opacus_norms

Ours come from ``clipped_grad``. Weights and batch go through files to Opacus' own environment,
which gives back the norms of its hooks and of its ghost clipping. Written to
benchmarks/results/opacus-norms.json.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

from benchmarks.children import ROOT
from benchmarks.environments import PEERS, installed, interpreter
from benchmarks.norm_cases import CASES, Case, loss
from benchmarks.results import load, save
from dpvd.grads import Clipping, clipped_grad

__all__ = ["difference", "main", "our_norms", "table"]

OUTPUT = ROOT / "benchmarks" / "results" / "opacus-norms.json"
AGREED = 1e-9
"""Largest relative difference that is rounding, in float64."""


def our_norms(case: Case) -> list[float]:
    """The norm of each example's gradient over all parameters."""
    clipping = Clipping("flat")
    model = case.model()
    inputs = case.inputs()
    found = clipped_grad(model, loss, inputs, clipping=clipping)
    return found.norms[:, 0].tolist()


def difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The largest difference of any example, relative to its norm in the other library."""
    differences = []
    for own, other in zip(ours, theirs, strict=True):
        differences.append(abs(own - other) / other)
    return max(differences)


def table(results: dict[str, Any]) -> str:
    """Markdown: the largest relative difference for each layer and both of Opacus' ways."""
    lines = ["| layer | Opacus, hooks | Opacus, ghost |", "|---|---|---|"]
    for name, found in results["layers"].items():
        cells = " | ".join(_cell(value) for value in found.values())
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines)


def _cell(value: float | str) -> str:
    """A difference, or why there is none."""
    if isinstance(value, str):
        return value
    return f"{value:.0e}" if value else "0"


def main() -> int:
    (opacus,) = (peer for peer in PEERS if peer.name == "opacus")
    python = interpreter(opacus)
    with tempfile.TemporaryDirectory() as folder:
        for place, case in enumerate(CASES.values()):
            _hand_over(case, Path(folder) / f"{place}.npz")
        done = subprocess.run(
            [python, "-m", "benchmarks.peers.opacus_norms", folder],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            check=True,
        )
    theirs = json.loads(done.stdout.splitlines()[-1])
    layers = {}
    for name, case in CASES.items():
        ours = our_norms(case)
        layers[name] = {way: _compared(ours, found) for way, found in theirs[name].items()}
    versions = {"torch": torch.__version__, **installed(python, ("opacus",))}
    save(OUTPUT, {"versions": versions, "dtype": "float64", "layers": layers})
    print(table(load(OUTPUT)))
    differences = [value for value in _flat(layers) if isinstance(value, float)]
    return int(max(differences, default=0.0) > AGREED)


def _compared(ours: Sequence[float], theirs: list[float] | str) -> float | str:
    """The difference, or why Opacus has no norms."""
    if isinstance(theirs, str):
        return theirs
    return difference(ours, theirs)


def _flat(layers: dict[str, dict[str, Any]]) -> list[Any]:
    return [value for found in layers.values() for value in found.values()]


def _hand_over(case: Case, file: Path) -> None:
    arrays = {"inputs": case.inputs().numpy()}
    state = case.model().state_dict()
    for name, value in state.items():
        arrays[f"model.{name}"] = value.numpy()
    numpy.savez(file, **arrays)


if __name__ == "__main__":
    sys.exit(main())
