"""Report page and figures: pure functions of a run's record; and what other pages are made with."""

from dpvd.report.page import render, write_report
from dpvd.report.svg import FIGURE_STYLE, PALETTE, inline_svg, png_bytes, svg_bytes

__all__ = [
    "FIGURE_STYLE",
    "PALETTE",
    "inline_svg",
    "png_bytes",
    "render",
    "svg_bytes",
    "write_report",
]
