"""The figures of a run, each drawn from the run's record and nothing else, and their words.

A figure function takes the record and returns a matplotlib ``Figure``, or ``None`` when the record
holds nothing to draw. Figures are made through matplotlib's object interface: no window, no global
figure list.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from dpvd.files import write_atomically
from dpvd.privacy import round_up
from dpvd.report.facts import table_of
from dpvd.report.svg import FIGURE_STYLE, PALETTE, png_bytes, svg_bytes
from dpvd.report.wording import percent
from dpvd.runs import RunRecord

__all__ = [
    "Illustration",
    "confusion",
    "illustrate",
    "log_alpha",
    "progress",
    "reliability",
    "write_figures",
]

# Inches; narrow, so that the labels stay readable on a phone.
_WIDTH = 4.8
_HEIGHT = 4.2
# log α from which a weight is pruned: Molchanov et al. 2017 (arXiv 1701.05369v3), section 5
_PRUNE_AT = 3.0
_LONGEST_NAME = 10  # characters of a class
_FEW_CLASSES = 4  # cells that have room for larger numbers
_MOST_CELLS_WITH_NUMBERS = 15  # classes; above this the numbers in a confusion matrix overlap

Points = tuple[list[float], list[float]]


@dataclass(frozen=True)
class Illustration:
    """A drawn figure, its SVG file and the words that go with it."""

    name: str
    title: str
    caption: str
    description: str
    figure: Figure
    svg: bytes


def illustrate(record: RunRecord) -> list[Illustration]:
    """Draw every figure for which the record has data, in the order in which a page shows them."""
    drawn = []
    with matplotlib.rc_context(FIGURE_STYLE):
        for name, title, caption, draw, describe in _GALLERY:
            figure = draw(record)
            if figure is None:
                continue
            svg = svg_bytes(figure)
            drawn.append(Illustration(name, title, caption, describe(record), figure, svg))
    return drawn


def write_figures(illustrations: Sequence[Illustration], folder: Path) -> list[Path]:
    """Write figures as PNG and SVG, each in one move, and return the paths written."""
    written = []
    for illustration in illustrations:
        files = {".png": png_bytes(illustration.figure), ".svg": illustration.svg}
        for suffix, content in files.items():
            path = folder / f"{illustration.name}{suffix}"
            write_atomically(path, content)
            written.append(path)
    return written


def progress(record: RunRecord) -> Figure | None:
    """Test accuracy per epoch and, below it on the same epochs, the ε spent so far.

    Edge cases: without a finite ε there is no panel for it.
    """
    accuracy = record.series("test_accuracy")
    spent = record.series("epsilon")
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
    axes[0].yaxis.set_major_formatter(_percent_ticks())
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


def reliability(record: RunRecord) -> Figure | None:
    """Accuracy against stated confidence, bin by bin, above the number of examples in each bin."""
    rows = record.reliability_bins()
    if not rows:
        return None
    confidence, accuracy, count = np.array(rows, dtype=float).T
    figure = Figure(figsize=(_WIDTH, _HEIGHT))
    curve, counts = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1.0])
    curve.plot([0, 1], [0, 1], color=PALETTE["muted"], linestyle="--", linewidth=1)
    curve.plot(confidence, accuracy, color=PALETTE["blue"], linewidth=1, alpha=0.5)
    sizes = 20 + 80 * count / count.max()
    dots = curve.scatter(confidence, accuracy, s=sizes, color=PALETTE["blue"], zorder=3)
    dots.set_clip_on(False)  # whole dots at 0 % and 100 %
    curve.set(xlim=(0, 1), ylim=(0, 1.04), title="accuracy")
    counts.vlines(confidence, 0, count, color=PALETTE["blue"], linewidth=4)
    counts.set_ylim(0, count.max() * 1.1)
    counts.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    counts.set(title="test examples", xlabel="confidence of the prediction")
    curve.yaxis.set_major_formatter(_percent_ticks())
    counts.xaxis.set_major_formatter(_percent_ticks())
    return figure


def log_alpha(record: RunRecord) -> Figure | None:
    """Histogram of log α per layer on one common axis, with the pruning threshold."""
    layers = record.alpha_histograms()
    if not layers:
        return None
    figure = Figure(figsize=(_WIDTH, max(_HEIGHT, 0.6 + 1.2 * len(layers))))
    panels = figure.subplots(len(layers), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (key, edges, counts) in zip(panels, layers, strict=True):
        axes.stairs(counts, edges, fill=True, color=PALETTE["blue"])
        axes.axvline(_PRUNE_AT, color=PALETTE["vermilion"], linestyle="--", linewidth=1.2)
        axes.set_title(record.layer_name(key))
        axes.set_ylim(0, max([*counts, 1]) * 1.08)
        axes.set_ylabel("weights")
        axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    panels[-1].set_xlabel("log α, the noise variance over the squared weight")
    return figure


def confusion(record: RunRecord) -> Figure | None:
    """True class by row, predicted class by column; depth is the share of the row."""
    matrix = record.confusion_matrix()
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
        _write_counts(axes, matrix, share, _class_names(record, classes))
    axes.tick_params(length=0)
    axes.grid(False)
    axes.set_aspect("equal")
    axes.invert_yaxis()
    axes.set(xlabel="predicted class", ylabel="true class")
    return figure


def _class_names(record: RunRecord, classes: int) -> list[str]:
    """The names of the classes, cut where they would not fit; numbers if the record has none."""
    known = table_of(record).get("classes") or record.dataset.get("class_names") or ()
    if not isinstance(known, list | tuple) or len(known) != classes:
        return [str(index) for index in range(classes)]
    return [text if len(text := str(name)) <= _LONGEST_NAME else text[:9] + "…" for name in known]


def _write_counts(
    axes: Axes,
    matrix: npt.NDArray[np.float64],
    share: npt.NDArray[np.float64],
    names: list[str],
) -> None:
    """Write the counts into the cells that have any, and the classes beside them."""
    for row, column in np.argwhere(matrix):
        colour = PALETTE["on-blue" if share[row, column] > 0.8 else "ink"]
        axes.text(
            column + 0.5,
            row + 0.5,
            f"{matrix[row, column]:g}",
            ha="center",
            va="center",
            color=colour,
            fontsize=8 if len(matrix) > _FEW_CLASSES else 12,
        )
    centres = np.arange(len(matrix)) + 0.5
    is_long = max(map(len, names)) > 3
    axes.set_xticks(centres, names, rotation=45 if is_long else 0)
    axes.set_yticks(centres, names)


def _percent_ticks() -> PercentFormatter:
    return PercentFormatter(1.0, decimals=0, symbol=" %")


def _line(axes: Axes, points: Points, colour: str) -> None:
    marker = "o" if len(points[0]) <= 40 else ""
    axes.plot(*points, color=colour, linewidth=1.8, marker=marker, markersize=3)


def _label_last(axes: Axes, points: Points, text: str, *, below: bool) -> None:
    """Write the last value at the end of its line, right-aligned to stay within the panel."""
    epochs, values = points
    axes.annotate(
        text,
        (epochs[-1], values[-1]),
        xytext=(0, -7 if below else 6),
        textcoords="offset points",
        ha="right",
        va="top" if below else "bottom",
        weight="bold",
    )


def _describe_progress(record: RunRecord) -> str:
    _, accuracy = record.series("test_accuracy")
    _, spent = record.series("epsilon")
    privacy = f" The privacy spent ends at ε = {round_up(spent[-1])}." if spent else ""
    return (
        f"Line chart over {len(accuracy)} points: test accuracy goes from {percent(accuracy[0])} "
        f"to {percent(accuracy[-1])}.{privacy}"
    )


def _describe_reliability(record: RunRecord) -> str:
    rows = record.reliability_bins()
    gap = max(abs(accuracy - confidence) for confidence, accuracy, _ in rows)
    return (
        f"Reliability diagram with {len(rows)} confidence bins; the largest gap between confidence "
        f"and accuracy is {percent(gap)}."
    )


def _describe_log_alpha(record: RunRecord) -> str:
    names = [record.layer_name(key) for key, _, _ in record.alpha_histograms()]
    listed = ", ".join(names)
    return f"Histogram of log α for each of these layers: {listed}."


def _describe_confusion(record: RunRecord) -> str:
    matrix = record.confusion_matrix()
    assert matrix is not None  # described only when drawn
    right = int(np.trace(matrix))
    total = int(matrix.sum())
    return (
        f"Confusion matrix of {len(matrix)} classes: {right} of {total} test examples on the"
        " diagonal."
    )


_Draw = Callable[[RunRecord], Figure | None]
_Describe = Callable[[RunRecord], str]

_GALLERY: tuple[tuple[str, str, str, _Draw, _Describe], ...] = (
    (
        "progress",
        "Accuracy and privacy spent by epoch",
        (
            "The share of test examples classified correctly and, for a private run, the ε spent so"
            " far, which never falls."
        ),
        progress,
        _describe_progress,
    ),
    (
        "reliability",
        "Calibration",
        (
            "On the dashed line, predictions made with 80 % confidence are right 80 % of the time. "
            "Points above it are under-confident, points below over-confident. Larger dots hold"
            " more examples."
        ),
        reliability,
        _describe_reliability,
    ),
    (
        "confusion",
        "Confusion matrix",
        (
            "Rows are true classes, columns predicted ones: correct predictions lie on the"
            " diagonal. Numbers count test examples."
        ),
        confusion,
        _describe_confusion,
    ),
    (
        "log-alpha",
        "How much of each weight is noise",
        (
            "Weights to the right of the dashed line are mostly noise and can be removed at little"
            " loss; those to the left carry signal."
        ),
        log_alpha,
        _describe_log_alpha,
    ),
)
