"""Tables as rows of words, and the rows as Markdown, CSV and LaTeX."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dpvd.experiments.aggregate import Results, Summary
from dpvd.experiments.catalogue import BUDGETS, METHODS, NP
from dpvd.experiments.claims import Claims
from dpvd.experiments.protocols import PROTOCOLS, ExperimentProtocol
from dpvd.experiments.spec import Variant
from dpvd.experiments.tuning import Tuning
from dpvd.experiments.verdicts import Judgement
from dpvd.privacy import round_up

__all__ = [
    "BELOW",
    "Table",
    "as_csv",
    "as_latex",
    "as_markdown",
    "claims_table",
    "markdown_table",
    "numbers_table",
    "table1",
    "tuning_table",
]

BESIDE_OURS = "DPVD-zCDP"  # whose published values methods of ours are held to
CARRIED = (
    "Where trials were run at a shorter protocol, the held-out accuracy is that of the best one "
    "there; γ is the smallest of those within a standard error of it, and its η₀ is carried over: "
    "all steps of the long run leave as much noise on a weight as those of the short one. At the "
    "edge: the best η₀ is the smallest or largest that was tried."
)
BELOW = "↓"
"""Ends a cell of Table 1 whose mean is below the published value."""


@dataclass(frozen=True)
class Table:
    """Rows of words under a heading each, with a file name and what a reader must know."""

    name: str
    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def table1(results: Results, claims: Claims, protocols: Sequence[ExperimentProtocol]) -> Table:
    """Table 1: published accuracy, ours as printed, tuned and by our recipe, and the ε that was
    spent.

    Guarantees: a mean below the published value is marked, by however little.
    Edge cases: a cell without runs is a dash. Methods of ours stand beside what is published for
    DPVD-zCDP.
    """
    rows = []
    for protocol in protocols:
        for method in METHODS:
            for epsilon in (None,) if method == NP else BUDGETS:
                in_paper = METHODS[method].in_paper
                published = claims.accuracy(
                    protocol.dataset, method if in_paper else BESIDE_OURS, epsilon
                )
                cells = [results.cell(protocol, method, variant, epsilon) for variant in Variant]
                rows.append(
                    (
                        protocol.name,
                        method,
                        "∞" if epsilon is None else f"{epsilon:g}",
                        (
                            "–"
                            if published is None
                            else f"{100 * published:.2f}{'' if in_paper else ' †'}"
                        ),
                        *(_words(cell, published) for cell in cells),
                        _spent(cells),
                    )
                )
    return Table(
        "table1",
        "Table 1: test accuracy in per cent",
        f"Mean ± standard deviation (number of runs); {BELOW} marks a mean below the published"
        " value. "
        + "; ".join(protocol.words for protocol in protocols)
        + ". δ = 1e-5. As printed: the paper's settings. Tuned: learning rate and decay chosen on a"
        " tenth of the training data. Recipe: the network and the budget of the paper, the rest"
        " by our default rule. ε spent: by pld, for what ran, rounded up, the largest of the row."
        " † DPVD-PLD is ours; beside it, what the paper prints for DPVD-zCDP.",
        (
            "protocol",
            "method",
            "ε asked for",
            "published",
            "as printed",
            "tuned",
            "recipe",
            "ε spent",
        ),
        tuple(rows),
    )


def claims_table(judgements: Sequence[Judgement]) -> Table:
    """Every sentence, and every published noise level, with our figure, the verdict and the
    reason.
    """
    sentences = [j for j in judgements if not j.is_accuracy]
    order = list(
        dict.fromkeys(j.claim for j in sentences)
    )  # what is found about one claim stands together
    rows = tuple(
        (
            j.claim,
            j.where,
            j.protocol,
            j.variant,
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
            j.variant,
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
            "∞" if tuning.cell.epsilon is None else f"{tuning.cell.epsilon:g}",
            f"{tuning.learning_rate:g}",
            f"{tuning.gamma:g}",
            f"{100 * max(trial.accuracy for trial in tuning.trials):.1f}",
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
    return Table(
        "tuning",
        "Learning rates and decays chosen on a tenth of the training data",
        note,
        header,
        rows,
    )


def as_markdown(table: Table) -> str:
    """The table in GitHub's Markdown, under its title."""
    body = markdown_table(table.header, table.rows)
    return f"## {table.title}\n\n{table.note}\n\n{body}\n"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows under a header in GitHub's Markdown, without a line break at the end.

    >>> print(markdown_table(("what", "ms"), [("plain", 1.2)]))
    | what | ms |
    |---|---|
    | plain | 1.2 |
    """
    lines = [_markdown_row(header), "|" + "---|" * len(header)]
    lines += [_markdown_row(row) for row in rows]
    return "\n".join(lines)


def as_csv(table: Table) -> str:
    """The table as comma-separated values, header first."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([table.header, *table.rows])
    return buffer.getvalue()


def as_latex(table: Table) -> str:
    """The table for LaTeX with the booktabs package."""
    rows = [" & ".join(map(_latex, row)) + r" \\" for row in (table.header, *table.rows)]
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{_latex(table.title)}. {_latex(table.note)}}}",
            rf"\begin{{tabular}}{{{'l' * len(table.header)}}}",
            r"\toprule",
            rows[0],
            r"\midrule",
            *rows[1:],
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _words(cell: Summary | None, published: float | None) -> str:
    if cell is None:
        return "–"
    return cell.words() + (f" {BELOW}" if published is not None and cell.mean < published else "")


def _spent(cells: Sequence[Summary | None]) -> str:
    """The largest of all variants: each is calibrated to the same budget, the recipe for another
    number of steps.
    """
    spent = [cell.epsilon for cell in cells if cell is not None and cell.epsilon is not None]
    return round_up(max(spent)) if spent else "–"


def _markdown_row(cells: Sequence[object]) -> str:
    escaped = [str(cell).replace("|", "\\|") for cell in cells]
    return "| " + " | ".join(escaped) + " |"


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "ε": r"$\varepsilon$",
    "δ": r"$\delta$",
    "σ": r"$\sigma$",
    "γ": r"$\gamma$",
    "ν": r"$\nu$",
    "η₀": r"$\eta_0$",
    "∞": r"$\infty$",
    "±": r"$\pm$",
    "↓": r"$\downarrow$",
    "†": r"$\dagger$",
    "≤": r"$\leq$",
    "–": "--",
    **{character: "\\" + character for character in "&%$#_{}"},
}
_LATEX_PATTERN = re.compile(
    "|".join(re.escape(key) for key in sorted(_LATEX, key=len, reverse=True))
)


def _latex(text: str) -> str:
    r"""Text with what is special to LaTeX, and our Greek letters, written its way.

    >>> _latex("ε = 1 & 50 %")
    '$\\varepsilon$ = 1 \\& 50 \\%'
    """
    return _LATEX_PATTERN.sub(lambda match: _LATEX[match[0]], text)
