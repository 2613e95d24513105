"""What an audit measured, as a figure and in words."""

import math
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from dpvd.audit import AuditResult
from dpvd.errors import DpvdError
from dpvd.files import HANDED_OUT, write_atomically
from dpvd.privacy import round_down, round_up
from dpvd.report.figures import Illustration
from dpvd.report.svg import FIGURE_STYLE, PALETTE, png_bytes, svg_bytes

__all__ = ["audit_figure", "check_plot", "illustrate_audit", "measured_words", "write_audit_plot"]

_NAME = "audit"
_WIDTH = 4.8  # inches
_HEIGHT = 1.9
_FORMATS = {".png": png_bytes, ".svg": svg_bytes}


def audit_figure(result: AuditResult) -> Figure:
    """The claimed ε above the measured one, as bars on one axis.

    Edge cases: a bound without limit, of scores without any noise, fills the axis.
    """
    claimed = result.claimed_epsilon
    bounded = math.isfinite(result.lower_bound)
    measured = result.lower_bound if bounded else 2 * claimed
    colour = PALETTE["blue" if result.is_consistent else "vermilion"]
    figure = Figure(figsize=(_WIDTH, _HEIGHT))
    axes = figure.subplots()
    axes.barh(
        ["claimed", "measured"],
        [claimed, measured],
        color=[PALETTE["muted"], colour],
        height=0.6,
    )
    at_least = f"at least {round_down(measured)}" if bounded else "without limit"
    beside = 1.03 * max(claimed, measured)  # where no bar and no line is
    for row, text in enumerate((round_up(claimed), at_least)):
        axes.text(beside, row, text, va="center", weight="bold")
    axes.axvline(claimed, color=PALETTE["muted"], linestyle="--", linewidth=1)
    axes.set_xlim(0, 1.45 * max(claimed, measured))
    axes.set_xlabel(f"ε at δ = {result.delta:g}")
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    return figure


def illustrate_audit(result: AuditResult) -> Illustration:
    """The figure of an audit with the words that go with it."""
    with matplotlib.rc_context(FIGURE_STYLE):
        figure = audit_figure(result)
        svg = svg_bytes(figure)
    return Illustration(
        _NAME,
        "Claimed and measured ε",
        (
            "The dashed line is what the accountant proves; a measured ε beyond it would be a"
            " mistake in the program."
        ),
        (
            f"Two bars: ε of {round_up(result.claimed_epsilon)} is claimed,"
            f" {measured_words(result)} was measured."
        ),
        figure,
        svg,
    )


def measured_words(result: AuditResult) -> str:
    """The measured ε and its share of the claim.

    Guarantees: neither is printed larger than it is.
    """
    if not math.isfinite(result.lower_bound):
        return "an ε without limit"
    share = math.floor(100 * result.lower_bound / result.claimed_epsilon)
    return f"at least {round_down(result.lower_bound)}, {share}\N{NO-BREAK SPACE}% of the claim,"


def check_plot(path: Path) -> None:
    """Raise `DpvdError` unless a plot can go there: a new file, .svg or .png."""
    if path.suffix not in _FORMATS:
        raise DpvdError(f"--plot takes a file that ends in .svg or .png, got {path}")
    if path.exists():
        raise DpvdError(f"--plot must be a new file: {path} exists already")


def write_audit_plot(result: AuditResult, path: Path) -> None:
    """Write the figure of an audit to a new file.

    Raises:
        DpvdError: if it cannot be written there.
    """
    check_plot(path)
    content = _FORMATS[path.suffix](illustrate_audit(result).figure)
    write_atomically(path, content, mode=HANDED_OUT)
