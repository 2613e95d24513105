"""Fig. 1, 2 and 4: accuracy by epoch."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from dpvd.experiments.aggregate import Results, Summary
from dpvd.experiments.catalogue import NP
from dpvd.experiments.claims import Claims
from dpvd.experiments.figures.plotting import (
    BUDGET_LINES,
    METHOD_LINES,
    PLAIN_LINE,
    VARIANT_WORDS,
    Drawing,
    Style,
    accuracy_axes,
    curve,
    grid,
    legend,
    line_key,
    published_key,
    published_value,
    run_words,
    shown_name,
)
from dpvd.experiments.protocols import PROTOCOLS, ExperimentProtocol
from dpvd.experiments.spec import Variant

__all__ = ["comparison_figure", "curves_figure"]

NUMBERS = {"mnist": 1, "digits": 2}  # of the figure of each data set
LOWEST = 0.1  # the ε of Fig. 4
BANDS = "Bands: one standard deviation over runs."

Line = tuple[str, float | None, Style]
"""Method, budget and how the curve is drawn."""


def curves_figure(results: Results, claims: Claims, protocol: ExperimentProtocol) -> Drawing | None:
    """Fig. 1 and 2: a curve for each budget, a column for each method, a row for each variant."""
    if not any(_has_curve(results, protocol, epsilon) for epsilon in BUDGET_LINES):
        return None
    figure, panels = grid(2, 2)
    drawn: list[Summary] = []
    for row, variant in zip(panels, VARIANT_WORDS, strict=True):
        for axes, method in zip(row, METHOD_LINES, strict=True):
            axes.set_title(f"{method}, {VARIANT_WORDS[variant]}")
            lines = _lines_by_budget(method)
            drawn += _draw_lines(axes, results, claims, protocol, variant, lines)
    keys = [line_key(f"ε = {epsilon:g}", style) for epsilon, style in BUDGET_LINES.items()]
    keys += [line_key("NP", PLAIN_LINE), published_key()]
    legend(figure, keys, columns=2)
    number = NUMBERS[protocol.dataset]
    return Drawing(
        name=f"fig{number}-{protocol.name}",
        title=f"Fig. {number}: accuracy by epoch, {shown_name(protocol)}",
        caption=(
            f"Mean test accuracy after each epoch, {run_words(drawn)} a curve. {protocol.words}."
            f" {BANDS} {_crosses([protocol])}"
        ),
        figure=figure,
    )


def comparison_figure(
    results: Results, claims: Claims, protocols: Sequence[ExperimentProtocol]
) -> Drawing | None:
    """Fig. 4: AC against zCDP against NP at ε = 0.1, a column for each protocol that was run."""
    shown = [protocol for protocol in protocols if _has_curve(results, protocol, LOWEST)]
    if not shown:
        return None
    figure, panels = grid(2, len(shown))
    lines = _lines_by_method()
    drawn: dict[str, list[Summary]] = {protocol.name: [] for protocol in shown}
    for row, variant in zip(panels, VARIANT_WORDS, strict=True):
        for axes, protocol in zip(row, shown, strict=True):
            axes.set_title(f"{shown_name(protocol)}, {VARIANT_WORDS[variant]}")
            drawn[protocol.name] += _draw_lines(axes, results, claims, protocol, variant, lines)
    keys = [line_key(method, style) for method, _, style in lines]
    legend(figure, [*keys, published_key()], columns=len(shown))
    runs = [f"{each.words}, {run_words(drawn[each.name])} a curve" for each in shown]
    return Drawing(
        name="fig4",
        title="Fig. 4: advanced composition against zCDP at ε = 0.1",
        caption=f"Mean test accuracy at ε = 0.1. {'; '.join(runs)}. {BANDS} {_crosses(shown)}",
        figure=figure,
    )


def _has_curve(results: Results, protocol: ExperimentProtocol, epsilon: float) -> bool:
    """Whether DPVD has been run at a budget: ordinary training alone is no comparison."""
    for method in METHOD_LINES:
        for variant in VARIANT_WORDS:
            if results.cell(protocol, method, variant, epsilon) is not None:
                return True
    return False


def _lines_by_budget(method: str) -> list[Line]:
    lines: list[Line] = []
    for epsilon, style in BUDGET_LINES.items():
        lines.append((method, epsilon, style))
    lines.append((NP, None, PLAIN_LINE))
    return lines


def _lines_by_method() -> list[Line]:
    lines: list[Line] = []
    for method, style in METHOD_LINES.items():
        lines.append((method, LOWEST, style))
    lines.append((NP, None, PLAIN_LINE))
    return lines


def _draw_lines(
    axes: Axes,
    results: Results,
    claims: Claims,
    protocol: ExperimentProtocol,
    variant: Variant,
    lines: Sequence[Line],
) -> list[Summary]:
    """Curves with the published values behind them; what was drawn."""
    drawn = []
    for column, (method, epsilon, style) in enumerate(lines):
        summary = results.cell(protocol, method, variant, epsilon)
        if summary is not None:
            curve(axes, summary, style)
            drawn.append(summary)
        printed = claims.accuracy(protocol.dataset, method, epsilon)
        if printed is not None:
            published_value(axes, printed, protocol.epochs, column, style[0])
    accuracy_axes(axes, protocol.epochs)
    return drawn


def _crosses(protocols: Sequence[ExperimentProtocol]) -> str:
    """What the crosses are, and at what length they were published where ours is another."""
    paper = {protocol.dataset: protocol for protocol in PROTOCOLS.values() if protocol.as_in_paper}
    lengths = []
    for protocol in protocols:
        if protocol.dataset in paper and not protocol.as_in_paper:
            original = paper[protocol.dataset]
            lengths.append(
                f"{original.epochs} epochs with {original.hidden} hidden units on"
                f" {original.dataset.upper()}"
            )
    after = f"; there they stand for {' and '.join(lengths)}" if lengths else ""
    return (
        "Crosses behind the last epoch, from left to right in the order of the legend: the final"
        f" accuracies that the paper prints{after}."
    )
