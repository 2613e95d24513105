"""Sets of classes that hold the true one with a chosen probability, calibrated privately.

Some examples are kept out of training. The conformal score of an example is how unlikely the model
finds its class. How many of the kept examples have a score below each point of a grid is released
once, with noise, after training; from that, `predict` finds the score that a share of new examples
stays below.
"""

import hashlib
import hmac
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dpvd.data import Dataset
from dpvd.errors import DpvdError, in_unit_interval, is_finite_number
from dpvd.plan import PrivacyPlan
from dpvd.privacy import AccountantName, noise_multiplier_for, poisson_event
from dpvd.runs.metrics import CHUNK
from dpvd.statistics import (
    Charge,
    ScoreCounts,
    coverage_lost,
    release_plan,
    release_score_counts,
    score_count_std,
)

__all__ = [
    "Calibration",
    "PredictionSets",
    "class_scores",
    "keep_for_calibration",
    "planned_release",
    "release_sets",
]

NAME = "scores for prediction sets"

_LOWEST = -12.0  # score of a class that the model gives all but e⁻¹² of the probability
_PER_UNIT = 32  # points of the grid per unit of the score
_POINTS = 640
_MOST_LOST = 0.1  # coverage; sets that may lose more are worth no budget


@dataclass(frozen=True, eq=False)
class Calibration:
    """Examples that are kept out of training, and the plan of the one release made of them."""

    x: Tensor
    y: Tensor
    plan: PrivacyPlan

    @property
    def lost(self) -> float:
        """By how much noise may lower the coverage."""
        std = score_count_std(self.plan, _POINTS)
        return coverage_lost(self.plan.examples, std, _POINTS)

    def check(self) -> None:
        """Raise if noise would drown the counts."""
        if self.lost > _MOST_LOST:
            raise DpvdError(
                f"prediction sets from {len(self.y)} examples may lose {self.lost:.2f} of their"
                f" coverage to noise, and {_MOST_LOST:g} is allowed: use more data or a larger"
                " epsilon, keep more with --prediction-sets, or leave it out"
            )


def keep_for_calibration(
    dataset: Dataset, share: float, key: bytes | None
) -> tuple[Dataset, Tensor, Tensor]:
    """Part a data set into one to train on, and inputs and labels to calibrate with.

    Guarantees:
        Where an example goes follows from its own input and the key alone. One more example in the
        data joins one of the parts and moves no other. The same input is never in both.

    Args:
        dataset: whose training part is split.
        share: about how much of it is kept.
        key: secret of the run; None for public data.

    Raises:
        DpvdError: if nothing is left on one side.
    """
    secret = b"public data" if key is None else key
    inputs = dataset.train_x.contiguous().flatten(1).numpy()
    limit = int(share * 2**64)
    kept = torch.tensor([_coin(secret, row.tobytes()) < limit for row in inputs])
    if kept.all() or not kept.any():
        raise DpvdError(f"{len(kept)} examples are too few to keep {share:g} of them for sets")
    train = replace(dataset, train_x=dataset.train_x[~kept], train_y=dataset.train_y[~kept])
    return train, dataset.train_x[kept], dataset.train_y[kept]


def _coin(key: bytes, content: bytes) -> int:
    return int.from_bytes(hmac.digest(key, b"calibration" + content, hashlib.sha256)[:8], "little")


def planned_release(
    base: PrivacyPlan,
    examples: int,
    share: float,
    *,
    epsilon: float,
    delta: float,
    accountant: AccountantName,
) -> PrivacyPlan:
    """The plan of the release, for a share of the budget.

    An example is in one part only, so that the larger of two costs would bound both. All the same
    the release is composed with training as if everybody were in both: no ε is stated too small.

    Args:
        base: of training; relation, noise and declarations are the same.
        examples: that are kept.
        share: of 1/z², z the noise multiplier of one release with the whole budget.
        epsilon: the whole budget.
        delta: δ of the budget.
        accountant: who adds up.
    """
    whole = noise_multiplier_for(
        epsilon,
        delta,
        lambda z: poisson_event(z, 1.0, 1),
        accountant=accountant,
        relation=base.relation,
    )
    plan = release_plan(
        replace(base, examples=examples, batch_size=examples, steps=1, bands=1),
        name=NAME,
        noise_multiplier=whole / math.sqrt(share),
        reach=1.0,
    )
    return replace(plan, initial_weights=f"none: {NAME} were released after training")


@torch.no_grad()
def class_scores(model: nn.Module, inputs: Tensor) -> Tensor:
    """For each class, the log odds that it is another: float64 [n, classes].

    The weights are the means. Samples of them would come from one stream for all examples, and
    one example more would change the scores of those behind it.
    """
    model.eval()
    logits = torch.cat([model(part) for part in torch.split(inputs, CHUNK)]).double()
    chances = logits.log_softmax(1)
    return torch.log1p(-chances.exp().clamp_max(1 - 1e-15)) - chances


def release_sets(
    model: nn.Module, inputs: Tensor, kept: Calibration, charge: Charge
) -> "PredictionSets":
    """Release the counts of scores of the kept examples.

    Args:
        model: trained without these examples.
        inputs: of the kept examples, as the model takes them.
        kept: their labels, and the plan.
        charge: pays for the plan.
    """
    scores = class_scores(model, inputs).gather(1, kept.y[:, None]).squeeze(1)
    places = (scores - _LOWEST) * _PER_UNIT
    counts = release_score_counts(places, _POINTS, kept.plan, purpose=NAME, charge=charge)
    return PredictionSets(counts)


@dataclass(frozen=True, eq=False)
class PredictionSets:
    """What was released for prediction sets, and the sets that follow from it."""

    counts: ScoreCounts

    def lost(self) -> float:
        """By how much noise may lower the coverage."""
        return coverage_lost(self.counts.people, self.counts.std, len(self.counts.counts))

    def sets(self, scores: Tensor, coverage: float) -> Tensor:
        """Which classes are in the sets.

        Guarantees:
            For a new example that is exchangeable with those kept for calibration, the true class
            is in its set with a probability of at least ``coverage - lost()``.

        Edge cases:
            A set may be empty: the model knows of no class that is likely enough.

        Args:
            scores: of `class_scores`, [n, classes].
            coverage: strictly between 0 and 1.

        Returns:
            bool [n, classes].
        """
        in_unit_interval(coverage=coverage)
        point = self.counts.point_for(coverage)
        if point == len(self.counts.counts):
            return torch.ones_like(scores, dtype=torch.bool)
        return scores <= _LOWEST + point / _PER_UNIT

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for the record."""
        return {
            "score": "log odds against the class",
            "lowest": _LOWEST,
            "per_unit": _PER_UNIT,
            "examples": self.counts.people,
            "noise_std": self.counts.std,
            "coverage_lost": self.lost(),
            "counts": self.counts.counts.tolist(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "PredictionSets":
        """Read what `to_dict` wrote.

        Raises:
            DpvdError: if it is damaged, or of another version.
        """
        counts = values.get("counts")
        people = values.get("examples")
        std = values.get("noise_std")
        is_grid = values.get("lowest") == _LOWEST and values.get("per_unit") == _PER_UNIT
        are_counts = isinstance(counts, list) and all(is_finite_number(n) for n in counts)
        if not is_grid or not are_counts or not counts or len(counts) != _POINTS:
            raise DpvdError("the prediction sets of the record are damaged or of another version")
        if not isinstance(people, int) or people < 1 or not is_finite_number(std):
            raise DpvdError("the prediction sets of the record are damaged")
        return cls(ScoreCounts(torch.tensor(counts, dtype=torch.float64), float(std), people))
