"""The charts of a run as plain JSON for the page, and each in words for who cannot see it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from forensics.diagnose.chart_axis import Layout
from forensics.diagnose.chart_grid import Span
from forensics.diagnose.chart_parts import Band, Chart, ChartSeries, Limit, Mark, Marks, Series
from forensics.diagnose.scale_chart import ZERO_SCALE
from forensics.diagnose.wording import counted, number, power_of_two, span
from forensics.frozen import dataclass
from forensics.render.safe_text import visible
from forensics.runlog.steps import FloatArray, IntArray

DIGITS = 6
"""Significant digits of a value in the page: more than a chart, or a hover over it, can show."""
MOST_SPANS = 200
"""Episodes of one finding that are drawn."""
MOST_STRETCHES = 10_000
"""Non-finite stretches of one series that are drawn."""
_KINDS = {
    Mark.GROWTH: "growth",
    Mark.BACKOFF: "backoff",
    Mark.SKIP: "skipped",
    Mark.NOT_POSITIVE: "0 or less",
}
"""What stands before a mark's label; the others' labels say it all."""


@dataclass(frozen=True, kw_only=True)
class ChartView:
    """One chart beside its drawing: its name, title and what it shows, in words."""

    name: str
    title: str
    summary: str


def chart_views(charts: ChartSeries) -> tuple[ChartView, ...]:
    """What stands around the drawings."""
    return tuple(
        ChartView(name=chart.name, title=chart.title, summary=summary(chart, charts.unit))
        for chart in charts.charts
    )


def charts_json(charts: ChartSeries) -> dict[str, Any]:
    """Everything that the page draws.

    All series stand on one list of steps, so that one cursor and one zoom fit them all; a value
    that is not there is null.
    """
    steps = [series.step for chart in charts.charts for series in chart.series]
    grid = np.unique(np.concatenate(steps)) if steps else np.empty(0, np.int64)
    return {
        "unit": charts.unit,
        "first": charts.first_step,
        "last": charts.last_step,
        "step": grid.tolist(),
        "charts": [_chart(chart, grid) for chart in charts.charts],
        "bands": [_band(band) for band in charts.bands],
    }


def _chart(chart: Chart, grid: IntArray) -> dict[str, Any]:
    return {
        "name": chart.name,
        "title": visible(chart.title),
        "layout": chart.axis.layout.value,
        "linearTo": rounded(chart.axis.linear_to),
        "series": [_series(series, grid) for series in chart.series],
        "nonfinite": [_span(span) for span in chart.nonfinite[:MOST_STRETCHES]],
        "marks": [_marks(marks) for marks in chart.marks],
        "limits": [
            {"label": visible(limit.label), "value": rounded(limit.value)} for limit in chart.limits
        ],
    }


def _series(series: Series, grid: IntArray) -> dict[str, Any]:
    place = np.searchsorted(grid, series.step)
    drawn = {"label": visible(series.label), "sparse": series.sparse}
    drawn["middle"] = _on_grid(series.middle, place, len(grid))
    if not np.array_equal(series.low, series.high, equal_nan=True):
        for part, values in (("low", series.low), ("high", series.high)):
            # A place of one row needs no second and third value: null is the middle's.
            own = np.where(values == series.middle, np.nan, values)
            drawn[part] = _on_grid(own, place, len(grid))
    return drawn


def _on_grid(values: FloatArray, place: IntArray, length: int) -> list[float | None]:
    column: list[float | None] = [None] * length
    for at, value in zip(place.tolist(), values.tolist(), strict=True):
        column[at] = rounded(value)
    return column


def rounded(value: float) -> float | None:
    """The value with few digits; None where it is not finite."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def _span(span: Span) -> list[Any]:
    return [span.first_step, span.last_step, span.count, number(span.value)]


def _marks(marks: Marks) -> dict[str, Any]:
    return {
        "kind": marks.kind.value,
        "label": visible(marks.label),
        "step": marks.step.tolist(),
        "count": marks.count.tolist(),
        "value": [rounded(value) for value in marks.value.tolist()],
    }


def _band(band: Band) -> dict[str, Any]:
    return {
        "number": band.number,
        "rule": visible(band.rule),
        "severity": band.severity.word,
        "spans": [list(span) for span in band.spans[:MOST_SPANS]],
    }


def summary(chart: Chart, unit: str = "step") -> str:
    """A chart in a sentence or two: ends, extremes, what is not finite, what is marked."""
    several, written = len(chart.series) > 1, _written(chart)
    parts = [_course(series, unit, written, named=several) for series in chart.series]
    parts += [_nonfinite(chart)] if chart.nonfinite else []
    parts += [f"{_event(marks)}: {marks.total:,}" for marks in chart.marks]
    parts += [_limit(limit) for limit in chart.limits]
    return "; ".join(parts) + "."


def _limit(limit: Limit) -> str:
    value = power_of_two(limit.value)
    return limit.label if limit.label.startswith(value) else f"{limit.label}: {value}"


def _event(marks: Marks) -> str:
    kind = _KINDS.get(marks.kind, marks.label)
    return kind if marks.label == kind else f"{kind} ({marks.label})"


def _written(chart: Chart) -> Callable[[float], str]:
    """How the values of a chart are written."""
    if chart.axis.layout is not Layout.LOG2:
        return number
    return lambda scale: "0" if scale <= ZERO_SCALE else power_of_two(scale)


def _course(series: Series, unit: str, written: Callable[[float], str], *, named: bool) -> str:
    there = np.flatnonzero(np.isfinite(series.low))
    name = f"{series.label}: " if named else ""
    if len(there) == 0:
        return f"{name}no finite value"
    low = there[np.argmin(series.low[there])]
    high = there[np.argmax(series.high[there])]
    if series.low[low] == series.high[high]:
        return f"{name}{written(float(series.low[low]))} throughout"
    first, last = there[0], there[-1]
    return (
        f"{name}from {written(float(series.middle[first]))} at {unit} {series.step[first]:,} to "
        f"{written(float(series.middle[last]))} at {series.step[last]:,}, "
        f"lowest {written(float(series.low[low]))} at {series.step[low]:,}, "
        f"highest {written(float(series.high[high]))} at {series.step[high]:,}"
    )


def _nonfinite(chart: Chart) -> str:
    stretches = chart.nonfinite
    rows = counted(sum(stretch.count for stretch in stretches), "row")
    first = stretches[0]
    where = span(first.first_step, first.last_step)
    if len(stretches) == 1:
        return f"{number(first.value)} at {where}, {rows}"
    return f"NaN or Inf in {rows} of {len(stretches):,} stretches, the first {where}"
