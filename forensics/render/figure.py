"""Figures without pyplot: no display, no global state, the same look whatever a user's settings.

Colours are those of Okabe and Ito (2008), which people with any colour vision tell apart; what
they mean is said by shape or position as well, so that a grey print says the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from forensics.diagnose.finding import Severity
from forensics.render.safe_text import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLACK = "#000000"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREEN = "#009E73"
BLUE = "#0072B2"
VERMILION = "#D55E00"
PURPLE = "#CC79A7"
GREY = "#777777"
PALE = "#DDDDDD"
SEVERITY = {
    Severity.INFO: GREY,
    Severity.WARNING: ORANGE,
    Severity.ERROR: VERMILION,
    Severity.CRITICAL: BLACK,
}

WIDTH = 10.0
"""Inches; at 200 dpi 2,000 pixels."""
DPI = 200
LEFT, RIGHT = 0.75, 0.25
"""Margins in inches beside the panels."""
LONGEST_LABEL = 40
"""Characters of a text from the log in a legend."""

_STYLE: Any = {
    "text.usetex": False,
    "text.parse_math": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.7,
    "axes.facecolor": "white",
    "axes.axisbelow": True,
    "axes.labelsize": 8.5,
    "axes.labelcolor": "black",
    "axes.unicode_minus": False,
    "axes.formatter.useoffset": False,
    "figure.facecolor": "white",
    "figure.dpi": 100,
    "savefig.dpi": DPI,
    "savefig.facecolor": "white",
    "savefig.bbox": None,
    "text.color": "black",
    "xtick.color": "black",
    "ytick.color": "black",
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "hatch.linewidth": 0.7,
    "legend.fontsize": 8,
    "lines.antialiased": True,
    "path.simplify": True,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "forensics",
}


@contextmanager
def look() -> Iterator[None]:
    """Our style, and the user's again afterwards; drawing and saving both belong inside."""
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


def new_figure(height: float) -> Figure:
    """An empty figure of our width with a canvas that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height))
    FigureCanvasAgg(figure)
    return figure


@cache
def _glyphs() -> frozenset[int]:
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())


def label(text: str, longest: int = LONGEST_LABEL) -> str:
    """Any text as a figure shows it: one line, no mathematics, every sign one that the font has.

    Longer texts lose their middle: names differ at both ends.
    """
    text = visible(" ".join(text.split()))
    glyphs = _glyphs()
    text = "".join(
        c if ord(c) in glyphs else c.encode("unicode_escape").decode("ascii") for c in text
    )
    if len(text) > longest:
        half = (longest - 1) // 2
        text = f"{text[:half]}…{text[-half:]}"
    return text
