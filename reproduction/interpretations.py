"""What each way of interpretation the paper leads to, measured on DIGITS: ``python -m
reproduction.interpretations``.

Trains the paper's network for the paper's 100 epochs with Algorithm 1 read in several ways,
computes what they cost in privacy, and writes ``interpretations.json`` beside the records of the
reproduction, from which it takes the tuned learning rates and the runs without privacy. A quarter
of an hour on one core; a point that is there already is kept, unless it was measured with other
settings. ``python -m reproduction.page`` then fills in the page.
"""

import argparse
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import torch
from rich.progress import track

from dpvd.data import load
from dpvd.errors import DpvdError
from dpvd.experiments import Folder, Results, TuningCell, Variant, load_claims
from dpvd.experiments.catalogue import BUDGETS, DELTA, make_spec
from dpvd.experiments.noise_levels import EXAMPLES
from dpvd.experiments.prepare import prepare
from dpvd.experiments.protocols import DIGITS_100, MNIST_200, ExperimentProtocol
from dpvd.files import write_atomically
from dpvd.plan import PrivacyPlan
from dpvd.privacy.bounds import gaussian_epsilon
from dpvd.runs import PreparedRun
from reproduction.algorithm1_variants import KL, Interpretation, Outcome, learning_rates, train

__all__ = ["FILE", "measure"]

FILE = "interpretations.json"
SEEDS = range(5)
NEIGHBOURS = range(8)  # rows that are left out, one at a time
CLIP_NORM, LAYERS = 2.0, 2
SENSITIVITY = math.sqrt(LAYERS) * CLIP_NORM
PUBLISHED_SIGMA = 2.97  # for ε = 1 on DIGITS with zCDP
PRINTED = (DIGITS_100.learning_rate, 1.0)

Schedule = tuple[float, float]
"""η₀ and γ."""


def measure(folder: Folder, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All seven points.

    Args:
        folder: the reproduction to compare with.
        known: what was measured before; its points are kept if the settings were the same.

    Raises:
        DpvdError: if the reproduction lacks the choices or the runs that are compared with.
    """
    tuned = {epsilon: _tuned(folder, epsilon) for epsilon in BUDGETS}
    schedules = {"printed": PRINTED, "tuned": tuned[1.0]}
    parts: dict[str, Callable[[], Any]] = {
        "scale": lambda: _scale(schedules["printed"]),
        "carried": lambda: _carried(schedules["printed"]),
        "tied": lambda: _tied(schedules),
        "layers": _layers,
        "kl": lambda: _kl(schedules),
        "schedule": lambda: _schedule(folder),
        "alpha": lambda: _alpha(tuned),
    }
    about = {
        "protocol": DIGITS_100.words,
        "seeds": len(SEEDS),
        "schedules": {name: list(schedule) for name, schedule in schedules.items()},
        "delta": DELTA,
    }
    kept = known if known is not None and known["about"] == about else {}
    missing = {name: part for name, part in parts.items() if name not in kept}
    found = {
        name: part() for name, part in track(missing.items(), "interpretations", transient=True)
    }
    return {"about": about} | {name: kept[name] if name in kept else found[name] for name in parts}


def _tuned(folder: Folder, epsilon: float) -> Schedule:
    chosen = folder.tuning.choices().get(TuningCell(DIGITS_100.name, "DPVD-zCDP", epsilon))
    if chosen is None:
        remedy = "run dpvd reproduce table1 --dataset digits first"
        raise DpvdError(f"{folder.path} has no tuned learning rate: {remedy}")
    return chosen


def _scale(schedule: Schedule) -> dict[str, Any]:
    """Point 1: the printed noise on every weight in every step, or on the sum."""
    noise = 2 * CLIP_NORM * PUBLISHED_SIGMA
    plan, base = _run(0).plan, Interpretation(*schedule)
    same = replace(plan, noise_multiplier=noise / SENSITIVITY)
    initial = _run(0).network.build(0)
    return {
        "noise": noise,
        "steps": plan.steps,
        "after_all_steps": noise * math.sqrt(plan.steps),
        "initial_weight": next(initial.parameters()).square().mean().sqrt().item(),
        "on_weights": _accuracy(replace(base, weight_noise=noise)),
        "on_sum": _accuracy(replace(base, sum_noise=noise)),
        "on_sum_epsilon": same.epsilon(DELTA),
        "for_one": _accuracy(replace(base, sum_noise=_noise_for_one())),
        "for_one_noise": _noise_for_one(),
    }


def _carried(schedule: Schedule) -> dict[str, Any]:
    """Point 2: φ carried on without noise, which is added to what is released."""
    printed = 2 * CLIP_NORM * PUBLISHED_SIGMA
    small = Interpretation(*schedule, sum_noise=_noise_for_one(), carried=False)
    whole = _outcome(small, 0)
    distances = [_distance(whole, train(_run(0), small, without=row)) for row in NEIGHBOURS]
    travelled = sum(learning_rates(_run(0), small))
    reach = (
        2 * SENSITIVITY * travelled
    )  # from then on every gradient may differ, by at most twice its bound
    last = whole.zetas[1]
    return {
        "neighbours": len(distances),
        "distance": max(distances),
        "distance_median": median(distances),
        "reach": reach,
        "small": {
            "noise": last,
            "accuracy": _accuracy(small),
            "epsilon": float(gaussian_epsilon(last / max(distances), DELTA)),
        },
        "printed": {
            "noise": printed,
            "accuracy": _accuracy(replace(small, sum_noise=0.0, weight_noise=printed)),
            "epsilon": float(gaussian_epsilon(printed / max(distances), DELTA)),
            "epsilon_reach": float(gaussian_epsilon(printed / reach, DELTA)),
        },
    }


def _tied(schedules: dict[str, Schedule]) -> dict[str, Any]:
    """Point 3: the size of ζ, and what sampling with it in the forward pass does."""
    found = {}
    for name, schedule in schedules.items():
        without = Interpretation(*schedule, sum_noise=_noise_for_one())
        sampled = replace(without, forward=True)
        outcome = _outcome(sampled, 0)
        first, last = outcome.zetas
        found[name] = {
            "first": first,
            "last": last,
            "together": math.sqrt(
                sum(
                    (rate * _noise_for_one() / 100) ** 2
                    for rate in learning_rates(_run(0), without)
                )
            ),
            "weights": [weight.square().mean().sqrt().item() for weight in outcome.weights[::2]],
            "noise_larger": [
                (weight.abs() < last).double().mean().item() for weight in outcome.weights[::2]
            ],
            "without": _accuracy(without),
            "sampled": _accuracy(sampled),
        }
    return found


def _layers() -> list[dict[str, Any]]:
    """Point 4: noise calibrated for one clip, in a network where two layers are clipped."""
    rows = []
    for protocol in (MNIST_200, DIGITS_100):
        for claimed in BUDGETS:
            plan = _plan(protocol).calibrate(claimed, DELTA)
            assert plan.noise_multiplier is not None
            forgotten = replace(plan, noise_multiplier=plan.noise_multiplier / math.sqrt(LAYERS))
            rows.append(
                {"dataset": protocol.dataset, "claimed": claimed, "true": forgotten.epsilon(DELTA)}
            )
    return rows


def _kl(schedules: dict[str, Schedule]) -> dict[str, Any]:
    """Point 5: the KL term outside the clip, inside it, or left out."""
    found: dict[str, Any] = {}
    for name, schedule in schedules.items():
        for kl in KL:
            interpretation = Interpretation(
                *schedule, sum_noise=_noise_for_one(), forward=True, kl=kl
            )
            first = _outcome(interpretation, 0)
            found.setdefault(name, {})[str(kl)] = {
                "accuracy": _accuracy(interpretation),
                "kl_gradient": first.kl_gradient,
                "clipped": first.clipped,
                "factor": first.factor,
            }
    return found


def _alpha(tuned: Mapping[float, Schedule]) -> list[dict[str, Any]]:
    """Point 7: the gradient with α held, where the KL term drops out, and with ζ held."""
    rows = []
    for epsilon in BUDGETS:
        for name, schedule in (("printed", PRINTED), ("tuned", tuned[epsilon])):
            held = Interpretation(
                *schedule, sum_noise=_noise_for(epsilon), forward=True, kl=KL.NONE
            )
            pulled = replace(held, kl=KL.OUTSIDE)
            rows.append(
                {
                    "epsilon": epsilon,
                    "schedule": name,
                    "rate": schedule[0],
                    "gamma": schedule[1],
                    "alpha_held": _accuracy(held, epsilon),
                    "zeta_held": _accuracy(pulled, epsilon),
                    "kl_gradient": _outcome(pulled, 0, epsilon).kl_gradient,
                }
            )
    return rows


def _schedule(folder: Folder) -> dict[str, Any]:
    """Point 6: the printed schedule without privacy, from the records of the reproduction."""
    results = Results(folder.records_of([DIGITS_100]), folder.tuning.choices())
    found: dict[str, Any] = {"published": load_claims().accuracy("digits", "NP", None)}
    for variant in (Variant.AS_PRINTED, Variant.TUNED):
        cell = results.cell(DIGITS_100, "NP", variant, None)
        if cell is None:
            raise DpvdError(
                f"{folder.path} has no runs without privacy: run dpvd reproduce table1 --dataset"
                " digits first"
            )
        found[str(variant)] = {"mean": cell.mean, "spread": cell.spread, "runs": cell.runs}
    return found


@cache
def _run(seed: int, epsilon: float = 1.0) -> PreparedRun:
    return prepare(
        make_spec(DIGITS_100, "DPVD-PLD", Variant.AS_PRINTED, epsilon, seed), load("digits")
    )


@cache
def _outcome(interpretation: Interpretation, seed: int, epsilon: float = 1.0) -> Outcome:
    return train(_run(seed, epsilon), interpretation)


def _accuracy(interpretation: Interpretation, epsilon: float = 1.0) -> dict[str, Any]:
    found = [_outcome(interpretation, seed, epsilon).accuracy for seed in SEEDS]
    return {"mean": fmean(found), "spread": stdev(found), "runs": len(found)}


def _noise_for_one() -> float:
    """zΔ for ε = 1 by pld."""
    return _noise_for(1.0)


def _noise_for(epsilon: float) -> float:
    return _run(0, epsilon).plan.noise_std(SENSITIVITY)


def _plan(protocol: ExperimentProtocol) -> PrivacyPlan:
    examples = EXAMPLES[protocol.dataset]
    return PrivacyPlan(
        examples=examples, batch_size=protocol.batch_size, epochs=float(protocol.epochs)
    )


def _distance(first: Outcome, second: Outcome) -> float:
    squares = [
        (a - b).double().square().sum() for a, b in zip(first.weights, second.weights, strict=True)
    ]
    return torch.stack(squares).sum().sqrt().item()


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measure what each interpretation of the paper leads to."
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path("reproduction"))
    folder = Folder(parser.parse_args().folder)
    torch.set_grad_enabled(False)
    path = folder.path / FILE
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    text = json.dumps(measure(folder, known), indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(path, (text + "\n").encode())


if __name__ == "__main__":
    main()
