"""Our figure beside each claim of the paper, and the verdict with its reason."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpvd.experiments.aggregate import Results, Summary
from dpvd.experiments.catalogue import DELTA
from dpvd.experiments.claims import Claim, Claims, PublishedAccuracy, PublishedNoise
from dpvd.experiments.noise_levels import multiplier_of
from dpvd.experiments.protocols import ExperimentProtocol
from dpvd.experiments.spec import Variant
from dpvd.experiments.verdicts.checks import CHECKS, Evidence
from dpvd.experiments.verdicts.contrasts import FEWEST, OF_A_NORMAL, assumed_spread, half_width
from dpvd.experiments.verdicts.findings import Finding, Verdict, not_run, points
from dpvd.privacy import epsilon as epsilon_of
from dpvd.privacy import poisson_event, round_up

__all__ = ["Judgement", "judge"]

# Our recipe is compared with what the paper prints for its own best method.
ANSWERED = "DPVD-zCDP"
OURS = "DPVD-PLD"


@dataclass(frozen=True)
class Judgement:
    """A finding about one claim.

    Args:
        where: in the paper.
        claim: in words.
        protocol, variant: at which it was judged; empty and None where neither plays a part.
        published: the printed value; empty for a sentence.
        finding: verdict, our figure and reason.
        is_accuracy: whether the claim is a printed accuracy.
    """

    where: str
    claim: str
    protocol: str
    variant: Variant | None
    published: str
    finding: Finding
    is_accuracy: bool = False

    @property
    def variant_words(self) -> str:
        if self.variant is None:
            return ""
        return self.variant.words


def judge(
    results: Results, claims: Claims, protocols: Sequence[ExperimentProtocol]
) -> list[Judgement]:
    """A judgement of every published number and sentence, at each protocol and in each variant.

    Edge cases: a claim that no run speaks to is there too, as inconclusive; at a protocol that
        cannot speak to it at all there is none.
    """
    found = [_judge_noise(noise) for noise in claims.noise]
    for protocol in protocols:
        numbers = [number for number in claims.numbers if number.dataset == protocol.dataset]
        for variant in (Variant.AS_PRINTED, Variant.TUNED):
            evidence = Evidence(results, claims, protocol, variant)
            found += [_judge_number(evidence, number) for number in numbers]
            for claim in claims.sentences:
                found += _judge_sentence(evidence, claim)
        ours = Evidence(results, claims, protocol, Variant.RECIPE)
        answered = [number for number in numbers if number.method == ANSWERED]
        found += [_judge_number(ours, number, by=OURS) for number in answered]
    return found


def _judge_sentence(evidence: Evidence, claim: Claim) -> list[Judgement]:
    """At most one judgement."""
    check = CHECKS[claim.check]
    finding = check(evidence, **claim.given)
    if finding is None:
        return []
    protocol = evidence.protocol.name
    return [Judgement(claim.where, claim.text, protocol, evidence.variant, "", finding)]


def _judge_number(
    evidence: Evidence, number: PublishedAccuracy, by: str | None = None
) -> Judgement:
    """A printed accuracy against ours, by the same method or by another."""
    budget = "" if number.epsilon is None else f" at ε = {number.epsilon:g}"
    instead = "" if by is None else f", by {by} instead"
    ours = evidence.cell(by or number.method, number.epsilon)
    return Judgement(
        where=number.where,
        claim=f"{number.method}{budget} on {number.dataset.upper()}{instead}",
        protocol=evidence.protocol.name,
        variant=evidence.variant,
        published=f"{100 * number.published:.2f}",
        finding=_reaches(ours, number.published),
        is_accuracy=True,
    )


def _reaches(ours: Summary | None, published: float) -> Finding:
    """Whether our mean is as high as a printed accuracy, or not clearly below it."""
    if ours is None:
        return not_run()
    reach = _reach_with_test_set(ours)
    gap = ours.mean - published
    if gap < -reach:
        verdict = Verdict.NOT_REPRODUCED
    elif gap >= 0 or ours.runs >= FEWEST:
        verdict = Verdict.REPRODUCED
    else:  # a wide interval is no merit where it was assumed
        verdict = Verdict.INCONCLUSIVE
    return Finding(verdict, ours.words(), f"{points(gap)} points, interval ± {100 * reach:.1f}")


def _reach_with_test_set(ours: Summary) -> float:
    """Half-width of the 95 % interval of a mean, over seeds and over test sets of this size."""
    spread = ours.spread
    if spread is None or ours.runs < FEWEST:
        spread = assumed_spread(ours)
    over_seeds = half_width(spread / math.sqrt(ours.runs), ours.runs)
    sampling_error = math.sqrt(ours.mean * (1 - ours.mean) / ours.examples)
    return math.hypot(over_seeds, OF_A_NORMAL * sampling_error)


def _judge_noise(noise: PublishedNoise) -> Judgement:
    """A published σ, by the ε that it really spends. Nothing is run for it."""
    multiplier = multiplier_of(noise.sigma)
    event = poisson_event(multiplier, noise.sampling_prob, noise.steps)
    spent = epsilon_of(event, DELTA)
    kept = spent <= noise.epsilon
    run = f"z = 2σ = {multiplier:g}, ν = {noise.sampling_prob:g}, T = {noise.steps}"
    return Judgement(
        where="Section 5",
        claim=(
            f"σ = {noise.sigma:g} keeps {noise.method} within ε = {noise.epsilon:g} on"
            f" {noise.dataset.upper()}"
        ),
        protocol="",
        variant=None,
        published=f"ε = {noise.epsilon:g}",
        finding=Finding(
            verdict=Verdict.REPRODUCED if kept else Verdict.NOT_REPRODUCED,
            figure=f"ε = {round_up(spent)}",
            reason=f"by pld: {run}",
        ),
    )
