"""White box: canaries in every noisy step of the engine, and everything it releases looked at.

The engine is the one that trains: `PrivateStep` with the plan's sampler, clipping and noise source.
Only data and model are made for the purpose, so that a canary's gradient is as long and as
recognisable as the claim allows.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dpvd.audit.bounds import Array, Scores, epsilon_by_threshold, epsilon_of_gaussian_scores
from dpvd.audit.family import NoiseFamily
from dpvd.audit.result import AuditResult
from dpvd.errors import DpvdError, in_unit_interval, positive_int
from dpvd.plan import NoiseKind, PrivacyPlan
from dpvd.privacy import Relation, SamplingKind
from dpvd.training import PrivateStep

__all__ = ["audit_engine", "canary_scores", "default_trials"]

MOST_CANARIES = 50_000  # in one run
_STEPS = 20_000  # of all runs together, by default
_MOST_TRIALS = 1_000_000
_LAYERS = 2  # so that clipping by layer has something to clip apart
_LENGTH = 1000.0  # of a canary's gradient before clipping, in clip norms

Bools = npt.NDArray[np.bool_]


class _Coordinates(nn.Module):
    """Two tables of one number for each canary: its gradient touches these and no others."""

    def __init__(self, canaries: int) -> None:
        super().__init__()
        tables = [nn.Embedding(canaries, 1, dtype=torch.float64) for _ in range(_LAYERS)]
        self.tables = nn.ModuleList(tables)
        for table in tables:
            nn.init.zeros_(table.weight)

    def forward(self, numbers: Tensor) -> Tensor:
        values = torch.stack([table(numbers)[:, 0] for table in self.tables])  # [2, B]
        return values.sum(dim=0)

    @torch.no_grad()
    def positions(self) -> Array:
        """[canaries]: the weights along each canary's direction, (1, 1)/√2 in its coordinates."""
        weights = torch.cat(list(self.parameters()), dim=1)  # [canaries, 2]
        along: Array = (weights.sum(dim=1) / _LAYERS**0.5).numpy()
        return along


def _linear_loss(model: nn.Module, numbers: Tensor, pulls: Tensor) -> Tensor:
    """Its gradient is the pull along the example's coordinates, wherever the weights are."""
    loss: Tensor = -pulls * model(numbers)
    return loss


def audit_engine(
    plan: PrivacyPlan,
    *,
    delta: float,
    trials: int,
    confidence: float,
    on_run: Callable[[int, int], None] | None = None,
) -> AuditResult:
    """Measure from below what the engine spends when it executes this plan.

    A plan without sampling has normal scores, which are bounded as such; one with sampling is
    judged by likelihood ratios and a threshold.

    Guarantees: a true claim is called violated with probability at most 1 - ``confidence``.

    Args:
        plan: with its noise; seeded noise is replaced by that of the system, or all runs would
            release the same.
        delta: δ of claim and bound.
        trials: canaries to judge at least, half of them in the data.
        confidence: of the verdict.
        on_run: called after each run with the number of trials made, and of all.

    Raises:
        DpvdError: if the plan adds no noise or correlated noise, or a number is out of range.
    """
    in_unit_interval(delta=delta, confidence=confidence)
    positive_int(trials=trials)
    if plan.bands > 1:
        raise DpvdError(
            "correlated noise (bands above 1) has no audit yet: take a plan with bands=1"
        )
    family = NoiseFamily(plan)
    started = time.monotonic()
    inside: list[Array] = []
    outside: list[Array] = []
    rng = np.random.default_rng()
    made = 0
    while made < trials:
        scores, included = canary_scores(plan, rng)
        inside.append(scores[included])
        outside.append(scores[~included])
        made += len(scores)
        if on_run is not None:
            on_run(min(made, trials), trials)
    scores_of_all = Scores(np.concatenate(inside), np.concatenate(outside))
    if family.is_gaussian:
        bound = "normal scores, exact for their number"
        lower = epsilon_of_gaussian_scores(scores_of_all, family, delta, confidence)
    else:
        bound = "likelihood ratios, threshold chosen on other scores"
        lower = epsilon_by_threshold(scores_of_all, family, delta, confidence)
    return AuditResult(
        attack="white box: canary gradients in every noisy step",
        bound=bound,
        claimed_epsilon=plan.epsilon(delta),
        delta=delta,
        lower_bound=lower,
        confidence=confidence,
        trials=made,
        seconds=time.monotonic() - started,
        details={"runs": len(inside), "steps_per_run": plan.steps},
    )


def default_trials(plan: PrivacyPlan) -> int:
    """As many canaries as some 20,000 steps have room for, two runs of them at least."""
    runs = max(2, _STEPS // plan.steps)
    return min(_MOST_TRIALS, runs * _canaries(plan))


def _canaries(plan: PrivacyPlan) -> int:
    """How many one run has room for; one, where being drawn or not ties examples together.

    An even number otherwise: without half of an odd one, data would be too short for the plan.
    """
    if plan.sampling is not SamplingKind.POISSON:
        return 1
    return max(1, min(plan.examples, MOST_CANARIES) // 2 * 2)


def canary_scores(plan: PrivacyPlan, rng: np.random.Generator) -> tuple[Array, Bools]:
    """Train once under the plan, with about half of the canaries, and score each of them.

    Canary i has a coordinate of the weights of its own, in which no other example has a gradient.
    What is released there is the canary's share plus the engine's noise. The noise of different
    coordinates is drawn independently, and under Poisson sampling so is who takes part: canaries of
    one run are as good as canaries of different runs. With samples of fixed size they are not, and
    a run has one canary.

    Under add-or-remove a canary that is not included is not in the data. Under replace-one its
    gradient points the other way.

    Returns:
        The scores, [canaries], larger for canaries that seem included; and whether they were.
    """
    if plan.noise is NoiseKind.SEEDED:
        plan = replace(plan, noise=NoiseKind.SYSTEM, seed=None)
    canaries = _canaries(plan)
    included = rng.permutation(np.arange(canaries) + rng.integers(2)) % 2 == 0
    numbers, pulls = _examples(plan, included)
    if plan.relation is Relation.ADD_OR_REMOVE:
        if plan.sampling is not SamplingKind.POISSON:
            raise DpvdError("samples of fixed size have no neighbours by add-or-remove")
        plan = replace(plan, secret_size=True)  # the same account; the data may be shorter
    model = _Coordinates(canaries)
    # With η = S a step adds the noisy sum itself to the weights.
    optimizer = torch.optim.SGD(model.parameters(), lr=float(plan.batch_size))
    step = PrivateStep(model, _linear_loss, plan, optimizer)
    scores: Array = np.zeros(canaries)
    before = model.positions()
    for batch in plan.batches((numbers, pulls)):
        sensitivity = step.clipper.clipping.sensitivity(plan.relation, _LAYERS)
        step(batch)
        after = model.positions()
        scores += _step_scores(plan, (after - before) / sensitivity)
        before = after
    return scores, included


def _examples(plan: PrivacyPlan, included: Bools) -> tuple[Tensor, Tensor]:
    """Numbers and pulls of all examples: the canaries in the data, and others without gradient."""
    length = _LENGTH * plan.clipping.clip_norm
    numbers = np.arange(len(included))
    pulls = np.where(included, length, -length)
    if plan.relation is Relation.ADD_OR_REMOVE:
        numbers, pulls = numbers[included], pulls[included]
    others = plan.examples - len(included)
    numbers = np.concatenate([numbers, np.zeros(others, dtype=numbers.dtype)])
    pulls = np.concatenate([pulls, np.zeros(others)])
    return torch.from_numpy(numbers), torch.from_numpy(pulls)


def _step_scores(plan: PrivacyPlan, released: Array) -> Array:
    """What one step says of each canary.

    Released values are in units of the sensitivity: noise of standard deviation z around 1 or 0
    (add-or-remove), 1/2 or -1/2 (replace-one) for canaries that took part. If all take part, the
    sum of the values over the steps holds all there is to know. Otherwise it is the sum of the
    logarithms of likelihood ratios,

        log((1 - q) + q e^{(x - 1/2)/z²})                           add-or-remove,
        the same of (x - 1/4)/(2z²), minus that of (-x - 1/4)/(2z²)    replace-one.
    """
    q = plan.sampling_prob
    if q == 1:
        return released
    assert plan.noise_multiplier is not None  # a family was made of the plan
    variance = plan.noise_multiplier**2
    if plan.relation is Relation.ADD_OR_REMOVE:
        return _log_mixture(q, (released - 0.5) / variance)
    with_canary = _log_mixture(q, (released - 0.25) / (2 * variance))
    with_other = _log_mixture(q, (-released - 0.25) / (2 * variance))
    return with_canary - with_other


def _log_mixture(q: float, exponents: Array) -> Array:
    """log((1 - q) + q e^x), without overflow."""
    mixture: Array = np.logaddexp(np.log1p(-q), np.log(q) + exponents)
    return mixture
