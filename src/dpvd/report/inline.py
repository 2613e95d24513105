"""Figures as files, and as SVG that lives inside an HTML page."""

import io
import re

import matplotlib
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from dpvd.report.figures import FIGURE_STYLE, PALETTE

__all__ = ["inline_svg", "png_bytes", "svg_bytes"]

_PNG_DPI = 200
# Matplotlib dates its files by default; without that, equal figures are equal bytes.
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


def svg_bytes(figure: Figure) -> bytes:
    """The figure as an SVG file. Equal figures give equal bytes."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(FIGURE_STYLE):
        figure.savefig(buffer, format="svg", metadata=_NO_METADATA)
    return buffer.getvalue()


def png_bytes(figure: Figure) -> bytes:
    """The figure as a PNG file, fine enough for print."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(FIGURE_STYLE):
        figure.savefig(buffer, format="png", dpi=_PNG_DPI, metadata={"Software": None})
    return buffer.getvalue()


def inline_svg(svg: bytes, name: str, description: str) -> Markup:
    """Make an SVG file fit to stand inside a page beside others.

    Drops the XML prologue and the style sheet (which would apply to the whole page), prefixes every
    id with the figure's name (ids are unique per page), replaces the palette by the page's colour
    variables ``--figure-ink`` and so on, so that a dark page gets dark figures, and gives a text
    for those who cannot see the figure.

    Args:
        svg: a file as ``svg_bytes`` writes it.
        name: unique in the page; letters, digits and hyphens.
        description: text alternative, escaped here.

    Returns:
        Markup, which a template inserts as it is. Matplotlib escaped the text inside when
        it wrote the file.
    """
    text = svg.decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r' id="', f' id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    for colour, value in PALETTE.items():
        text = text.replace(value, f"var(--figure-{colour})")
    opening = f'<svg role="img" aria-label="{escape(description)}"'
    return Markup(text.replace("<svg", opening, 1))
