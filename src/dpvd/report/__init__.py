"""Report page and figures: pure functions of a run's record. And what other pages and figures are
made with.
"""

from dpvd.report.figures import FIGURE_STYLE, PALETTE
from dpvd.report.gallery import write_figures
from dpvd.report.inline import inline_svg, png_bytes, svg_bytes
from dpvd.report.page import render, write_report

__all__ = [
    "FIGURE_STYLE",
    "PALETTE",
    "inline_svg",
    "png_bytes",
    "render",
    "svg_bytes",
    "write_figures",
    "write_report",
]
