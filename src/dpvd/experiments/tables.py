"""The tables of a reproduction: Table 1, the claims, every printed accuracy, what was tuned."""

from collections.abc import Sequence

from dpvd.experiments.aggregate import Results, Summary
from dpvd.experiments.catalogue import BUDGETS, METHODS, NP
from dpvd.experiments.claims import Claims
from dpvd.experiments.protocols import PROTOCOLS, ExperimentProtocol
from dpvd.experiments.spec import Variant
from dpvd.experiments.table_formats import Table
from dpvd.experiments.tuning import Tuning
from dpvd.experiments.verdicts.judge import Judgement
from dpvd.privacy import round_up

__all__ = ["BELOW", "claims_table", "numbers_table", "table1", "tuning_table"]

BESIDE_OURS = "DPVD-zCDP"  # whose published values methods of ours are held to
CARRIED = (
    "Where trials were run at a shorter protocol, the held-out accuracy is that of the best one "
    "there; γ is the smallest of those within a standard error of it, and its η₀ is carried over: "
    "all steps of the long run leave as much noise on a weight as those of the short one. At the "
    "edge: the best η₀ is the smallest or largest that was tried."
)
BELOW = "↓"
"""Ends a cell of Table 1 whose mean is below the published value."""


def table1(results: Results, claims: Claims, protocols: Sequence[ExperimentProtocol]) -> Table:
    """Table 1: published accuracy, ours in every variant, and the ε that was spent.

    Guarantees: a mean below the published value is marked, by however little.
    Edge cases: a cell without runs is a dash. Methods of ours stand beside what is published for
    DPVD-zCDP.
    """
    rows = []
    for protocol in protocols:
        for method in METHODS:
            for epsilon in (None,) if method == NP else BUDGETS:
                rows.append(_table1_row(results, claims, protocol, method, epsilon))
    settings = "; ".join(protocol.words for protocol in protocols)
    variants = [variant.words for variant in Variant]
    return Table(
        name="table1",
        title="Table 1: test accuracy in per cent",
        note=(
            f"Mean ± standard deviation (number of runs); {BELOW} marks a mean below the published"
            f" value. {settings}. δ = 1e-5. As printed: the paper's settings. Tuned: learning rate"
            " and decay chosen on a tenth of the training data. Recipe: the network and the budget"
            " of the paper, the rest by our default rule. ε spent: by pld, for what ran, rounded"
            " up, the largest of the row. † DPVD-PLD is ours; beside it, what the paper prints for"
            " DPVD-zCDP."
        ),
        header=("protocol", "method", "ε asked for", "published", *variants, "ε spent"),
        rows=tuple(rows),
    )


def _table1_row(
    results: Results,
    claims: Claims,
    protocol: ExperimentProtocol,
    method: str,
    epsilon: float | None,
) -> tuple[str, ...]:
    in_paper = METHODS[method].in_paper
    published = claims.accuracy(protocol.dataset, method if in_paper else BESIDE_OURS, epsilon)
    printed = "–"
    if published is not None:
        printed = f"{100 * published:.2f}" + ("" if in_paper else " †")
    cells = [results.cell(protocol, method, variant, epsilon) for variant in Variant]
    ours = [_words(cell, published) for cell in cells]
    return (protocol.name, method, _budget(epsilon), printed, *ours, _spent(cells))


def claims_table(judgements: Sequence[Judgement]) -> Table:
    """Every sentence and published noise level, with our figure, the verdict and the reason."""
    sentences = [j for j in judgements if not j.is_accuracy]
    # What is found about one claim stands together.
    order = list(dict.fromkeys(j.claim for j in sentences))
    rows = tuple(
        (
            j.claim,
            j.where,
            j.protocol,
            j.variant_words,
            str(j.finding.verdict),
            j.finding.figure,
            j.finding.reason,
        )
        for j in sorted(sentences, key=lambda j: order.index(j.claim))
    )
    header = ("claim", "where", "protocol", "variant", "verdict", "ours", "reason")
    note = (
        "A comparison is decided if the 95 % interval of the difference of means, taken seed by "
        "seed, leaves out zero; otherwise it is inconclusive. A cell with one or two runs is taken "
        "to have a standard deviation of a tenth of its error rate plus the sampling error of the "
        "test set, more than any with three or more has shown. A claim of several comparisons is "
        "reproduced if all are, and not reproduced if one is not. Figures in points of accuracy."
    )
    return Table("claims", "What the paper says, and whether it is reproduced", note, header, rows)


def numbers_table(judgements: Sequence[Judgement]) -> Table:
    """Every published accuracy with ours, the verdict and the reason."""
    rows = tuple(
        (
            j.claim,
            j.where,
            j.protocol,
            j.variant_words,
            j.published,
            j.finding.figure,
            str(j.finding.verdict),
            j.finding.reason,
        )
        for j in judgements
        if j.is_accuracy
    )
    header = (
        "accuracy of",
        "where",
        "protocol",
        "variant",
        "published",
        "ours",
        "verdict",
        "reason",
    )
    note = (
        "In per cent. A printed accuracy is reproduced unless the 95 % interval of ours, over "
        "seeds and over test sets of this size, lies below it; with one or two runs it takes ours "
        "not to be below at all. Recipe: what the paper prints for DPVD-zCDP against DPVD-PLD by "
        "our default rule."
    )
    title = "Every printed accuracy, and whether it is reproduced"
    return Table("numbers", title, note, header, rows)


def tuning_table(tunings: Sequence[Tuning], protocols: Sequence[ExperimentProtocol]) -> Table:
    """What was chosen on the held-out tenth, and whether the grid may have been too small."""
    names = {protocol.name for protocol in protocols}
    rows = tuple(
        (
            tuning.cell.protocol,
            tuning.cell.method,
            _budget(tuning.cell.epsilon),
            f"{tuning.learning_rate:g}",
            f"{tuning.gamma:g}",
            f"{100 * tuning.best.accuracy:.1f}",
            str(len(tuning.trials)),
            PROTOCOLS[tuning.cell.protocol].tuned_at or tuning.cell.protocol,
            "yes" if tuning.at_edge else "no",
        )
        for tuning in tunings
        if tuning.cell.protocol in names
    )
    settings = ("protocol", "method", "ε", "η₀", "γ")
    header = (*settings, "held-out accuracy", "trials", "run at", "at the edge")
    costs = dict.fromkeys(tuning.cost for tuning in tunings if tuning.cell.protocol in names)
    note = " ".join([*costs, CARRIED])
    title = "Learning rates and decays chosen on a tenth of the training data"
    return Table("tuning", title, note, header, rows)


def _budget(epsilon: float | None) -> str:
    if epsilon is None:
        return "∞"
    return f"{epsilon:g}"


def _words(cell: Summary | None, published: float | None) -> str:
    if cell is None:
        return "–"
    is_below = published is not None and cell.mean < published
    return f"{cell.words()} {BELOW}" if is_below else cell.words()


def _spent(cells: Sequence[Summary | None]) -> str:
    """The largest of all variants: the recipe is calibrated for another number of steps."""
    run = [cell for cell in cells if cell is not None]
    spent = [cell.epsilon for cell in run if cell.epsilon is not None]
    if not spent:
        return "–"
    return round_up(max(spent))
