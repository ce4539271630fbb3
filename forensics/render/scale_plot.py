"""The loss scale against the step: what moved it, what it cost, and what the report says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forensics.diagnose.chart_parts import Band, Chart, ChartSeries, Mark, Marks
from forensics.diagnose.chart_source import diagnosed
from forensics.diagnose.finding import Diagnosis
from forensics.diagnose.report_order import ROOT
from forensics.diagnose.wording import number, percent, steps
from forensics.errors import InputError
from forensics.render import figure as look
from forensics.render.chart_heights import Heights
from forensics.render.panel import fit, head
from forensics.render.phrases import facts_line
from forensics.render.plot_page import MOST_LANES, PlotPage, run_title, tint
from forensics.render.run_plot import lane_text
from forensics.render.scale_panel import draw_scale, far_limits
from forensics.runlog.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SCALER_RULES = ("loss-scale", "high-skip-rate", "phantom-skip", "precision-mismatch")
_HATCHES = {"loss-scale-collapse": "\\\\", "loss-scale-oscillation": "||"}
_PANEL = 3.4
_TICKS = 0.17
"""Height in inches of the ticks of one skip reason."""
_FAINT = "#AAAAAA"


def plot_scale(run: Run | Diagnosis) -> Figure:
    """The scale plot of a run.

    Args:
        run: the run, or a diagnosis of it that was made already.

    Returns:
        A figure 10 inches wide, not known to pyplot.

    Raises:
        InputError: no loss scaler is at work, or no scale is logged.
    """
    series, diagnosis = diagnosed(run)
    return draw_scale_page(series, diagnosis)


def draw_scale_page(series: ChartSeries, diagnosis: Diagnosis) -> Figure:
    """The scale plot from its series; pure."""
    chart = scale_of(series, diagnosis)
    bands = [b for b in series.bands if b.relation == ROOT or b.rule.startswith(_SCALER_RULES)]
    bands = bands[:MOST_LANES]
    skips = [marks for marks in chart.marks if marks.kind is Mark.SKIP]
    lines = [facts_line(diagnosis.run), _summary(series, chart), far_limits(chart)]
    heights = [_PANEL, *(_TICKS for _ in skips)]
    with look.look():
        page = PlotPage(run_title(series.path), [t for t in lines if t], heights, len(bands))
        page.share_steps(series.first_step or 0, series.last_step or 0, series.unit)
        _staircase(page.panels[0], series, chart, bands)
        for axes, marks in zip(page.panels[1:], skips, strict=True):
            _ticks(axes, marks)
        page.draw_lanes(bands, [lane_text(band, diagnosis.run) for band in bands])
    return page.figure


def scale_of(series: ChartSeries, diagnosis: Diagnosis) -> Chart:
    """The chart of the loss scale.

    Raises:
        InputError: there is none, and why.
    """
    chart = series.chart("scale")
    if chart is None:
        hint = "`forensics plot` draws the rest" if series.charts else None
        raise InputError(_why_nothing(series, diagnosis), where=series.path, hint=hint)
    return chart


def _why_nothing(series: ChartSeries, diagnosis: Diagnosis) -> str:
    run = diagnosis.run
    if series.rows == 0:
        return "has no steps to draw"
    if run.precision in ("bf16", "fp32"):
        return f"no loss scale to plot: {run.precision} trains without a loss scaler"
    if run.scaler is False:
        return "no loss scale to plot: the scale is 1 throughout, no loss scaler was at work"
    return "no loss scale to plot: none is logged"


def _summary(series: ChartSeries, chart: Chart) -> str:
    """How often it grew, fell and skipped, in a line."""
    count = {kind: sum(m.total for m in chart.marks if m.kind is kind) for kind in Mark}
    lost = count[Mark.SKIP]
    whole = max((series.last_step or 0) - (series.first_step or 0) + 1, series.rows)
    skipped = f"{steps(lost)} skipped" + (f" ({percent(lost / whole)})" if lost else "")
    return f"grew {count[Mark.GROWTH]:,} × · backed off {count[Mark.BACKOFF]:,} × · {skipped}"


def _staircase(axes: Axes, series: ChartSeries, chart: Chart, bands: list[Band]) -> None:
    rate = series.chart("lr")
    if rate is not None:
        _behind(axes, rate)
    for band in bands:
        if band.rule.startswith("loss-scale"):
            tint(axes, band, look.SEVERITY[band.severity], _HATCHES.get(band.rule, ""))
    draw_scale(axes, chart, limits=True)
    head(axes, "loss scale (powers of two)")


def _behind(axes: Axes, rate: Chart) -> None:
    """The learning rate, faint, on an axis of its own; the legend says how large it gets."""
    behind = axes.twinx()
    axes.set_zorder(behind.get_zorder() + 1)
    axes.patch.set_visible(False)
    heights, first = Heights(rate.axis), rate.series[0]
    fit(behind, heights, rate.series[:1], ())
    low, high = behind.get_ylim()
    behind.set_ylim(low, high + 0.25 * (high - low))
    top = heights.of(first.high)
    behind.fill_between(first.step, low, top, color="#EFEFEF", lw=0)
    behind.plot(first.step, top, color=_FAINT, lw=1.0, gid="lr")
    behind.axis("off")
    largest = float(np.nanmax(first.high, initial=-np.inf))
    if np.isfinite(largest):
        axes.plot([], [], color=_FAINT, lw=1.0, label=f"learning rate, up to {number(largest)}")


def _ticks(axes: Axes, marks: Marks) -> None:
    """A tick a skipped step, all of one reason."""
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.vlines(marks.step, 0.1, 1.0, color=look.BLACK, lw=0.9, gid="skip")
    title = f"skipped, {look.label(marks.label)}: {steps(marks.total)}"
    axes.set_title(title, loc="left", fontsize=8.5, pad=3)
