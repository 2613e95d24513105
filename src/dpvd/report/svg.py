"""How figures look, and how they become files and parts of an HTML page.

Colours are those of Okabe and Ito (Color Universal Design, 2008), which stay apart for colour-blind
readers. They are named, so that a page may replace them by its own.
"""

import io
import re
from typing import Any

import matplotlib
from markupsafe import Markup, escape
from matplotlib.figure import Figure

__all__ = ["FIGURE_STYLE", "PALETTE", "inline_svg", "png_bytes", "svg_bytes"]

PALETTE: dict[str, str] = {
    "paper": "#fdfdfc",
    "ink": "#1c2530",
    "muted": "#5b6673",
    "grid": "#dfe3e8",
    "blue": "#0072b2",
    "vermilion": "#c65300",
    "on-blue": "#ffffff",
}
"""Colours by name. ``vermilion`` is darker than Okabe and Ito's, for contrast on paper."""

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
