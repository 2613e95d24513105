"""The figures of a run together with their words, and their files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from dpvd.files import write_atomically
from dpvd.privacy import round_up
from dpvd.report.figures import FIGURE_STYLE, confusion, log_alpha, progress, reliability
from dpvd.report.inline import png_bytes, svg_bytes
from dpvd.report.readings import (
    Record,
    bins,
    check_format,
    confusion_matrix,
    histograms,
    layer_names,
    series,
)
from dpvd.report.wording import percent

__all__ = ["Illustration", "illustrate", "write_figures", "write_illustrations"]


@dataclass(frozen=True)
class Illustration:
    """A drawn figure, its SVG file and the words that go with it."""

    name: str
    title: str
    caption: str
    description: str
    figure: Figure
    svg: bytes


def illustrate(record: Record) -> list[Illustration]:
    """Draw every figure for which the record has data, in the order in which a page shows them."""
    drawn = []
    with matplotlib.rc_context(FIGURE_STYLE):
        for name, title, caption, draw, describe in _GALLERY:
            figure = draw(record)
            if figure is not None:
                drawn.append(
                    Illustration(name, title, caption, describe(record), figure, svg_bytes(figure))
                )
    return drawn


def write_figures(record: Record, folder: str | Path) -> list[Path]:
    """Write every figure of a run as PNG and SVG, and return the paths written.

    Edge cases: the folder is made if need be; files of the same name are replaced, each in one
    move; a record with nothing to draw writes nothing.

    Raises:
        DpvdError: the record is no mapping, or of a format that this version cannot read.
    """
    check_format(record)
    return write_illustrations(illustrate(record), Path(folder))


def write_illustrations(illustrations: Sequence[Illustration], folder: Path) -> list[Path]:
    """Write figures that are drawn already, as PNG and SVG."""
    written = []
    for illustration in illustrations:
        for suffix, content in (
            (".png", png_bytes(illustration.figure)),
            (".svg", illustration.svg),
        ):
            path = folder / f"{illustration.name}{suffix}"
            write_atomically(path, content)
            written.append(path)
    return written


def _describe_progress(record: Record) -> str:
    _, accuracy = series(record, "test_accuracy")
    _, spent = series(record, "epsilon")
    privacy = f" The privacy spent ends at ε = {round_up(spent[-1])}." if spent else ""
    return (
        f"Line chart over {len(accuracy)} points: test accuracy goes from {percent(accuracy[0])} "
        f"to {percent(accuracy[-1])}.{privacy}"
    )


def _describe_reliability(record: Record) -> str:
    rows = bins(record)
    gap = max(abs(accuracy - confidence) for confidence, accuracy, _ in rows)
    return (
        f"Reliability diagram with {len(rows)} confidence bins; the largest gap between confidence "
        f"and accuracy is {percent(gap)}."
    )


def _describe_log_alpha(record: Record) -> str:
    names = layer_names(record)
    listed = ", ".join(names.get(key, f"layer {key}") for key, _, _ in histograms(record))
    return f"Histogram of log α for each of these layers: {listed}."


def _describe_confusion(record: Record) -> str:
    matrix = confusion_matrix(record)
    assert matrix is not None  # described only when drawn
    right, total = int(np.trace(matrix)), int(matrix.sum())
    return (
        f"Confusion matrix of {len(matrix)} classes: {right} of {total} test examples on the"
        " diagonal."
    )


_Draw = Callable[[Record], Figure | None]
_Describe = Callable[[Record], str]

_GALLERY: tuple[tuple[str, str, str, _Draw, _Describe], ...] = (
    (
        "progress",
        "Learning, epoch by epoch",
        (
            "The share of test examples classified correctly and, for a private run, the ε used up"
            " by then: it never falls."
        ),
        progress,
        _describe_progress,
    ),
    (
        "reliability",
        "Does it know when it is unsure?",
        (
            "On the dashed line, predictions made with 80 % confidence are right 80 % of the time. "
            "Points above it: too modest; below: too sure. Larger dots hold more examples."
        ),
        reliability,
        _describe_reliability,
    ),
    (
        "confusion",
        "What it mistakes for what",
        (
            "Each row is a true class; the diagonal is right, all else a mistake. Numbers are test"
            " examples."
        ),
        confusion,
        _describe_confusion,
    ),
    (
        "log-alpha",
        "How much of each weight is noise",
        (
            "Weights right of the dashed line are mostly noise and can be removed at little loss; "
            "left of it they carry signal."
        ),
        log_alpha,
        _describe_log_alpha,
    ),
)
