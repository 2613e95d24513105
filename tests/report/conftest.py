"""A complete run record as JSON holds it, made up but consistent; tests change what they need."""

import copy
from typing import Any

import numpy as np
import pytest

from dpvd.report import render
from dpvd.runs import NetworkSpec, RunRecord

Record = dict[str, Any]

_SENTENCE = (
    "(0.9996, 1e-05)-differentially private: adding or removing one example; Poisson sampling with"
    " probability 0.2498 for 40 steps; Gaussian noise of multiplier 6.128 from the system's"
    " cryptographic generator; accounted with privacy loss distributions. Public: the number of"
    " examples (1437). Tuned on the data: nothing."
)


def _history() -> list[dict[str, float]]:
    return [
        {
            "epoch": float(k),
            "step": k,
            "epsilon": 0.9996 * (k / 40) ** 0.5,
            "test_loss": 0.4 + 1.8 / k,
            "test_accuracy": 0.889 - 0.48 * (1 / k - 1 / 40),
        }
        for k in range(1, 41)
    ]


def _confusion() -> list[list[int]]:
    matrix = np.diag([35, 31, 33, 32, 34, 30, 35, 33, 27, 30])
    for row, column, count in [
        (1, 8, 4),
        (8, 1, 5),
        (3, 9, 4),
        (9, 3, 5),
        (2, 3, 2),
        (5, 9, 6),
        (4, 7, 2),
        (7, 9, 3),
        (8, 5, 3),
    ]:
        matrix[row, column] = count
    return matrix.tolist()


def _complete() -> Record:
    edges = np.linspace(-8, 8, 41).tolist()
    shape = [np.exp(-0.5 * ((np.array(edges[:-1]) - centre) / 1.7) ** 2) for centre in (1.5, -1.0)]
    return {
        "format": 1,
        "version": "0.1.0",
        "created": "2026-11-16T02:00:00Z",
        "method": "dpvd",
        "seed": 0,
        "dataset": {
            "name": "digits",
            "train": 1437,
            "test": 360,
            "classes": 10,
            "checksum": "sha256:9f2c1be07d6a4c53b1f1f3bb0a2f5e6c8d7e9a0b1c2d3e4f5061728394a5b6c7",
            "preprocessing": "pixels divided by 16, then each example scaled to unit length",
        },
        "model": {
            "network": NetworkSpec(64, 1000, 10, "privacy", input_norm=4.0, centred=True).to_dict(),
            "layers": ["0: AdditiveLinear 64→1000", "1: ReLU", "2: AdditiveLinear 1000→10"],
            "parameters": 75010,
        },
        "plan": {
            "examples": 1437,
            "batch_size": 359,
            "steps": 40,
            "noise_multiplier": 6.12808578,  # that of ε = 0.9996
            "clipping": {"mode": "automatic", "clip_norm": 1.0},
            "sampling": "poisson",
            "relation": "add-or-remove",
            "noise": "system",
            "unit": "example",
        },
        "recipe": {
            "learning_rate": 2.0,
            "momentum": 0.9,
            "schedule": "constant",
            "kl_weight": 0.001,
        },
        "guarantee": {
            "epsilon": 0.9996,
            "delta": 1e-05,
            "sentence": _SENTENCE,
            "accountant": "pld",
            "steps": 40,
            "relation": "add-or-remove",
            "unit": "example",
            "public": ["the number of examples (1437)"],
            "tuned": [],
        },
        "history": _history(),
        "test": {
            "accuracy": 0.889,
            "interval": [0.852, 0.918],
            "loss": 0.41,
            "calibration_error": 0.031,
            "reliability": [
                {"confidence": 0.35, "accuracy": 0.30, "count": 12},
                {"confidence": 0.45, "accuracy": 0.48, "count": 21},
                {"confidence": 0.55, "accuracy": 0.61, "count": 34},
                {"confidence": 0.66, "accuracy": 0.72, "count": 41},
                {"confidence": 0.75, "accuracy": 0.83, "count": 52},
                {"confidence": 0.86, "accuracy": 0.93, "count": 81},
                {"confidence": 0.95, "accuracy": 0.99, "count": 119},
            ],
            "confusion": _confusion(),
            "samples": 32,
        },
        "alpha": {
            key: {"edges": edges, "counts": (total * density).astype(int).tolist()}
            for key, total, density in zip(("0", "2"), (6000, 900), shape, strict=True)
        },
        "sparsity": {
            "threshold": 3.0,
            "total": {"weights": 74000, "pruned": 1200, "fraction": 0.016},
            "layers": {
                "0": {"weights": 64000, "pruned": 1100},
                "2": {"weights": 10000, "pruned": 100},
            },
        },
        "seconds": 12.3,
        "environment": {
            "python": "3.11.7",
            "torch": "2.13.0+cpu",
            "platform": "Linux-6.1-x86_64",
            "cpus": 2,
        },
    }


@pytest.fixture(scope="session")
def page() -> str:
    """The page of the complete record, drawn once."""
    return render(RunRecord.from_dict(_complete()))


@pytest.fixture
def record() -> Record:
    """A fresh copy for every test: it may be changed at will."""
    return copy.deepcopy(_complete())


@pytest.fixture
def bare(record: Record) -> Record:
    """A record with nothing in it but what every record has."""
    return record | {
        "plan": {"batch_size": 359, "noise_multiplier": None},
        "guarantee": {"epsilon": None, "delta": None, "steps": 0, "sentence": "No claim."},
        "dataset": {"name": "digits", "train": 1437, "test": 0},
        "recipe": {},
        "test": {},
        "history": [],
        "alpha": {},
        "sparsity": {},
        "environment": {},
    }
