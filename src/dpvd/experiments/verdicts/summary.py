"""What becomes of the paper, on one screen.

A verdict and a reason for each claim, and the answer on dropout.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpvd.experiments.aggregate import Results
from dpvd.experiments.claims import Claims
from dpvd.experiments.protocols import ExperimentProtocol
from dpvd.experiments.spec import Variant
from dpvd.experiments.table_formats import Table
from dpvd.experiments.verdicts.contrasts import FEWEST, Contrast, contrast
from dpvd.experiments.verdicts.findings import NOT_RUN, Verdict
from dpvd.experiments.verdicts.judge import Judgement

__all__ = ["DropoutAnswer", "dropout_answer", "overall", "summary_table"]

LOWEST = 0.1  # the ε at which the paper says dropout helps most
WITH_DROPOUT = "DPVD-zCDP"
WITHOUT = {
    "Abadi et al.": "the same training with the same noise and no dropout (Abadi et al.)",
    "SVI-zCDP": "the paper's method without dropout (SVI-zCDP), with other noise",
}
BEST_FIRST = (Verdict.REPRODUCED, Verdict.INCONCLUSIVE, Verdict.NOT_REPRODUCED)
VARIANTS = (Variant.AS_PRINTED, Variant.TUNED)
NOTE = (
    "Verdict: the better one of *as printed* and *tuned* on each data set, and of the data sets "
    "the worse one; a data set whose runs are not complete does not count where another's are."
)
NUMBERS_REASON = "most ask for more than the noise of a valid guarantee leaves: Table 1 below"

Row = tuple[str, ...]
"""Claim, verdict, a cell for each data set, reason."""


def summary_table(
    judgements: Sequence[Judgement],
    claims: Claims,
    protocols: Sequence[ExperimentProtocol],
) -> Table:
    """One row for each sentence of the paper, one for its noise levels, one for its accuracies.

    The best news comes first.

    Guarantees: a reason that was written for one verdict is not shown beside another; then the
        comparison that decided stands there instead.
    """
    shown = _at_the_papers_length(protocols)
    names = {protocol.name for protocol in shown}
    at_length = [j for j in judgements if j.protocol in names]
    noise = [j for j in judgements if j.published and not j.is_accuracy]
    numbers = [j for j in at_length if j.is_accuracy]
    rows = _sentence_rows(at_length, claims, shown)
    rows.append(_noise_row(noise, shown))
    rows.append(_numbers_row(numbers, shown))
    order = [str(verdict) for verdict in BEST_FIRST]
    rows.sort(key=lambda row: order.index(row[1]))
    data_sets = [protocol.dataset.upper() for protocol in shown]
    words = [protocol.words for protocol in shown]
    return Table(
        name="summary",
        title="What becomes of the paper",
        note=f"{NOTE} {'; '.join(words)}.",
        header=("claim", "verdict", *data_sets, "reason"),
        rows=tuple(rows),
    )


def overall(found: Sequence[Judgement]) -> Verdict | None:
    """The better verdict of the variants, the worse one of the protocols.

    Edge cases: None if no protocol can speak to the claim. What has not been run counts only where
        nothing else was: a variant beside the other, a protocol that lacks a variant beside one
        that has both.
    """
    by_protocol: dict[str, list[Judgement]] = {}
    for judgement in found:
        by_protocol.setdefault(judgement.protocol, []).append(judgement)
    groups = list(by_protocol.values())
    complete = [group for group in groups if all(map(_is_decided_or_run, group))]
    counted = [_best(group) for group in complete or groups]
    return max(counted, key=BEST_FIRST.index, default=None)


@dataclass(frozen=True)
class DropoutAnswer:
    """Whether dropout helps at the lowest budget: in a word, and in numbers."""

    short: str
    numbers: str

    def __str__(self) -> str:
        return f"{self.short} {self.numbers}".strip()


def dropout_answer(results: Results, protocols: Sequence[ExperimentProtocol]) -> DropoutAnswer:
    """Whether dropout helps at the lowest budget, with standard errors.

    It is compared with plain private training first, whose runs have the same weights, batches and
    noise seed by seed: what differs is dropout alone, and the error is small. The answer is that of
    this comparison. Then with the paper's method without dropout, whose noise is another.
    """
    shown = _at_the_papers_length(protocols)
    first: list[Contrast] = []
    parts = []
    for other, words in WITHOUT.items():
        gains = _gains(results, shown, other)
        if gains:
            first = first or list(gains.values())
            parts.append(f"{_listed(gains)} against {words}")
    if not first:
        unknown = "Whether dropout helps at low ε cannot be said yet: it has not been run."
        return DropoutAnswer(unknown, "")
    changes = ", and by ".join(parts)
    return DropoutAnswer(
        short=f"Does dropout help at low ε? {_yes_or_no(first)}",
        numbers=(
            f"At ε = {LOWEST:g} it changes accuracy by {changes} (points of accuracy and their "
            "standard error)."
        ),
    )


def _sentence_rows(
    judgements: Sequence[Judgement], claims: Claims, shown: Sequence[ExperimentProtocol]
) -> list[Row]:
    rows: list[Row] = []
    for claim in claims.sentences:
        found = [j for j in judgements if j.claim == claim.text]
        verdict = overall(found)
        if verdict is None:
            continue
        reason = claim.reason
        if claim.reason_for != verdict:
            reason = _deciding(found, verdict)
        rows.append((claim.text, str(verdict), *_by_data_set(found, shown), reason))
    return rows


def _gains(
    results: Results, protocols: Sequence[ExperimentProtocol], other: str
) -> dict[str, Contrast]:
    """What dropout gains over another method, by where."""
    found = {}
    for protocol in protocols:
        for variant in VARIANTS:
            with_dropout = results.cell(protocol, WITH_DROPOUT, variant, LOWEST)
            without = results.cell(protocol, other, variant, LOWEST)
            if with_dropout is None or without is None:
                continue
            gain = contrast([with_dropout], [without])
            if gain is not None:
                where = f"{protocol.dataset.upper()} {variant.words}"
                found[where] = gain
    return found


def _yes_or_no(gains: Sequence[Contrast]) -> str:
    """Yes if all are clearly gains, no if none is."""
    helps = [gain.value > gain.half_width for gain in gains]
    if all(helps):
        return "Yes."
    return "Not everywhere." if any(helps) else "No."


def _listed(gains: Mapping[str, Contrast]) -> str:
    parts = []
    for where, gain in gains.items():
        value = f"{100 * gain.value:+.2f} ± {100 * gain.error:.2f}"
        parts.append(f"{value} on {where} ({_pairs(gain)})")
    return ", ".join(parts)


def _pairs(gain: Contrast) -> str:
    """
    >>> _pairs(Contrast(0.0, 0.0, 0.0, 30))
    '30 pairs of runs'
    """
    count = "1 pair of runs" if gain.pairs == 1 else f"{gain.pairs} pairs of runs"
    if gain.pairs < FEWEST:
        return f"{count}, error assumed"
    return count


def _at_the_papers_length(protocols: Sequence[ExperimentProtocol]) -> list[ExperimentProtocol]:
    """Those of the paper's sizes and lengths; all, where there is none."""
    at_length = [protocol for protocol in protocols if protocol.as_in_paper]
    return at_length or list(protocols)


def _best(group: Sequence[Judgement]) -> Verdict:
    run = [j for j in group if _is_decided_or_run(j)]
    verdicts = [j.finding.verdict for j in run or group]
    return min(verdicts, key=BEST_FIRST.index)


def _is_decided_or_run(judgement: Judgement) -> bool:
    """Whether no run is missing that could still decide."""
    finding = judgement.finding
    if finding.verdict is not Verdict.INCONCLUSIVE:
        return True
    return NOT_RUN not in finding.reason


def _deciding(found: Sequence[Judgement], verdict: Verdict) -> str:
    """The reason of the first judgement with this verdict."""
    for judgement in found:
        if judgement.finding.verdict is verdict:
            where = f"{judgement.protocol}, {judgement.variant_words}"
            return f"{where}: {judgement.finding.reason}"
    return ""


def _by_data_set(found: Sequence[Judgement], shown: Sequence[ExperimentProtocol]) -> list[str]:
    """For each protocol the verdicts of its variants, once where they agree."""
    cells = []
    for protocol in shown:
        own = [j for j in found if j.protocol == protocol.name]
        words = [_word(j) for j in own]
        if len(set(words)) == 1:
            cells.append(words[0])
        else:
            each = [f"{j.variant_words}: {_word(j)}" for j in own]
            cells.append("; ".join(each) or "–")
    return cells


def _word(judgement: Judgement) -> str:
    if _is_decided_or_run(judgement):
        return str(judgement.finding.verdict)
    return "not all run"


def _noise_row(found: Sequence[Judgement], shown: Sequence[ExperimentProtocol]) -> Row:
    """The published σ, together."""
    missed = [j for j in found if j.finding.verdict is not Verdict.REPRODUCED]
    verdict = Verdict.NOT_REPRODUCED if missed else Verdict.REPRODUCED
    cells = []
    for protocol in shown:
        own = [j for j in found if protocol.dataset.upper() in j.claim]
        cells.append(_count(own))
    reasons = [f"{j.claim}: {j.finding.figure}" for j in missed]
    reason = "; ".join(reasons) or "each of them does"
    return ("The published σ keep ε = 1.", str(verdict), *cells, reason)


def _numbers_row(found: Sequence[Judgement], shown: Sequence[ExperimentProtocol]) -> Row:
    """The printed accuracies, together, by the methods that they are printed for."""
    cells = []
    for protocol in shown:
        words = []
        for variant in VARIANTS:
            own = [j for j in found if (j.protocol, j.variant) == (protocol.name, variant)]
            words.append(f"{variant.words}: {_count(own)}")
        cells.append("; ".join(words))
    verdicts = {j.finding.verdict for j in found}
    missed = Verdict.NOT_REPRODUCED in verdicts
    verdict = Verdict.NOT_REPRODUCED if missed else Verdict.INCONCLUSIVE
    return ("The printed accuracies.", str(verdict), *cells, NUMBERS_REASON)


def _count(found: Sequence[Judgement]) -> str:
    """
    >>> _count([])
    'not run'
    """
    run = [j for j in found if j.finding.figure]
    held = [j for j in run if j.finding.verdict is Verdict.REPRODUCED]
    if not run:
        return NOT_RUN
    return f"{len(held)} of {len(run)}"
