"""What the figures are put together from: panels, lines with bands, published values, legends."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    FixedLocator,
    MaxNLocator,
    NullFormatter,
    PercentFormatter,
    StrMethodFormatter,
)

from dpvd.experiments.aggregate import Summary
from dpvd.experiments.protocols import ExperimentProtocol
from dpvd.experiments.spec import Variant
from dpvd.report import PALETTE

__all__ = [
    "ACCOUNTANT_LINES",
    "BUDGET_LINES",
    "METHOD_LINES",
    "ORANGE",
    "PLAIN_LINE",
    "VARIANT_WORDS",
    "Drawing",
    "Style",
    "accuracy_axes",
    "curve",
    "grid",
    "legend",
    "line_key",
    "percent_axis",
    "plain_numbers",
    "published_key",
    "published_value",
    "run_words",
    "shown_name",
]

Style = tuple[str, Literal["-", "--", "-.", ":"]]
"""Colour and dashes of a line."""

GREEN = "#009e73"
ORANGE = "#e69f00"
VARIANT_WORDS = {
    Variant.AS_PRINTED: "learning rate as printed",
    Variant.TUNED: "learning rate tuned",
}
BUDGET_LINES: dict[float, Style] = {
    10.0: (PALETTE["blue"], "-"),
    1.0: (GREEN, "--"),
    0.1: (PALETTE["vermilion"], "-."),
}
PLAIN_LINE: Style = (PALETTE["ink"], ":")
METHOD_LINES: dict[str, Style] = {
    "DPVD-AC": (PALETTE["vermilion"], "-."),
    "DPVD-zCDP": (PALETTE["blue"], "-"),
}
ACCOUNTANT_LINES: dict[str, Style] = {
    "advanced": (PALETTE["vermilion"], "-."),
    "zcdp": (PALETTE["blue"], "-"),
    "rdp": (ORANGE, "--"),
    "pld": (PALETTE["ink"], ":"),
}
PANEL = (3.6, 2.9)  # inches
FEW = 5  # points below which a line gets markers: it would be hard to see, or no line at all
ENTRIES = 5  # of a legend that fit side by side below two panels; below one, fewer than half
# Published values stand right of the last epoch, each kind in a column of its own, so that none
# hides another.
FIRST_COLUMN = 1.05
NEXT_COLUMN = 0.04
COLUMNS = 4


@dataclass(frozen=True)
class Drawing:
    """A figure with its file name and words."""

    name: str
    title: str
    caption: str
    figure: Figure


def grid(rows: int, columns: int) -> tuple[Figure, list[list[Axes]]]:
    """A figure of equal panels with room for a legend below them."""
    width, height = PANEL
    below = 0.4 if columns > 1 else 0.8
    figure = Figure(figsize=(width * columns, height * rows + below))
    panels: list[list[Axes]] = figure.subplots(rows, columns, squeeze=False).tolist()
    return figure, panels


def curve(axes: Axes, summary: Summary, style: Style) -> None:
    """Mean accuracy by epoch; of several runs, with a band of one standard deviation around it."""
    epochs = [epoch for epoch, _, _ in summary.curve]
    percent = [100 * mean for _, mean, _ in summary.curve]
    marker = "o" if len(epochs) < FEW else ""
    axes.plot(
        epochs,
        percent,
        color=style[0],
        linestyle=style[1],
        linewidth=1.8,
        marker=marker,
        markersize=4,
    )
    if summary.runs == 1:
        return
    low = [100 * max(0.0, mean - spread) for _, mean, spread in summary.curve]
    high = [100 * min(1.0, mean + spread) for _, mean, spread in summary.curve]
    if marker:
        axes.vlines(epochs, low, high, color=style[0], linewidth=1)
    else:
        axes.fill_between(epochs, low, high, color=style[0], alpha=0.15, linewidth=0)


def published_value(axes: Axes, accuracy: float, epochs: float, column: int, colour: str) -> None:
    """A cross right of the last epoch."""
    place = epochs * (FIRST_COLUMN + NEXT_COLUMN * column)
    axes.plot(
        place,
        100 * accuracy,
        "X",
        color=colour,
        markersize=7,
        markeredgecolor=PALETTE["paper"],
        zorder=5,
    )


def accuracy_axes(axes: Axes, epochs: int) -> None:
    """Epochs to the right, with room for published values; accuracy in per cent upwards."""
    axes.set(xlabel="epoch", ylabel="test accuracy", ylim=(0, 102))
    behind = FIRST_COLUMN + NEXT_COLUMN * COLUMNS
    axes.set_xlim(0, epochs * behind)
    ticks = MaxNLocator(5, integer=True).tick_values(0, epochs)
    inside = [tick for tick in ticks if 0 <= tick <= epochs]
    axes.xaxis.set_major_locator(FixedLocator(inside))
    axes.axvline(epochs, color=PALETTE["muted"], linewidth=0.8)
    percent_axis(axes)


def percent_axis(axes: Axes) -> None:
    formatter = PercentFormatter(decimals=0, symbol=" %")
    axes.yaxis.set_major_formatter(formatter)


def plain_numbers(axis: Axis) -> None:
    """Write 0.1 and 100: matplotlib's powers of ten are formulas, which the style leaves unread."""
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def line_key(words: str, style: Style, marker: str = "") -> Line2D:
    return Line2D(
        [],
        [],
        color=style[0],
        linestyle=style[1],
        linewidth=1.8,
        marker=marker,
        markersize=4,
        label=words,
    )


def published_key() -> Line2D:
    return Line2D([], [], color=PALETTE["muted"], marker="X", linestyle="", label="published")


def legend(figure: Figure, keys: Sequence[Line2D], columns: int) -> None:
    """Below all panels, in as many rows as the width of so many columns of panels asks for."""
    side_by_side = ENTRIES // 2
    if columns > 1 and len(keys) <= ENTRIES * columns // 2:
        side_by_side = len(keys)
    figure.legend(handles=list(keys), loc="outside lower center", ncols=side_by_side, frameon=False)


def shown_name(protocol: ExperimentProtocol) -> str:
    """The data set, and the protocol's name where its length is not the paper's."""
    name = protocol.dataset.upper()
    if protocol.as_in_paper:
        return name
    return f"{name} ({protocol.name})"


def run_words(summaries: Sequence[Summary]) -> str:
    """How many runs a point is the mean of.

    >>> run_words([])
    'no runs'
    """
    counts = [summary.runs for summary in summaries]
    if not counts:
        return "no runs"
    fewest = min(counts)
    most = max(counts)
    if fewest < most:
        return f"{fewest} to {most} runs"
    return "1 run" if most == 1 else f"{most} runs"
