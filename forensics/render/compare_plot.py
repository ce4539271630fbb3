"""Two runs over each other, and the steps from which on they are not the same."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from forensics.diagnose.chart_axis import Axis, Layout
from forensics.diagnose.chart_parts import Chart, ChartSeries
from forensics.diagnose.chart_series import chart_series
from forensics.diagnose.comparison import Comparison, compare
from forensics.diagnose.wording import sentence
from forensics.errors import InputError
from forensics.render import figure as look
from forensics.render.chart_heights import Heights
from forensics.render.panel import Pen, draw_nonfinite, draw_series, fit, head, say_nothing_finite
from forensics.render.plot_page import PlotPage, run_title
from forensics.runlog.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEIGHTS = {"loss": 1.9, "norm": 1.9, "lr": 0.9, "scale": 1.2, "skips": 0.9}
_A = Pen(look.BLUE, width=2.4)
_B = Pen(look.ORANGE, "--", 1.3, order=2.1)
"""Wide below and thin above, so that both are seen where they agree."""
_ORDER = (Layout.LINEAR, Layout.LOG2, Layout.LOG, Layout.SYMLOG)


def plot_compare(a: Run, b: Run, *, rtol: float = 0.0) -> Figure:
    """Two runs over each other.

    Args:
        a: run A.
        b: run B.
        rtol: relative difference up to which numbers count as alike.

    Returns:
        A figure 10 inches wide, not known to pyplot.

    Raises:
        InputError: they have no step, or no column to draw, in common.
    """
    return draw_compare(compare(a, b, rtol=rtol), chart_series(a), chart_series(b))


def draw_compare(comparison: Comparison, a: ChartSeries, b: ChartSeries) -> Figure:
    """The page from the comparison and both series; pure."""
    pairs = [(chart, other) for chart in a.charts if (other := b.chart(chart.name)) is not None]
    drawn = [pair for pair in pairs if not _both_still(*pair)]
    if not drawn:
        raise InputError("has no column to draw in common with the other run", where=b.path)
    lines = [f"A: {a.path}", f"B: {b.path}", sentence(comparison.reason)]
    with look.look():
        page = PlotPage(
            f"{run_title(a.path)} and {run_title(b.path)}",
            lines,
            [_HEIGHTS[chart.name] for chart, _ in drawn],
        )
        ends = [step for s in (a, b) for step in (s.first_step, s.last_step) if step is not None]
        page.share_steps(min(ends), max(ends), a.unit)
        for axes, (chart, other) in zip(page.panels, drawn, strict=True):
            _panel(axes, chart, other)
            for text, step, style in _parted(comparison, chart):
                axes.axvline(
                    step, color="black", ls=style, lw=1.1, zorder=3, label=text, gid="part"
                )
            head(axes, chart.title)
    return page.figure


def _parted(comparison: Comparison, chart: Chart) -> list[tuple[str, int, str]]:
    """Where a panel's first column parts at all, and where by more than 1 %.

    Returns:
        Text, step and line style of each mark.
    """
    name = {"skip_rate": "skipped"}.get(chart.series[0].name, chart.series[0].name)
    column = next((c for c in comparison.columns if c.name == name), None)
    if column is None or column.beyond is None:
        return []
    found = [(f"part at {column.beyond:,}", column.beyond, "-")]
    if column.noticeable is not None and column.noticeable != column.beyond:
        found.append((f"by more than 1 % at {column.noticeable:,}", column.noticeable, ":"))
    return found


def _both_still(a: Chart, b: Chart) -> bool:
    """Neither ever skipped a step: nothing to see."""
    highest = [float(np.nanmax(chart.series[0].high, initial=0.0)) for chart in (a, b)]
    return a.name == "skips" and max(highest) <= 0


def _panel(axes: Axes, a: Chart, b: Chart) -> None:
    """The leading series of both on one axis."""
    heights = Heights(_common(a, b))
    pairs = ((a, "A", _A), (b, "B", _B))
    for chart, name, pen in pairs:
        pen = replace(pen, steps=chart.name == "scale")
        draw_series(axes, chart.series[0], heights, pen, name)
    draw_nonfinite(axes, a.nonfinite, "A ")
    draw_nonfinite(axes, b.nonfinite, "B ")
    fit(axes, heights, (a.series[0], b.series[0]), ())
    say_nothing_finite(axes, (a.series[0], b.series[0]))


def _common(a: Chart, b: Chart) -> Axis:
    """An axis that has a place for the values of both."""
    chosen = max(a.axis, b.axis, key=lambda axis: _ORDER.index(axis.layout))
    lowest = [float(np.nanmin(c.series[0].low, initial=np.inf)) for c in (a, b)]
    if not chosen.positive or min(lowest) > 0:
        return chosen
    sizes = np.abs(np.concatenate([a.series[0].middle, b.series[0].middle]))
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    return Axis(Layout.SYMLOG, float(np.median(sizes))) if len(sizes) else Axis(Layout.LINEAR)
