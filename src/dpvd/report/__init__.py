"""Report page and figures: pure functions of a run's record; and what other pages are made with."""

from dpvd.report.audited import check_plot, write_audit_plot
from dpvd.report.own_run import write_report, write_run
from dpvd.report.page import render
from dpvd.report.statement_page import STATEMENT, render_statement, write_statement
from dpvd.report.svg import FIGURE_STYLE, PALETTE, inline_svg, png_bytes, svg_bytes

__all__ = [
    "FIGURE_STYLE",
    "PALETTE",
    "STATEMENT",
    "check_plot",
    "inline_svg",
    "png_bytes",
    "render",
    "render_statement",
    "svg_bytes",
    "write_audit_plot",
    "write_report",
    "write_run",
    "write_statement",
]
