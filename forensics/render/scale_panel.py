"""The loss scale as a panel: a staircase, each move marked, and the limits it must not reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forensics.diagnose.chart_parts import Chart, Limit, Mark, Marks
from forensics.diagnose.scaling import POISON_LOG2
from forensics.render import figure as look
from forensics.render.chart_heights import Heights
from forensics.render.panel import Pen, draw_nonfinite, draw_series, extent, set_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NEAR = 10.0
"""Octaves within which a limit is drawn, or as many as the scale moves over; those farther off
would flatten the staircase, and are told in words."""
_MANY = 60
"""Moves from which on their marks are small."""


def draw_scale(axes: Axes, chart: Chart, *, limits: bool = False) -> Heights:
    """The scale with growths and backoffs; with ``limits`` floor and limit of poison too."""
    heights = Heights(chart.axis)
    draw_series(axes, chart.series[0], heights, Pen(look.BLUE, width=1.4, steps=True), "_")
    for marks in chart.marks:
        if marks.kind in (Mark.GROWTH, Mark.BACKOFF):
            _moves(axes, heights, marks)
    draw_nonfinite(axes, chart.nonfinite)
    low, high = extent(heights, chart.series)
    near = [limit for limit in chart.limits if _below(chart, limit) <= _reach(chart)]
    for limit in near if limits else ():
        height = float(heights.of(limit.value))
        low, high = min(low, height), max(high, height)
    room = max(0.6, 0.07 * (high - low))
    axes.set_ylim(low - room, high + room)
    set_ticks(axes, heights)
    for limit in near if limits else ():
        _limit(axes, heights, limit)
    return heights


def _moves(axes: Axes, heights: Heights, marks: Marks) -> None:
    grew = marks.kind is Mark.GROWTH
    size = 5.5 if len(marks.step) <= _MANY else 3.0
    axes.plot(
        marks.step, heights.of(marks.value), ls="", marker="^" if grew else "v", ms=size,
        mfc="white" if grew else look.VERMILION, mec=look.GREEN if grew else look.VERMILION,
        mew=1.1, zorder=3, label=f"{look.label(marks.label)}: {marks.total:,}",
        gid=marks.kind.value,
    )  # fmt: skip


def _limit(axes: Axes, heights: Heights, limit: Limit) -> None:
    height = float(heights.of(limit.value))
    poison = height <= POISON_LOG2
    if poison:
        axes.axhspan(
            axes.get_ylim()[0], height, facecolor="none", edgecolor=look.BLACK, hatch="xxx", lw=0,
            alpha=0.5, zorder=0.4,
        )  # fmt: skip
    axes.axhline(
        height, color="black", ls="-" if poison else "--", lw=1.0, zorder=2.5, gid="limit",
        label=f"2^{height:.0f}: {look.label(limit.label)}",
    )  # fmt: skip


def _below(chart: Chart, limit: Limit) -> float:
    """Octaves from the lowest scale down to a limit."""
    heights = Heights(chart.axis)
    return extent(heights, chart.series)[0] - float(heights.of(limit.value))


def _reach(chart: Chart) -> float:
    low, high = extent(Heights(chart.axis), chart.series)
    return max(_NEAR, high - low)


def far_limits(chart: Chart) -> str:
    """How far the limits are that are too far to be drawn; empty where all are."""
    low, _ = extent(Heights(chart.axis), chart.series)
    far = [limit for limit in chart.limits if _below(chart, limit) > _reach(chart)]
    if not far or not np.isfinite(chart.series[0].low).any():
        return ""
    told = [_far(chart, limit) for limit in far]
    return f"lowest scale 2^{low:.0f}; {'; '.join(told)}"


def _far(chart: Chart, limit: Limit) -> str:
    height = float(Heights(chart.axis).of(limit.value))
    where = f"2^{height:.0f} lies {_below(chart, limit):.0f} octaves below"
    if height <= POISON_LOG2:
        return f"{where}: there 1/scale is Inf and GradScaler itself writes NaN into the weights"
    return f"{limit.label}: {where}"
