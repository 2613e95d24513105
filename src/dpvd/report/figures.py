"""The figures of a run, each drawn from the run's record and nothing else.

A figure function takes the record and returns a matplotlib ``Figure``, or ``None`` when the record
holds nothing to draw. Figures are made through matplotlib's object interface: no window, no global
figure list.

Colours are those of Okabe and Ito (Color Universal Design, 2008), which stay apart for colour-blind
readers. They are named, so that a page may replace them by its own (see ``dpvd.report.inline``).
"""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from dpvd.privacy import round_up
from dpvd.report.readings import Record, bins, confusion_matrix, histograms, layer_names, series
from dpvd.report.wording import percent

__all__ = ["FIGURE_STYLE", "PALETTE", "confusion", "log_alpha", "progress", "reliability"]

PALETTE: dict[str, str] = {
    "paper": "#fdfdfc",
    "ink": "#1c2530",
    "muted": "#5b6673",
    "grid": "#dfe3e8",
    "blue": "#0072b2",
    "vermilion": "#c65300",
    "on-blue": "#ffffff",
}
"""Colour names and values. ``vermilion`` is slightly darker than Okabe and Ito's, for contrast on
paper.
"""

FIGURE_STYLE: Any = {  # Any: what matplotlib calls this type differs between its versions
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "axes.labelsize": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": PALETTE["muted"],
    "axes.labelcolor": PALETTE["ink"],
    "axes.facecolor": PALETTE["paper"],
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titlecolor": PALETTE["ink"],
    "figure.facecolor": PALETTE["paper"],
    "figure.constrained_layout.use": True,
    "grid.color": PALETTE["grid"],
    "grid.linewidth": 0.7,
    "text.color": PALETTE["ink"],
    "text.parse_math": False,  # a layer may be called "$x": that is a name, not a formula
    "xtick.color": PALETTE["muted"],
    "ytick.color": PALETTE["muted"],
    "svg.fonttype": "none",  # text stays text: selectable, searchable, read aloud
    "svg.hashsalt": "dpvd",  # the same record gives the same bytes
}

_WIDTH, _HEIGHT = 4.8, 4.2  # inches; narrow, so that the labels stay readable on a phone
# log α from which a weight is pruned: Molchanov et al. 2017 (arXiv 1701.05369v3), section 5
_PRUNE_AT = 3.0
_MOST_CELLS_WITH_NUMBERS = 15  # classes; above this the numbers in a confusion matrix overlap


def progress(record: Record) -> Figure | None:
    """Test accuracy per epoch and, below it on the same epochs, the ε spent so far.

    Edge cases: rows without an accuracy are left out; the ε panel is left out when no row has a
    finite ε.
    """
    accuracy = series(record, "test_accuracy")
    spent = series(record, "epsilon")
    if not accuracy[0]:
        return None
    panels = 2 if spent[0] else 1
    figure = Figure(figsize=(_WIDTH, _HEIGHT))
    axes = figure.subplots(
        panels, 1, sharex=True, squeeze=False, height_ratios=[1.4, 1.0][:panels]
    )[:, 0]
    _line(axes[0], accuracy, PALETTE["blue"])
    axes[0].set_title("test accuracy")
    axes[0].set_ylim(0.0, 1.02)
    axes[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    _label_last(axes[0], accuracy, percent(accuracy[1][-1]), below=True)
    if spent[0]:
        _line(axes[1], spent, PALETTE["vermilion"])
        axes[1].set_title("ε spent so far")
        axes[1].set_ylim(0.0, 1.25 * max(spent[1]) or 1.0)
        _label_last(axes[1], spent, round_up(spent[1][-1]), below=False)
    axes[-1].set_xlabel("epoch (expected passes over the training data)")
    axes[-1].set_xlim(0.0, max(accuracy[0] + spent[0]) * 1.02 or 1.0)
    axes[-1].xaxis.set_major_locator(MaxNLocator(7))
    return figure


def reliability(record: Record) -> Figure | None:
    """Accuracy against stated confidence, bin by bin, with the number of test examples in each bin
    below.
    """
    rows = bins(record)
    if not rows:
        return None
    confidence, accuracy, count = (
        np.array(column, dtype=float) for column in zip(*rows, strict=True)
    )
    figure = Figure(figsize=(_WIDTH, _HEIGHT))
    curve, counts = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1.0])
    curve.plot([0, 1], [0, 1], color=PALETTE["muted"], linestyle="--", linewidth=1)
    curve.annotate(
        "as sure as it is right",
        (0.12, 0.12),
        xytext=(8, -10),
        textcoords="offset points",
        color=PALETTE["muted"],
    )
    curve.plot(confidence, accuracy, color=PALETTE["blue"], linewidth=1, alpha=0.5)
    curve.scatter(
        confidence, accuracy, s=20 + 100 * count / count.max(), color=PALETTE["blue"], zorder=3
    )
    curve.set(xlim=(0, 1), ylim=(0, 1.04), title="share that is right")
    counts.vlines(confidence, 0, count, color=PALETTE["blue"], linewidth=6)
    counts.set_ylim(0, count.max() * 1.1)
    counts.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    counts.set(title="test examples", xlabel="confidence of the prediction")
    for axes in (curve.yaxis, counts.xaxis):
        axes.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    return figure


def log_alpha(record: Record) -> Figure | None:
    """Histogram of log α per layer on one common axis, with the pruning threshold."""
    layers = histograms(record)
    if not layers:
        return None
    figure = Figure(figsize=(_WIDTH, max(_HEIGHT, 0.6 + 1.2 * len(layers))))
    panels = figure.subplots(len(layers), 1, sharex=True, squeeze=False)[:, 0]
    names = layer_names(record)
    for axes, (key, edges, counts) in zip(panels, layers, strict=True):
        axes.stairs(counts, edges, fill=True, color=PALETTE["blue"])
        axes.axvline(_PRUNE_AT, color=PALETTE["vermilion"], linestyle="--", linewidth=1.2)
        axes.set_title(names.get(key, f"layer {key}"))
        axes.set_ylim(0, max([*counts, 1]) * 1.08)
        axes.set_ylabel("weights")
        axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    panels[-1].set_xlabel("log α, the noise variance over the squared weight")
    return figure


def confusion(record: Record) -> Figure | None:
    """True class by row, predicted class by column; depth is the share of the row, the number a
    count.
    """
    matrix = confusion_matrix(record)
    if matrix is None:
        return None
    classes = len(matrix)
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    colours = np.empty((classes, classes, 4))
    colours[..., :3] = to_rgb(PALETTE["blue"])
    colours[..., 3] = share  # depth by opacity: the page's own background shows through
    figure = Figure(figsize=(_WIDTH, _HEIGHT))
    axes = figure.subplots()
    axes.pcolormesh(colours)
    if classes <= _MOST_CELLS_WITH_NUMBERS:
        for row, column in zip(*np.nonzero(matrix), strict=True):
            colour = PALETTE["on-blue" if share[row, column] > 0.8 else "ink"]
            text = f"{matrix[row, column]:g}"
            axes.text(
                column + 0.5, row + 0.5, text, ha="center", va="center", color=colour, fontsize=8
            )
        axes.set_xticks(np.arange(classes) + 0.5, [str(k) for k in range(classes)])
        axes.set_yticks(np.arange(classes) + 0.5, [str(k) for k in range(classes)])
    axes.tick_params(length=0)
    axes.grid(False)
    axes.set_aspect("equal")
    axes.invert_yaxis()
    axes.set(xlabel="predicted class", ylabel="true class")
    return figure


def _line(axes: Axes, points: tuple[list[float], list[float]], colour: str) -> None:
    marker = "o" if len(points[0]) <= 40 else ""
    axes.plot(*points, color=colour, linewidth=1.8, marker=marker, markersize=3)


def _label_last(
    axes: Axes, points: tuple[list[float], list[float]], text: str, *, below: bool
) -> None:
    """Write the last value at the end of its line, right-aligned so that it cannot leave the
    panel.
    """
    offset, align = ((0, -7), "top") if below else ((0, 6), "bottom")
    axes.annotate(
        text,
        (points[0][-1], points[1][-1]),
        xytext=offset,
        textcoords="offset points",
        ha="right",
        va=align,
        weight="bold",
    )
