"""Does it hold? Our figure beside each claim of the paper, and the verdict with its reason.

Two means differ when the 95 % interval of their difference leaves out zero. What has not been run,
or lies closer than that, is inconclusive.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any

from dpvd.experiments.aggregate import Results, Summary
from dpvd.experiments.catalogue import BUDGETS, NP
from dpvd.experiments.claims import Claims, PublishedAccuracy, PublishedNoise
from dpvd.experiments.contrasts import (
    FEWEST,
    OF_A_NORMAL,
    Contrast,
    assumed_spread,
    contrast,
    half_width,
)
from dpvd.experiments.noise_levels import multiplier_of, noise_levels
from dpvd.experiments.protocols import ExperimentProtocol
from dpvd.experiments.spec import Variant
from dpvd.privacy import epsilon as epsilon_of
from dpvd.privacy import poisson_event, round_up

__all__ = ["CHECKS", "NOT_RUN", "Finding", "Judgement", "Verdict", "judge"]

NOT_RUN = "not run"
"""In the reason of a finding that lacks runs."""

ANSWERED, OURS = (
    "DPVD-zCDP",
    "DPVD-PLD",
)  # our recipe is held to what the paper prints for its own best method


class Verdict(StrEnum):
    """What became of a claim."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Finding:
    """A verdict, our figure and why."""

    verdict: Verdict
    figure: str
    reason: str


@dataclass(frozen=True)
class Judgement:
    """A finding about one claim at one protocol in one variant; ``is_accuracy``: the claim is a
    printed accuracy.
    """

    where: str
    claim: str
    protocol: str
    variant: str
    published: str
    finding: Finding
    is_accuracy: bool = False


@dataclass(frozen=True)
class Evidence:
    """What a check looks at."""

    results: Results
    claims: Claims
    protocol: ExperimentProtocol
    variant: Variant

    def cell(self, method: str, epsilon: float | None) -> Summary | None:
        return self.results.cell(
            self.protocol, method, self.variant, None if method == NP else epsilon
        )


def judge(
    results: Results, claims: Claims, protocols: Sequence[ExperimentProtocol]
) -> list[Judgement]:
    """A judgement of every published number and sentence, for each protocol that can speak to it
    and each variant.

    Edge cases: a claim that no run speaks to is there too, as inconclusive.
    """
    found = [_judge_noise(noise) for noise in claims.noise]
    for protocol in protocols:
        for variant in (Variant.AS_PRINTED, Variant.TUNED):
            evidence = Evidence(results, claims, protocol, variant)
            found += [
                _judge_number(evidence, n) for n in claims.numbers if n.dataset == protocol.dataset
            ]
            for claim in claims.sentences:
                finding = CHECKS[claim.check](evidence, **claim.given)
                if finding is not None:
                    found.append(
                        Judgement(claim.where, claim.text, protocol.name, str(variant), "", finding)
                    )
        ours = Evidence(results, claims, protocol, Variant.RECIPE)
        answered = [
            n for n in claims.numbers if (n.dataset, n.method) == (protocol.dataset, ANSWERED)
        ]
        found += [_judge_number(ours, number, by=OURS) for number in answered]
    return found


def _judge_number(
    evidence: Evidence, number: PublishedAccuracy, by: str | None = None
) -> Judgement:
    """A printed accuracy against ours, by the same method or by another."""
    budget = "" if number.epsilon is None else f" at ε = {number.epsilon:g}"
    instead = "" if by is None else f", by {by} instead"
    words = f"{number.method}{budget} on {number.dataset.upper()}{instead}"
    ours = evidence.cell(by or number.method, number.epsilon)
    return Judgement(
        number.where,
        words,
        evidence.protocol.name,
        str(evidence.variant),
        f"{100 * number.published:.2f}",
        _reaches(ours, number.published),
        is_accuracy=True,
    )


def _reaches(ours: Summary | None, published: float) -> Finding:
    if ours is None:
        return _not_run()
    reach = _reach_with_test_set(ours)
    gap = ours.mean - published
    if gap < -reach:
        verdict = Verdict.NOT_REPRODUCED
    elif gap >= 0 or ours.runs >= FEWEST:
        verdict = Verdict.REPRODUCED
    else:  # a wide interval is no merit where it was assumed
        verdict = Verdict.INCONCLUSIVE
    return Finding(verdict, ours.words(), f"{_points(gap)} points, interval ± {100 * reach:.1f}")


def _reach_with_test_set(ours: Summary) -> float:
    """Half-width of the 95 % interval of a mean, over seeds and over test sets of this size."""
    spread = ours.spread
    if spread is None or ours.runs < FEWEST:
        spread = assumed_spread(ours)
    over_seeds = half_width(spread / math.sqrt(ours.runs), ours.runs)
    over_test_sets = OF_A_NORMAL * math.sqrt(ours.mean * (1 - ours.mean) / ours.examples)
    return math.hypot(over_seeds, over_test_sets)


def _judge_noise(noise: PublishedNoise) -> Judgement:
    multiplier = multiplier_of(noise.sigma)
    spent = epsilon_of(poisson_event(multiplier, noise.sampling_prob, noise.steps), 1e-5)
    return Judgement(
        "Section 5",
        f"σ = {noise.sigma:g} keeps {noise.method} within ε = {noise.epsilon:g} on"
        f" {noise.dataset.upper()}",
        "as printed",
        "",
        f"ε = {noise.epsilon:g}",
        Finding(
            Verdict.REPRODUCED if spent <= noise.epsilon else Verdict.NOT_REPRODUCED,
            f"ε = {round_up(spent)}",
            f"by pld: z = 2σ = {multiplier:g}, ν = {noise.sampling_prob:g}, T = {noise.steps}",
        ),
    )


# The checks, each for one kind of sentence. None: the protocol says nothing about it.


def falls_with_budget(evidence: Evidence, methods: list[str]) -> Finding | None:
    """Less ε, less accuracy."""
    pairs = [(m, more, less) for m in methods for more, less in pairwise(BUDGETS)]
    return _all(
        _compare(f"{m} {more:g} over {less:g}", evidence.cell(m, more), evidence.cell(m, less))
        for m, more, less in pairs
    )


def beats(
    evidence: Evidence, method: str, others: list[str], budgets: list[float]
) -> Finding | None:
    """One method is more accurate than others at every budget."""
    return _all(
        _compare(
            f"over {other} at ε = {budget:g}",
            evidence.cell(method, budget),
            evidence.cell(other, budget),
        )
        for budget in budgets
        for other in others
    )


def gains_most_at_lowest_budget(evidence: Evidence, method: str, other: str) -> Finding | None:
    """The gap between two methods is widest at the lowest budget, and a gain there."""
    cells = [(evidence.cell(method, budget), evidence.cell(other, budget)) for budget in BUDGETS]
    known = [(ours, theirs) for ours, theirs in cells if ours is not None and theirs is not None]
    if len(known) < len(BUDGETS):
        return _not_run()
    gains = [contrast([ours], [theirs]) for ours, theirs in known]
    by_budget = zip(BUDGETS, gains, strict=True)
    figure = ", ".join(f"{_points_of(gain)} at {budget:g}" for budget, gain in by_budget)
    ours, theirs = known[-1]
    findings = [_over(f"{_points_of(gains[-1])} at the lowest", gains[-1])]
    for budget, (ours_there, theirs_there) in zip(BUDGETS, known[:-1], strict=False):
        more = contrast([ours, theirs_there], [theirs, ours_there])
        findings.append(_over(f"{_points_of(more)} more than at {budget:g}", more))
    finding = _all(findings)
    return Finding(finding.verdict, figure, finding.reason)


def as_close_as_printed(evidence: Evidence, method: str, budgets: list[float]) -> Finding | None:
    """The gap to ordinary training is at most the printed one."""
    dataset, findings = evidence.protocol.dataset, []
    for budget in budgets:
        plain, private = (
            evidence.claims.accuracy(dataset, m, e) for m, e in ((NP, None), (method, budget))
        )
        assert plain is not None
        assert private is not None
        gap = _gap(evidence.cell(NP, None), evidence.cell(method, budget))
        if gap is None:
            return _not_run()
        printed = plain - private
        below = f"{100 * gap.value:.1f} points below NP at ε = {budget:g}"
        words = f"{below}, printed {100 * printed:.1f}"
        findings.append(_verdict(words, printed - gap.value, gap))
    return _all(findings)


def needs_less_noise(evidence: Evidence) -> Finding | None:
    """zCDP against advanced composition at the protocol's length; needs no training."""
    if evidence.variant is not Variant.AS_PRINTED:
        return None  # the noise is the same
    levels = noise_levels(evidence.protocol, BUDGETS)
    pairs = list(zip(levels["advanced"], levels["zcdp"], strict=True))
    figure = ", ".join(
        f"z {a:.3g} against {z:.3g} at {e:g}" for e, (a, z) in zip(BUDGETS, pairs, strict=True)
    )
    held = all(z < a for a, z in pairs)
    verdict = Verdict.REPRODUCED if held else Verdict.NOT_REPRODUCED
    return Finding(verdict, figure, "advanced composition against truncated zCDP")


def delta_hardly_matters(evidence: Evidence, within: float) -> Finding | None:
    """Accuracies at all δ lie together."""
    if evidence.variant is not Variant.AS_PRINTED or evidence.protocol.dataset != "digits":
        return None
    return _flat(evidence.results.deltas(evidence.protocol), within)


def peaks_between(evidence: Evidence, setting: str, low: float, high: float) -> Finding | None:
    """The best value of a setting lies in a range."""
    if not evidence.protocol.sweep_seeds:
        return None
    points = evidence.results.sweep(evidence.protocol, evidence.variant, setting)
    inside = {v: s for v, s in points.items() if low <= v <= high}
    outside = {v: s for v, s in points.items() if not low <= v <= high}
    if not inside or not outside:
        reason = f"{NOT_RUN} on both sides of the range {low:g} to {high:g}"
        return Finding(Verdict.INCONCLUSIVE, _listed(points), reason)
    best, rival = (max(part, key=lambda v: part[v].mean) for part in (inside, outside))
    finding = _compare(f"{best:g} over {rival:g}", inside[best], outside[rival])
    return Finding(finding.verdict, _listed(points), finding.reason)


def flat_between(
    evidence: Evidence, setting: str, low: float, high: float, within: float
) -> Finding | None:
    """Accuracies in a range of a setting lie together."""
    if not evidence.protocol.sweep_seeds:
        return None
    points = evidence.results.sweep(evidence.protocol, evidence.variant, setting)
    return _flat({v: s for v, s in points.items() if low <= v <= high}, within)


CHECKS: dict[str, Callable[..., Finding | None]] = {
    check.__name__: check
    for check in (
        falls_with_budget,
        beats,
        gains_most_at_lowest_budget,
        as_close_as_printed,
        needs_less_noise,
        delta_hardly_matters,
        peaks_between,
        flat_between,
    )
}
"""The checks that claims name."""


def _flat(points: dict[float, Summary], within: float) -> Finding:
    if len(points) < 2:
        return _not_run()
    ordered = sorted(points.values(), key=lambda summary: summary.mean)
    gap = _gap(ordered[-1], ordered[0])
    if gap is None:
        return _not_run()
    words = f"they differ by {100 * gap.value:.1f} points, allowed {100 * within:g}"
    finding = _verdict(words, within - gap.value, gap)
    return Finding(finding.verdict, _listed(points), finding.reason)


def _compare(words: str, better: Summary | None, worse: Summary | None) -> Finding:
    gap = _gap(better, worse)
    return _over(f"{words}: {_points_of(gap)}", gap)


def _gap(first: Summary | None, second: Summary | None) -> Contrast | None:
    """How far the first mean lies above the second; None if one of them has not been run."""
    if first is None or second is None:
        return None
    return contrast([first], [second])


def _over(words: str, gap: Contrast | None) -> Finding:
    """Whether a difference is above zero."""
    return _not_run() if gap is None else _verdict(words, gap.value, gap)


def _verdict(words: str, margin: float, of: Contrast) -> Finding:
    """Reproduced with a margin clearly above zero, not with one clearly below."""
    if abs(margin) <= of.half_width:
        assumed = " (assumed)" if of.pairs < FEWEST else ""
        reason = f"too close: {words}, standard error {100 * of.error:.1f}{assumed}"
        return Finding(Verdict.INCONCLUSIVE, words, reason)
    return Finding(Verdict.REPRODUCED if margin > 0 else Verdict.NOT_REPRODUCED, words, words)


def _all(findings: Iterable[Finding]) -> Finding:
    """All must hold; one that fails decides."""
    listed = list(findings)
    for verdict in (Verdict.NOT_REPRODUCED, Verdict.INCONCLUSIVE):
        found = [finding for finding in listed if finding.verdict is verdict]
        if found:
            return Finding(
                verdict, _joined(f.figure for f in listed), _joined(f.reason for f in found)
            )
    return Finding(Verdict.REPRODUCED, _joined(f.figure for f in listed), "in every comparison")


def _joined(words: Iterable[Any]) -> str:
    return "; ".join(dict.fromkeys(word for word in words if word))


def _points(share: float) -> str:
    """A difference of accuracies in points, with its sign; one that rounds to zero has none.

    >>> _points(0.0123), _points(-0.0004)
    ('+1.2', '0.0')
    """
    rounded = round(100 * share, 1)
    return f"{rounded:+.1f}" if rounded else "0.0"


def _points_of(gap: Contrast | None) -> str:
    return "not run" if gap is None else _points(gap.value)


def _listed(points: dict[float, Summary]) -> str:
    return ", ".join(f"{value:g}: {summary.words()}" for value, summary in points.items())


def _not_run() -> Finding:
    return Finding(Verdict.INCONCLUSIVE, "", NOT_RUN)
