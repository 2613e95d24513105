"""The checks that claims name, each for one kind of sentence.

A check returns None where a protocol says nothing about the claim.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from dpvd.experiments.aggregate import Results, Summary
from dpvd.experiments.catalogue import BUDGETS, NP
from dpvd.experiments.claims import Claims
from dpvd.experiments.noise_levels import noise_levels
from dpvd.experiments.protocols import ExperimentProtocol
from dpvd.experiments.spec import Variant
from dpvd.experiments.verdicts.contrasts import contrast
from dpvd.experiments.verdicts.findings import (
    NOT_RUN,
    Finding,
    Verdict,
    above_zero,
    all_of,
    by_margin,
    compare,
    difference,
    listed,
    not_run,
    points_of,
    within_range,
)

__all__ = ["CHECKS", "Evidence"]


@dataclass(frozen=True)
class Evidence:
    """What a check looks at."""

    results: Results
    claims: Claims
    protocol: ExperimentProtocol
    variant: Variant

    def cell(self, method: str, epsilon: float | None) -> Summary | None:
        budget = None if method == NP else epsilon
        return self.results.cell(self.protocol, method, self.variant, budget)

    def published(self, method: str, epsilon: float | None) -> float:
        """An accuracy that the paper prints."""
        printed = self.claims.accuracy(self.protocol.dataset, method, epsilon)
        assert printed is not None
        return printed


def falls_with_budget(evidence: Evidence, methods: list[str]) -> Finding | None:
    """Less ε, less accuracy."""
    findings = []
    for method in methods:
        for more, less in pairwise(BUDGETS):
            words = f"{method} {more:g} over {less:g}"
            better = evidence.cell(method, more)
            worse = evidence.cell(method, less)
            findings.append(compare(words, better, worse))
    return all_of(findings)


def beats(
    evidence: Evidence, method: str, others: list[str], budgets: list[float]
) -> Finding | None:
    """One method is more accurate than others at every budget."""
    findings = []
    for budget in budgets:
        ours = evidence.cell(method, budget)
        for other in others:
            words = f"over {other} at ε = {budget:g}"
            findings.append(compare(words, ours, evidence.cell(other, budget)))
    return all_of(findings)


def gains_most_at_lowest_budget(evidence: Evidence, method: str, other: str) -> Finding | None:
    """The gap between two methods is widest at the lowest budget, and a gain there."""
    pairs = []
    for budget in BUDGETS:
        with_method = evidence.cell(method, budget)
        without = evidence.cell(other, budget)
        if with_method is None or without is None:
            return not_run()
        pairs.append((with_method, without))
    gains = [difference(ours, theirs) for ours, theirs in pairs]
    lowest = gains[-1]
    findings = [above_zero(f"{points_of(lowest)} at the lowest", lowest)]
    ours, theirs = pairs[-1]
    for budget, (ours_there, theirs_there) in zip(BUDGETS[:-1], pairs[:-1], strict=True):
        more = contrast([ours, theirs_there], [theirs, ours_there])
        words = f"{points_of(more)} more than at {budget:g}"
        findings.append(above_zero(words, more))
    figures = []
    for budget, gain in zip(BUDGETS, gains, strict=True):
        figures.append(f"{points_of(gain)} at {budget:g}")
    finding = all_of(findings)
    return Finding(finding.verdict, ", ".join(figures), finding.reason)


def as_close_as_printed(evidence: Evidence, method: str, budgets: list[float]) -> Finding | None:
    """The gap to ordinary training is at most the printed one."""
    findings = []
    for budget in budgets:
        gap = difference(evidence.cell(NP, None), evidence.cell(method, budget))
        if gap is None:
            return not_run()
        printed = evidence.published(NP, None) - evidence.published(method, budget)
        below = f"{100 * gap.value:.1f} points below NP at ε = {budget:g}"
        words = f"{below}, printed {100 * printed:.1f}"
        findings.append(by_margin(words, printed - gap.value, gap))
    return all_of(findings)


def needs_less_noise(evidence: Evidence) -> Finding | None:
    """zCDP against advanced composition at the protocol's length; needs no training."""
    if evidence.variant is not Variant.AS_PRINTED:
        return None  # the noise is the same
    levels = noise_levels(evidence.protocol, BUDGETS)
    verdict = Verdict.REPRODUCED
    figures = []
    rows = zip(BUDGETS, levels["advanced"], levels["zcdp"], strict=True)
    for budget, advanced, zcdp in rows:
        figures.append(f"z {advanced:.3g} against {zcdp:.3g} at {budget:g}")
        if zcdp >= advanced:
            verdict = Verdict.NOT_REPRODUCED
    return Finding(verdict, ", ".join(figures), "advanced composition against truncated zCDP")


def delta_hardly_matters(evidence: Evidence, within: float) -> Finding | None:
    """Accuracies at all δ lie together."""
    if evidence.variant is not Variant.AS_PRINTED:
        return None
    if evidence.protocol.dataset != "digits":
        return None
    by_delta = evidence.results.deltas(evidence.protocol)
    return within_range(by_delta, within)


def peaks_between(evidence: Evidence, setting: str, low: float, high: float) -> Finding | None:
    """The best value of a setting lies in a range."""
    if not evidence.protocol.sweep_seeds:
        return None
    by_value = evidence.results.sweep(evidence.protocol, evidence.variant, setting)
    unfinished = _unfinished(evidence, setting, by_value)
    if unfinished is not None:
        return unfinished
    inside = [value for value in by_value if low <= value <= high]
    outside = [value for value in by_value if not low <= value <= high]
    if not inside or not outside:
        reason = f"{NOT_RUN} on both sides of the range {low:g} to {high:g}"
        return Finding(Verdict.INCONCLUSIVE, listed(by_value), reason)
    best = max(inside, key=lambda value: by_value[value].mean)
    rival = max(outside, key=lambda value: by_value[value].mean)
    finding = compare(f"{best:g} over {rival:g}", by_value[best], by_value[rival])
    return Finding(finding.verdict, listed(by_value), finding.reason)


def flat_between(
    evidence: Evidence, setting: str, low: float, high: float, within: float
) -> Finding | None:
    """Accuracies in a range of a setting lie together."""
    if not evidence.protocol.sweep_seeds:
        return None
    by_value = evidence.results.sweep(evidence.protocol, evidence.variant, setting)
    unfinished = _unfinished(evidence, setting, by_value)
    if unfinished is not None:
        return unfinished
    inside = {value: summary for value, summary in by_value.items() if low <= value <= high}
    return within_range(inside, within)


def _unfinished(
    evidence: Evidence, setting: str, by_value: Mapping[float, Summary]
) -> Finding | None:
    """What to say of a panel that lacks values, where a peak is none yet; None if it is whole."""
    planned = evidence.results.sweep_values(evidence.protocol, evidence.variant, setting)
    lacking = [f"{value:g}" for value in planned if value not in by_value]
    if not lacking:
        return None
    return Finding(Verdict.INCONCLUSIVE, listed(by_value), f"{NOT_RUN} at {', '.join(lacking)}")


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
"""The checks by name."""
