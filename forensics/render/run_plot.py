"""A run on one page: loss, gradient norms, learning rate, loss scale, skips, and the findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forensics.diagnose.chart_parts import Band, Chart, ChartSeries
from forensics.diagnose.chart_source import diagnosed
from forensics.diagnose.finding import Diagnosis, RunFacts
from forensics.diagnose.report_order import ROOT
from forensics.diagnose.wording import counted, sentence
from forensics.errors import InputError
from forensics.render import figure as look
from forensics.render.panel import PENS, Pen, draw_chart, head, say_nothing_finite
from forensics.render.phrases import facts_line, span
from forensics.render.plot_page import MOST_LANES, PlotPage, run_title, tint
from forensics.render.scale_panel import draw_scale
from forensics.runlog.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEIGHTS = {"loss": 1.7, "norm": 1.7, "lr": 0.8, "scale": 1.2, "skips": 0.8}
_PENS = {
    # The norm after the clip lies wide below the one before it: both are seen where they agree.
    "norm": (Pen(look.BLUE, width=1.1), Pen(look.ORANGE, width=3.0, order=1.9)),
    "lr": (Pen(look.BLACK), *PENS[1:]),
    "skips": (Pen(look.BLACK),),
}


def plot_run(run: Run | Diagnosis) -> Figure:
    """The page of a run.

    Args:
        run: the run, or a diagnosis of it that was made already.

    Returns:
        A figure 10 inches wide, not known to pyplot.

    Raises:
        InputError: there is nothing to draw.
    """
    series, diagnosis = diagnosed(run)
    return draw_run(series, diagnosis)


def draw_run(series: ChartSeries, diagnosis: Diagnosis) -> Figure:
    """The page from its series; pure."""
    charts = [chart for chart in series.charts if not _idle(chart)]
    if not charts or series.first_step is None or series.last_step is None:
        raise InputError(nothing_to_draw(series), where=series.path)
    bands = series.bands[:MOST_LANES]
    more = len(series.bands) - len(bands)
    lines = [
        " · ".join([facts_line(diagnosis.run), *_left_out(series, charts)]),
        sentence(diagnosis.verdict.summary),
    ]
    with look.look():
        page = PlotPage(
            run_title(series.path),
            lines,
            [_HEIGHTS[c.name] for c in charts],
            len(bands) + bool(more),
        )
        page.share_steps(series.first_step, series.last_step, series.unit)
        for axes, chart in zip(page.panels, charts, strict=True):
            _panel(axes, chart, series.bands)
        page.draw_lanes(bands, [lane_text(band, diagnosis.run) for band in bands], more)
    return page.figure


def _panel(axes: Axes, chart: Chart, bands: tuple[Band, ...]) -> None:
    for band in bands:
        if band.relation == ROOT:
            tint(axes, band, look.SEVERITY[band.severity])
    if chart.name == "scale":
        draw_scale(axes, chart)
    else:
        draw_chart(axes, chart, _PENS.get(chart.name, PENS))
    say_nothing_finite(axes, chart.series)
    head(axes, chart.title)


def lane_text(band: Band, run: RunFacts) -> str:
    """``nonfinite-loss · 9 → 229 · error · root``: as the report's row says it."""
    where = span(band.head, run)
    if len(band.spans) > 1:
        where += f" and {counted(len(band.spans) - 1, 'more episode')}"
    parts = (band.rule, where, band.severity.word, band.relation)
    return " · ".join(filter(None, parts))


def _idle(chart: Chart) -> bool:
    """A skip rate of 0 all along: said in a word, not in a panel."""
    return chart.name == "skips" and not bool(np.nanmax(chart.series[0].high, initial=0.0) > 0)


def _left_out(series: ChartSeries, charts: list[Chart]) -> list[str]:
    """What a reader may miss, and why it is not there."""
    drawn = {chart.name for chart in charts}
    told = {
        "loss": "no loss is logged",
        "norm": "no gradient norm is logged",
        "skips": "no step was skipped" if series.chart("skips") else "",
    }
    return [text for name, text in told.items() if name not in drawn and text]


def nothing_to_draw(series: ChartSeries) -> str:
    """Why there is no picture."""
    if series.rows == 0:
        return "has no steps to draw"
    return "has no column to draw: no loss, gradient norm, learning rate, scale or skips"
