"""Report page and figures: pure functions of a run's record."""

from dpvd.report.gallery import write_figures
from dpvd.report.page import render, write_report

__all__ = ["render", "write_figures", "write_report"]
