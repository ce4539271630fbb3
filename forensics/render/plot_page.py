"""A page of panels over one step axis: what it is of above, the findings as lanes, then charts."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forensics.diagnose.chart_parts import Band
from forensics.render import figure as look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LANE = 0.3
"""Height of a finding's lane in inches."""
MOST_LANES = 8
"""Findings that get a lane; the report has the others."""
_GAP = 0.34
_FOOT = 0.5
_LINE = 0.17
_COLUMNS = 125


class PlotPage:
    """A figure that is laid out in inches from the top, so that nothing ever overlaps.

    Args:
        title: what the page is of.
        lines: what is said below it; long ones are wrapped, at most two lines each.
        panels: height of each panel in inches.
        lanes: how many lanes of findings stand above them.
        sides: left and right margin of the panels in inches.
    """

    def __init__(
        self,
        title: str,
        lines: Sequence[str],
        panels: Sequence[float],
        lanes: int = 0,
        sides: tuple[float, float] = (look.LEFT, look.RIGHT),
    ) -> None:
        self._sides = sides
        wrapped = [part for line in lines for part in _wrapped(line)]
        self._top = 0.32 + _LINE * len(wrapped)
        strip = LANE * lanes + 0.12 if lanes else 0.0
        height = self._top + strip + sum(h + _GAP for h in panels) + _FOOT
        self.figure: Figure = look.new_figure(height)
        self._height, self._y = height, self._top
        self._write(title, wrapped)
        self.lanes = self._axes(strip) if lanes else None
        self.panels = [self._axes(h, _GAP) for h in panels]

    def _write(self, title: str, lines: Sequence[str]) -> None:
        left = look.LEFT / look.WIDTH
        self.figure.text(
            left, 1 - 0.21 / self._height, look.label(title, 90), fontsize=11, fontweight="bold"
        )
        for place, line in enumerate(lines):
            y = 1 - (0.21 + _LINE * (place + 1)) / self._height
            self.figure.text(left, y, line, fontsize=8.5, color="#333333")

    def _axes(self, height: float, gap: float = 0.0) -> Axes:
        self._y += gap
        box = (
            self._sides[0] / look.WIDTH,
            1 - (self._y + height) / self._height,
            1 - sum(self._sides) / look.WIDTH,
            height / self._height,
        )
        self._y += height
        return self.figure.add_axes(box)

    def share_steps(self, first: int, last: int, unit: str) -> None:
        """One step axis for lanes and panels, its numbers below the last of them."""
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        # Steps beyond 1e12 need room around them to be told apart by what draws the axis.
        room = max(0.5, 0.012 * (last - first), 1e-12 * abs(last))
        large = abs(last) >= 1e8  # numbers so long that the last would run out of the page
        every = [self.lanes, *self.panels] if self.lanes is not None else self.panels
        for axes in every:
            axes.set_xlim(first - room, last + room)
            axes.xaxis.set_major_locator(
                MaxNLocator(
                    5 if large else 9, integer=True, min_n_ticks=1, prune="upper" if large else None
                )
            )
            axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
            axes.tick_params(labelbottom=axes is every[-1], length=2.5)
        every[-1].set_xlabel(unit)

    def draw_lanes(self, bands: Sequence[Band], told: Sequence[str], more: int = 0) -> None:
        """A lane a finding: its number in the margin, its steps as a bar, what it is above it."""
        axes = self.lanes
        if axes is None:
            return
        axes.axis("off")
        rows = len(bands) + bool(more)
        axes.set_ylim(rows, 0)
        left, right = axes.get_xlim()
        for row, (band, text) in enumerate(zip(bands, told, strict=True)):
            _lane(axes, band, row, look.label(text, 110), (left, right))
        if more:
            text = f"… and {more} more: forensics report lists them"
            axes.text(left, rows - 0.5, text, fontsize=8, va="center")


def _lane(axes: Axes, band: Band, row: int, text: str, sides: tuple[float, float]) -> None:
    colour = look.SEVERITY[band.severity]
    badge = {"boxstyle": "circle,pad=0.22", "facecolor": colour, "edgecolor": "none"}
    axes.text(
        -0.025, row + 0.55, str(band.number), transform=axes.get_yaxis_transform(), ha="center",
        va="center", fontsize=7.5, fontweight="bold", color=_ink(colour), bbox=badge, clip_on=False,
    )  # fmt: skip
    first = [a - 0.5 for a, _ in band.spans]
    last = [b + 0.5 for _, b in band.spans]
    at = [row + 0.82] * len(first)
    axes.axhline(row + 0.82, color=look.PALE, lw=0.6, zorder=0.5)
    axes.hlines(at, first, last, color=colour, lw=4.5, gid="finding")
    axes.plot(
        first, at, ls="", marker="|", ms=6, mew=1.6, color=colour, gid=f"finding-{band.number}"
    )
    left, right = sides
    late = first[0] > left + 0.5 * (right - left)
    x = min(max(last), right) if late else max(first[0], left)
    axes.text(x, row + 0.38, text, ha="right" if late else "left", va="center", fontsize=8)


def _ink(colour: str) -> str:
    return "black" if colour == look.ORANGE else "white"


def tint(axes: Axes, band: Band, colour: str, hatch: str = "") -> None:
    """The episodes of a finding, faint behind a panel."""
    for first, last in band.spans:
        axes.axvspan(
            first - 0.5, last + 0.5, facecolor=colour, alpha=0.13, lw=0, zorder=0.1,
            gid=f"band-{band.number}",
        )  # fmt: skip
        if hatch:
            axes.axvspan(
                first - 0.5, last + 0.5, facecolor="none", edgecolor=colour, alpha=0.22, lw=0,
                hatch=hatch, zorder=0.1,
            )  # fmt: skip


def _wrapped(line: str) -> list[str]:
    """A line as one or two; what is beyond them is cut."""
    return [
        look.label(part, _COLUMNS + 5)
        for part in textwrap.wrap(line, _COLUMNS, max_lines=2, placeholder=" …")
    ]


def run_title(path: str) -> str:
    """What a run is called on a page: the last two parts of its path."""
    parts = Path(path).parts
    return "/".join(parts[-2:]) if parts else path
