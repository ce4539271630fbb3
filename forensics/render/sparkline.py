"""A series around a finding as one line of blocks, so that a reader sees what the numbers say.

Bars stand where the finding begins and ends, ``!`` where a value is NaN or Inf. A line that would
show nothing but noise is not drawn.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise

import numpy as np

from forensics.diagnose.chart_axis import Layout
from forensics.diagnose.excerpts import Excerpt
from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.wording import number, power_of_two
from forensics.render.ansi import DIM, severity_code
from forensics.render.chart_heights import Heights
from forensics.render.page import MARGIN, Page
from forensics.runlog.steps import FloatArray

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.:-=+*#"
"""Darker where the value is higher, for a terminal that has no blocks."""
BAD = "!"
LONGEST = 40
"""Cells of a line at most."""
SHORTEST = 8
"""Cells below which a line says nothing; it is left out."""
LEAST_CHANGE = 0.1
"""Change of a value, as a share of it, below which a line is flat to a reader."""
NOISE = 8.0
"""Range over the usual move from row to row up to which a line is noise. Of ``PLACES`` values of
white noise it is 5.5 on average and 7 in one of twenty."""
GATHERED_NOISE = 3.0
"""The same where a place holds many rows: its usual move is from their lowest to their highest,
about all that noise does."""
SPREAD = 4.0
"""Range within a finding over that before it from which a line shows how it swings. Of 10 and 20
values of noise it is above 2.8 once in a hundred."""
STRAIGHT = 0.9
"""Range over the sum of all moves from which a line goes one way, however few its rows are."""
LEAST_ROWS = 5
"""Values of which a course can be told from chance: noise makes 1 of 60 of them go one way."""
NAMES = {
    "loss": "loss",
    "val_loss": "val loss",
    "grad_l2_pre_clip": "norm",
    "grad_l2_post_clip": "post-clip",
    "scaler_scale": "scale",
    "lr": "lr",
    "update_l2": "update",
    "param_l2": "weights",
}
"""What a column is called in the margin."""


def put_sparklines(page: Page, finding: Finding, *, indent: int, told: set[str]) -> None:
    """A line for each excerpt of a finding that shows something.

    Args:
        page: where to.
        finding: with its excerpts.
        indent: columns before the blocks; the name of the column stands at their right end.
        told: lines that stand on the page already, which are not repeated; the new ones are added.
    """
    shown = [excerpt for excerpt in finding.excerpts if shows(excerpt)]
    texts = [f"{_values(excerpt)}, {_where(excerpt)}" for excerpt in shown]
    free = page.width - indent - 4  # bars, and a gap
    if free - max(map(len, texts), default=0) < SHORTEST:  # the finding's row has its steps
        texts = [_values(excerpt) for excerpt in shown]
    room = free - max(map(len, texts), default=0)
    if room < SHORTEST:
        return
    for excerpt, text in zip(shown, texts, strict=True):
        name = NAMES.get(excerpt.column, excerpt.column)
        cells, bars = blocks(excerpt, min(room, LONGEST))
        line = f"{name} {cells} {text}"
        if line in told:
            continue
        told.add(line)
        drawn = _painted(page, cells, bars, finding.severity)
        margin = " " * MARGIN + page.paint(name, DIM)
        page.raw(f"{margin}{' ' * (indent - MARGIN - len(name))}{drawn}  {page.safe(text)}")


def shows(excerpt: Excerpt) -> bool:
    """Is there more to see than a calm line, or noise?"""
    if excerpt.bad.any():
        return True
    single = np.array_equal(excerpt.low, excerpt.high, equal_nan=True)
    heights = _heights(excerpt)
    course = heights[:, 0] if single else heights.ravel()
    course = course[np.isfinite(course)]
    if len(course) < LEAST_ROWS or not _changes(excerpt):
        return False
    moves = np.abs(np.diff(course))
    whole = float(np.ptp(course))
    one_way = whole >= STRAIGHT * float(moves.sum())
    if _spreads(heights[: excerpt.begin], heights[excerpt.begin : excerpt.end]):
        return True
    return one_way or whole >= (NOISE if single else GATHERED_NOISE) * float(np.median(moves))


def _spreads(before: FloatArray, within: FloatArray) -> bool:
    """Does a series swing far more, or far less, than it did before?"""
    wide = [float(np.nanmax(part) - np.nanmin(part)) for part in (before, within) if _enough(part)]
    return len(wide) == 2 and max(wide) >= SPREAD * min(wide)


def _enough(part: FloatArray) -> bool:
    return int(np.isfinite(part).all(axis=1).sum()) >= LEAST_ROWS


def _changes(excerpt: Excerpt) -> bool:
    low, high = _range(excerpt)
    return high - low >= LEAST_CHANGE * max(abs(low), abs(high)) > 0


def blocks(excerpt: Excerpt, most: int) -> tuple[str, tuple[int, int]]:
    """The cells of a line, and where the finding's begin and end among them.

    A cell that stands for several rows shows the value that is farthest from the usual one, so
    that no spike is lost, up or down. A blank cell has no value.

    Args:
        excerpt: what to draw.
        most: cells at most.

    Returns:
        A character a cell: a digit, the height from 0 to 7; ``!`` or a blank. And the first cell
        of the finding, and the one after its last.
    """
    places = len(excerpt.low)
    edges = np.linspace(0, places, min(places, most) + 1).astype(np.int64)
    heights = _heights(excerpt)
    usual = float(np.nanmedian(heights)) if np.isfinite(heights).any() else 0.0
    far = np.where(np.isfinite(heights), np.abs(heights - usual), -1.0)
    known = heights[np.isfinite(heights)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    cells = []
    for first, stop in pairwise(edges.tolist()):
        here = heights[first:stop].ravel()[int(np.argmax(far[first:stop]))]
        if excerpt.bad[first:stop].any():
            cells.append(BAD)
        else:
            cells.append(" " if np.isnan(here) else _level(float(here), low, high))
    begin = int(np.searchsorted(edges, excerpt.begin, side="right")) - 1
    end = int(np.searchsorted(edges, excerpt.end, side="left"))
    return "".join(cells), (begin, max(end, begin))


def _heights(excerpt: Excerpt) -> FloatArray:
    """Heights of lowest and highest value, shape (places, 2); the lowest where there is no place.

    A logarithmic axis has none for 0: a scale or a norm of 0 is as low as can be.
    """
    heights = Heights(excerpt.axis)
    ends = np.stack([excerpt.low, excerpt.high], axis=1)
    found = heights.of(ends)
    foot = float(np.nanmin(found)) if np.isfinite(found).any() else 0.0
    return np.where(np.isnan(found) & np.isfinite(ends), foot, found)


def _level(height: float, low: float, high: float) -> str:
    if high <= low:
        return str(len(BLOCKS) // 2 - 1)
    return str(min(int((height - low) / (high - low) * len(BLOCKS)), len(BLOCKS) - 1))


def _painted(page: Page, cells: str, bars: tuple[int, int], severity: Severity) -> str:
    """The cells as a page shows them, the finding's between bars and in its colour."""
    begin, end = bars
    within = _coloured(page, cells[begin:end], severity_code(severity))
    bar = "|" if page.ascii_only else "│"
    opened = bar if begin > 0 else ""
    closed = bar if end < len(cells) and (within or not opened) else ""
    before, after = (_coloured(page, part, "") for part in (cells[:begin], cells[end:]))
    return f"{before}{opened}{within}{closed}{after}"


def _coloured(page: Page, cells: str, code: str) -> str:
    """Digits as blocks of some colour, and what is not finite in its own."""
    drawn = cells.translate(str.maketrans("01234567", _blocks(page)))
    bad = severity_code(Severity.CRITICAL)
    stretches = re.findall(f"{BAD}+|[^{BAD}]+", drawn)
    return "".join(page.paint(text, bad if text[0] == BAD else code) for text in stretches)


def _blocks(page: Page) -> str:
    return ASCII_BLOCKS if page.ascii_only else BLOCKS


def _range(excerpt: Excerpt) -> tuple[float, float]:
    """Lowest and highest finite value; NaN twice where there is none."""
    if not np.isfinite(excerpt.low).any():
        return math.nan, math.nan
    return float(np.nanmin(excerpt.low)), float(np.nanmax(excerpt.high))


def _values(excerpt: Excerpt) -> str:
    """``1.78 to 2.01``, and how the axis is laid out where that is not plain."""
    low, high = _range(excerpt)
    if math.isnan(low):
        return "no finite value"
    written = power_of_two if excerpt.column == "scaler_scale" else number
    if low == high:
        return f"{written(low)} {'where finite' if excerpt.bad.any() else 'throughout'}"
    laid_out = "" if excerpt.axis.layout is Layout.LINEAR else " (log)"
    return f"{written(low)} to {written(high)}{laid_out}"


def _where(excerpt: Excerpt) -> str:
    """``steps 20–40``."""
    if excerpt.first_step == excerpt.last_step:
        return f"{excerpt.unit} {excerpt.first_step:,}"
    return f"{excerpt.unit}s {excerpt.first_step:,}–{excerpt.last_step:,}"
