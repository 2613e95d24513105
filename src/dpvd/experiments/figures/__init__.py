"""Fig. 1 to 5 from results.

Colours of Okabe and Ito; line styles and markers say the same without colour.
"""

from collections.abc import Sequence

import matplotlib

from dpvd.experiments.aggregate import Results
from dpvd.experiments.claims import Claims
from dpvd.experiments.figures.curves import comparison_figure, curves_figure
from dpvd.experiments.figures.noise import noise_figure
from dpvd.experiments.figures.plotting import Drawing
from dpvd.experiments.figures.settings import settings_figure
from dpvd.experiments.protocols import ExperimentProtocol
from dpvd.report import FIGURE_STYLE

__all__ = ["Drawing", "draw_all"]


def draw_all(
    results: Results, claims: Claims, protocols: Sequence[ExperimentProtocol]
) -> list[Drawing]:
    """Every figure for which there is something to draw."""
    drawn: list[Drawing | None] = []
    with matplotlib.rc_context(FIGURE_STYLE):
        for protocol in protocols:
            drawn.append(curves_figure(results, claims, protocol))
            drawn.append(settings_figure(results, protocol))
        drawn.append(noise_figure(claims, protocols))
        drawn.append(comparison_figure(results, claims, protocols))
        found = [drawing for drawing in drawn if drawing is not None]
        for drawing in found:
            # Lay it out once: every later drawing would move things by a last digit, and change the
            # file.
            drawing.figure.draw_without_rendering()
            drawing.figure.set_layout_engine("none")
    return sorted(found, key=lambda drawing: drawing.name)
