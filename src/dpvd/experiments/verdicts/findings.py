"""Verdicts, and how a comparison of means comes to one.

Two means differ when the 95 % interval of their difference leaves out zero. What has not been run,
or lies closer than that, is inconclusive.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from dpvd.experiments.aggregate import Summary
from dpvd.experiments.verdicts.contrasts import FEWEST, Contrast, contrast

__all__ = [
    "NOT_RUN",
    "Finding",
    "Verdict",
    "above_zero",
    "all_of",
    "by_margin",
    "compare",
    "difference",
    "listed",
    "not_run",
    "points",
    "points_of",
    "within_range",
]

NOT_RUN = "not run"
"""In the reason of a finding that lacks runs."""


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


def not_run() -> Finding:
    return Finding(Verdict.INCONCLUSIVE, "", NOT_RUN)


def difference(first: Summary | None, second: Summary | None) -> Contrast | None:
    """How far the first mean lies above the second; None if one of them has not been run."""
    if first is None or second is None:
        return None
    return contrast([first], [second])


def compare(words: str, better: Summary | None, worse: Summary | None) -> Finding:
    """Whether one mean is above another."""
    gap = difference(better, worse)
    return above_zero(f"{words}: {points_of(gap)}", gap)


def above_zero(words: str, gap: Contrast | None) -> Finding:
    """Whether a difference is above zero."""
    if gap is None:
        return not_run()
    return by_margin(words, gap.value, gap)


def by_margin(words: str, margin: float, gap: Contrast) -> Finding:
    """Reproduced with a margin clearly above zero, not reproduced with one clearly below.

    Args:
        words: our figure.
        margin: how far on the right side it is.
        gap: the difference that it was taken from.
    """
    if abs(margin) <= gap.half_width:
        assumed = " (assumed)" if gap.pairs < FEWEST else ""
        reason = f"too close: {words}, standard error {100 * gap.error:.1f}{assumed}"
        return Finding(Verdict.INCONCLUSIVE, words, reason)
    if margin > 0:
        return Finding(Verdict.REPRODUCED, words, words)
    return Finding(Verdict.NOT_REPRODUCED, words, words)


def within_range(by_value: Mapping[float, Summary], within: float) -> Finding:
    """Whether the largest and the smallest of several means differ by no more than allowed."""
    if len(by_value) < 2:
        return not_run()
    ordered = sorted(by_value.values(), key=lambda summary: summary.mean)
    gap = difference(ordered[-1], ordered[0])
    if gap is None:
        return not_run()
    words = f"they differ by {100 * gap.value:.1f} points, allowed {100 * within:g}"
    finding = by_margin(words, within - gap.value, gap)
    return Finding(finding.verdict, listed(by_value), finding.reason)


def all_of(findings: Iterable[Finding]) -> Finding:
    """All must hold; one that fails decides."""
    each = list(findings)
    figure = _joined(finding.figure for finding in each)
    for verdict in (Verdict.NOT_REPRODUCED, Verdict.INCONCLUSIVE):
        reasons = [finding.reason for finding in each if finding.verdict is verdict]
        if reasons:
            return Finding(verdict, figure, _joined(reasons))
    return Finding(Verdict.REPRODUCED, figure, "in every comparison")


def points(share: float) -> str:
    """A difference of accuracies in points, with its sign; one that rounds to zero has none.

    >>> points(0.0123), points(-0.0004)
    ('+1.2', '0.0')
    """
    rounded = round(100 * share, 1)
    return f"{rounded:+.1f}" if rounded else "0.0"


def points_of(gap: Contrast | None) -> str:
    if gap is None:
        return NOT_RUN
    return points(gap.value)


def listed(by_value: Mapping[float, Summary]) -> str:
    words = []
    for value, summary in by_value.items():
        words.append(f"{value:g}: {summary.words()}")
    return ", ".join(words)


def _joined(words: Iterable[str]) -> str:
    """Each of them once, in their order."""
    once = dict.fromkeys(words)
    once.pop("", None)
    return "; ".join(once)
