"""What the figures are put together from: panels, lines with bands, published values, legends."""

from collections.abc import Sequence
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

from dpvd.experiments.results import Summary
from dpvd.report import PALETTE

__all__ = [
    "GREEN",
    "ORANGE",
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
]

Style = tuple[str, Literal["-", "--", "-.", ":"]]
"""Colour and dashes of a line."""

GREEN, ORANGE = "#009e73", "#e69f00"
PANEL = (3.6, 2.9)  # inches
FEW = 5  # points below which a line gets markers: it would be hard to see, or no line at all
ENTRIES = 5  # of a legend that fit side by side below two panels; below one, fewer than half
# Published values stand right of the last epoch, each kind in a column of its own, so that none
# hides another.
FIRST_COLUMN, NEXT_COLUMN, COLUMNS = 1.05, 0.04, 4


def grid(rows: int, columns: int) -> tuple[Figure, list[list[Axes]]]:
    """A figure of equal panels with room for a legend below them."""
    figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows + (0.4 if columns > 1 else 0.8)))
    return figure, figure.subplots(rows, columns, squeeze=False).tolist()


def curve(axes: Axes, summary: Summary, style: Style) -> None:
    """Mean accuracy by epoch, and a band of one standard deviation around it where there are
    several runs.
    """
    epochs, means, spreads = zip(*summary.curve, strict=True)
    percent = [100 * share for share in means]
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
    if summary.runs > 1:
        low = [100 * max(0.0, mean - spread) for mean, spread in zip(means, spreads, strict=True)]
        high = [100 * min(1.0, mean + spread) for mean, spread in zip(means, spreads, strict=True)]
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
    """Epochs to the right, with room for published values behind the last one; accuracy from 0 to
    100 % upwards.
    """
    axes.set(xlabel="epoch", ylabel="test accuracy", ylim=(0, 102))
    axes.set_xlim(0, epochs * (FIRST_COLUMN + NEXT_COLUMN * COLUMNS))
    ticks = MaxNLocator(5, integer=True).tick_values(0, epochs)
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if 0 <= tick <= epochs]))
    axes.axvline(epochs, color=PALETTE["muted"], linewidth=0.8)
    percent_axis(axes)


def percent_axis(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(PercentFormatter(decimals=0, symbol=" %"))


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
    side_by_side = (
        len(keys) if columns > 1 and len(keys) <= ENTRIES * columns // 2 else ENTRIES // 2
    )
    figure.legend(handles=list(keys), loc="outside lower center", ncols=side_by_side, frameon=False)


def run_words(summaries: Sequence[Summary]) -> str:
    """How many runs a point is the mean of.

    >>> run_words([])
    'no runs'
    """
    counts = sorted({summary.runs for summary in summaries})
    if not counts:
        return "no runs"
    if len(counts) > 1:
        return f"{counts[0]} to {counts[-1]} runs"
    return "1 run" if counts == [1] else f"{counts[0]} runs"
